"""Records sent once more: from a table or a part of a topic, each once also where a replay is tried again."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.pipeline.conftest import NOW_MS
from tests.pipeline.lakehouse.tables import KINDS, Kind, arguments_of, copied, open_in
from tests.pipeline.lakehouse.test_maintenance import upkeep_of
from warmlog.cli.pipeline.replay import replay as command
from warmlog.client.blocking import Client
from warmlog.client.producing.producer import Message
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.job_stats import Reporter
from warmlog.pipeline.jobs.replay import (
    Replayed,
    ReplayRules,
    ReplayTask,
    _paced,
    plan_from_log,
    plan_from_table,
    replay,
    sink_options,
)
from warmlog.pipeline.lakehouse.maintenance.job import MaintenanceJob
from warmlog.pipeline.runner import LocalRunner
from warmlog.pipeline.source.options import ReadOptions, read_options
from warmlog.testing import Broker

HOUR_MS = 3_600_000


@pytest.fixture
def source(client: Client, request: pytest.FixtureRequest) -> str:
    """A topic of 3 partitions with 40 records each, over two hours, one of each kind among them."""
    name = re.sub(r"\W+", "-", request.node.name)
    client.create_topic(name, partitions=3)
    for partition in range(3):
        messages = [
            Message(
                value=None if at == 3 else b"%d-%d" % (partition, at),
                key=b"k%d" % (at % 5) if at % 4 else None,
                headers=[("h", b"%d" % at), ("n", None)] if at % 2 else (),
                timestamp=NOW_MS + at * HOUR_MS // 20,
            )
            for at in range(40)
        ]
        client.produce_many(name, messages, partition=partition)
    client.create_topic(f"{name}-copy", partitions=3)
    return name


def options_of(broker: Broker, topic: str, **given: Any) -> ReadOptions:
    options = {"path": str(broker.data_dir), "topic": topic, "includeHeaders": "true", **given}
    return read_options({name: str(value) for name, value in options.items()})


def sent(broker: Broker, tasks: list[ReplayTask], options: ReadOptions, to: str, **rules: Any) -> list[Replayed]:
    given = {"replay_id": to, "keep_partitions": True, **rules}
    made = ReplayRules(write=sink_options(broker.native, to, {}), **given)
    return replay(LocalRunner(), tasks, made, options, Reporter("replay"))


def stored(client: Client, topic: str) -> Mapping[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for one in client.consume(topic, start="beginning", until_end=True):
        found.setdefault(one.partition, []).append((one.key, one.value, tuple(one.headers), one.timestamp))
    return found


def test_a_replay_of_a_topic_keeps_all_of_a_record(broker: Broker, client: Client, source: str) -> None:
    options = options_of(broker, source)
    done = sent(broker, plan_from_log(options), options, f"{source}-copy")
    assert [(one.partition, one.records, one.first_offset, one.last_offset) for one in done] == [
        (partition, 40, 0, 39) for partition in range(3)
    ]
    assert stored(client, f"{source}-copy") == stored(client, source)


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_of_a_table_keeps_all_of_a_record(
    broker: Broker, client: Client, tmp_path: Path, kind: Kind, source: str
) -> None:
    """Merged by maintenance or not."""
    options = options_of(broker, source, maxOffsetsPerTrigger=50)
    copied(open_in(tmp_path, kind), options)
    for name in (f"{source}-once", f"{source}-merged"):
        client.create_topic(name, partitions=3)
        table = open_in(tmp_path, kind)
        sent(broker, plan_from_table(table, options), options, name)
        assert stored(client, name) == stored(client, source)
        MaintenanceJob(upkeep_of(table)).run()
        assert len(table.files()) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_a_recreated_topic_is_replayed_in_the_order_it_was_written(
    broker: Broker, client: Client, tmp_path: Path, kind: Kind
) -> None:
    name = f"recreated-{kind}"
    for values in ([b"old %d" % at for at in range(20)], [b"new %d" % at for at in range(30)]):
        client.create_topic(name, partitions=1)
        client.produce_many(name, values)
        copied(open_in(tmp_path, kind), options_of(broker, name, failOnDataLoss="false", maxOffsetsPerTrigger=8))
        client.delete_topic(name)
    MaintenanceJob(upkeep_of(open_in(tmp_path, kind))).run()
    options = options_of(broker, name)
    tasks = plan_from_table(open_in(tmp_path, kind), options)
    client.create_topic(name, partitions=1)
    sent(broker, tasks, options, name)
    values = [value for _, value, _, _ in stored(client, name)[0]]
    assert values == [b"old %d" % at for at in range(20)] + [b"new %d" % at for at in range(30)]


def test_rows_that_another_program_has_taken_out_of_files_are_not_replayed(
    broker: Broker, tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(broker, source)
    table = open_in(tmp_path, "delta")
    copied(table, options)
    files = [replace(file, hides_rows=True) for file in open_in(tmp_path, "delta").files()]
    monkeypatch.setattr(table, "files", lambda: files)
    with pytest.raises(PipelineError, match="has only marked rows of"):
        plan_from_table(table, options)


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_takes_a_table(broker: Broker, client: Client, tmp_path: Path, kind: Kind, source: str) -> None:
    copied(open_in(tmp_path, kind), options_of(broker, source))
    target, *where = arguments_of(tmp_path, kind)
    common = ["--topic", source, "--native", broker.native, "--to-topic", f"{source}-copy", "--keep-partitions"]
    done = CliRunner().invoke(command, [*common, "--table", target, *where])
    assert f"120 records sent to {source}-copy" in done.stdout, done.output
    assert stored(client, f"{source}-copy") == stored(client, source)
    part = ["-o", f"startingTimestamp={NOW_MS + HOUR_MS}", "--dry-run"]
    dry = CliRunner().invoke(command, [*common, "--table", target, *where, *part])
    assert "60 records would be sent" in dry.stdout, dry.output
    missing = CliRunner().invoke(command, [*common, "--table", f"{target}-x", *where])
    assert (missing.exit_code, "is not a table" in missing.stderr) == (1, True), missing.output
    lonely = CliRunner().invoke(command, [*common, "--catalog", "sqlite://"])
    assert (lonely.exit_code, "are for --table, which is missing" in lonely.stderr) == (2, True), lonely.output


def test_a_replay_that_is_tried_again_sends_what_is_missing(broker: Broker, client: Client, source: str) -> None:
    options = options_of(broker, source)
    part = options_of(broker, source, endingOffsets=json.dumps({source: {"0": 17, "1": 0, "2": 40}}))
    sent(broker, plan_from_log(part), part, f"{source}-copy")
    done = sent(broker, plan_from_log(options), options, f"{source}-copy")
    assert [one.stored_before for one in done] == [17, 0, 40]
    assert stored(client, f"{source}-copy") == stored(client, source)


def test_parts_by_time_and_offset(broker: Broker, source: str, tmp_path: Path) -> None:
    bounds = {"startingTimestamp": NOW_MS + HOUR_MS // 2, "endingTimestamp": NOW_MS + HOUR_MS}
    options = options_of(broker, source, **bounds)
    table = open_in(tmp_path / "table", "delta")
    copied(table, options_of(broker, source))
    table.refresh()
    for tasks in (plan_from_log(options), plan_from_table(table, options)):
        rules = ReplayRules(write=None, replay_id="dry")
        done = replay(LocalRunner(), tasks, rules, options, Reporter("replay"))
        assert [(one.records, one.first_offset, one.last_offset) for one in done] == [(10, 10, 19)] * 3
    each = {str(partition): 30 for partition in range(3)}
    options = options_of(broker, source, startingOffsets=json.dumps({source: each}))
    (first, *_) = plan_from_table(table, options)
    done = replay(LocalRunner(), [first], ReplayRules(write=None, replay_id="dry"), options, Reporter("replay"))
    assert [(one.records, one.first_offset) for one in done] == [(10, 30)]


def test_a_rate_is_kept() -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    batch = pa.record_batch({"offset": list(range(5000))})
    parts = [(now, part.num_rows) for part in _paced(iter([batch]), 500.0, clock=lambda: now, sleep=sleep)]
    assert parts == [(0, 1000), (2, 1000), (4, 1000), (6, 1000), (8, 1000)]


def test_a_partition_that_the_target_does_not_have(broker: Broker, client: Client, source: str) -> None:
    client.create_topic(f"{source}-narrow", partitions=1)
    options = options_of(broker, source)
    with pytest.raises(PipelineError, match="has partitions 0 to 0, not 1"):
        sent(broker, plan_from_log(options), options, f"{source}-narrow")


def test_a_topic_that_is_not_there_is_created_with_as_many_partitions(
    broker: Broker, client: Client, source: str, tmp_path: Path
) -> None:
    """Else the first record that keeps its partition would end the replay: a broker creates topics of one."""
    copied(open_in(tmp_path, "delta"), options_of(broker, source))
    common = ["--topic", source, "--native", broker.native, "--keep-partitions"]
    for given in (
        ["--table", str(tmp_path / "delta")],
        ["--bootstrap", broker.native],
        ["--path", str(broker.data_dir)],
    ):
        target = f"{source}-{given[0][2:]}"
        done = CliRunner().invoke(command, [*common, *given, "--to-topic", target])
        assert f"created topic {target} with 3 partitions" in done.stdout, done.output
        assert stored(client, target) == stored(client, source)
    client.create_topic(f"{source}-one", partitions=1)
    failed = CliRunner().invoke(command, [*common, "--table", str(tmp_path / "delta"), "--to-topic", f"{source}-one"])
    assert "has no partition 2, but the source has: add partitions" in failed.stderr, failed.output
    assert stored(client, f"{source}-one") == {}


def test_a_partition_without_records_counts_and_ends_nothing(broker: Broker, client: Client, tmp_path: Path) -> None:
    client.create_topic("sparse", partitions=4)
    client.produce_many("sparse", [Message(value=b"old", timestamp=NOW_MS)], partition=0)
    client.produce_many("sparse", [Message(value=b"new", timestamp=NOW_MS + HOUR_MS)], partition=1)
    copied(open_in(tmp_path, "delta"), options_of(broker, "sparse"))
    common = ["--topic", "sparse", "--native", broker.native, "-o", f"startingTimestamp={NOW_MS + 1}"]
    for given, partitions in (
        (["--table", str(tmp_path / "delta")], 2),  # up to the last one that has rows
        (["--bootstrap", broker.native], 4),
        (["--path", str(broker.data_dir)], 4),
    ):
        target = f"sparse-{given[0][2:]}"
        done = CliRunner().invoke(command, [*common, *given, "--to-topic", target])
        assert f"created topic {target} with {partitions} partitions" in done.stdout, done.output
        assert [value for rows in stored(client, target).values() for _, value, _, _ in rows] == [b"new"]
    strict = [
        "-o",
        "startingOffsetsByTimestampstrategy=error",
        "--path",
        str(broker.data_dir),
        "--to-topic",
        "sparse-x",
    ]
    assert "sparse-0 has no record at or past" in CliRunner().invoke(command, [*common, *strict]).stderr


def test_the_command(broker: Broker, client: Client, source: str, tmp_path: Path) -> None:
    common = ["--path", str(broker.data_dir), "--topic", source, "--native", broker.native]
    dry = CliRunner().invoke(command, [*common, "--to-topic", f"{source}-copy", "--dry-run"])
    assert f"120 records would be sent to {source}-copy" in dry.stdout, dry.output
    assert stored(client, f"{source}-copy") == {}
    done = CliRunner().invoke(command, [*common, "--to-topic", f"{source}-copy", "--id", "a", "--rate", "100000"])
    assert f"120 records sent to {source}-copy" in done.stdout, done.output
    again = CliRunner().invoke(command, [*common, "--to-topic", f"{source}-copy", "--id", "a"])
    assert "120 records were already stored" in again.stdout, again.output
    assert sum(map(len, stored(client, f"{source}-copy").values())) == 120
    for arguments, message in (
        ([], "it is optional only with --table"),
        (["--table", str(tmp_path)], "cannot be combined"),
    ):
        refused = CliRunner().invoke(command, [*common, *arguments])
        assert (refused.exit_code, message in refused.stderr) == (2, True), refused.output
    failed = CliRunner().invoke(command, ["--table", str(tmp_path), "--topic", "t", "--native", broker.native])
    assert (failed.exit_code, "is not a table" in failed.stderr) == (1, True), failed.output
