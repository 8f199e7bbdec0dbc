"""The jobs, without Spark but for one: counting by headers, copying each record once."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pytest
from click.testing import CliRunner

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.local import asked, damage
from warmlog.cli.pipeline.audit import audit, compact_report
from warmlog.cli.pipeline.count import count
from warmlog.cli.pipeline.replay import replay
from warmlog.cli.pipeline.table import table
from warmlog.cli.root import root
from warmlog.client.blocking import Client
from warmlog.pipeline import runner, session
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.job_stats import Reporter
from warmlog.pipeline.jobs.count import count_records
from warmlog.pipeline.runner import LOCAL_BYTES, LocalRunner, choose_engine
from warmlog.pipeline.source.input import size_of
from warmlog.pipeline.source.options import read_options
from warmlog.pipeline.source.planning import Split
from warmlog.protocol.records.layout import Codec
from warmlog.testing import Broker

WritePartition = Callable[..., DirectoryWriter]


def test_records_are_counted_by_headers_and_opened_at_the_edges(write_partition: WritePartition) -> None:
    writer = write_partition()
    writer.segment(*[[b"x"] * 10 for _ in range(10)], compression=Codec.LZ4)
    writer.segment(*[[b"x"] * 10 for _ in range(10)])
    options = asked(writer, startingOffsets='{"orders":{"0":5}}', endingOffsets='{"orders":{"0":192}}', minPartitions=4)
    reporter = Reporter("count")
    (found,) = count_records(LocalRunner(), options, reporter)
    assert (found.records, found.batches, found.first_offset, found.end_offset) == (187, 20, 5, 192)
    assert (reporter.report().stats.rows, reporter.report().stats.batches) == (187, 20)
    (nothing,) = count_records(LocalRunner(), asked(writer, startingOffsets="latest"), reporter)
    assert (nothing.records, nothing.end_offset) == (0, None)


def invoke(command: Any, *arguments: str) -> Any:
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code in {0, 1}, result.output
    return result


def test_both_engines_give_the_same(
    on_this_spark: None, write_partition: WritePartition, tmp_path: Path, broker: Broker
) -> None:
    """Whatever runs a job: the same output, but for times, and the same table."""
    for partition in range(2):
        writer = write_partition(partition=partition)
        for _ in range(2):
            writer.segment(*[[b"%d" % (at % 7) * 50 for at in range(10)] for _ in range(20)])
    damaged = writer.directory / f"{200:020d}.log"
    source = ("--path", str(writer.directory.parent), "--topic", "orders", "-o", "minPartitions=5", "--json")
    told: dict[str, list[Any]] = {}
    for engine in ("local", "spark"):
        common = (*source, "--engine", engine)
        copied = tuple(word for word in common if word not in {"--topic", "orders"})
        lake, report = str(tmp_path / engine), tmp_path / f"{engine}.json"
        told[engine] = [
            forms(invoke(count, *common)),
            [
                (form["rows"], sum(rows for _, _, rows, _ in form["proofs"]["orders"]["0"]), form["topics"])
                for form in forms(invoke(table, *copied, "orders", lake, "--until-end", "--report", str(report)))
            ],
            forms(invoke(compact_report, *common, "--top", "2")),
            values_in(lake),
            [
                {**form, "id": None}
                for form in forms(
                    invoke(replay, *common, "--native", broker.native, "--to-topic", engine, "--keep-partitions")
                )
            ],
        ]
        sound = damaged.read_bytes()
        damage(damaged)
        told[engine] += [forms(invoke(audit, *common)), forms(invoke(audit, *copied, "orders", lake))]
        del told[engine][-1][0]["table"]
        damaged.write_bytes(sound)
        assert json.loads(report.read_text())["engine"] == engine
    assert told["local"] == told["spark"]
    assert sum(form["records"] for form in told["local"][0]) == 800


def values_in(lake: str) -> list[bytes]:
    return sorted(deltalake.DeltaTable(lake).to_pyarrow_dataset().to_table(columns=["value"])["value"].to_pylist())


def forms(result: Any) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_the_commands_run_on_spark(
    spark: Any, on_this_spark: None, write_partition: WritePartition, tmp_path: Path
) -> None:
    writer = write_partition()
    log = writer.segment(*[[b"x" * 50] * 10 for _ in range(20)])
    source = ("--path", str(writer.directory.parent), "--topic", "orders", "-o", "minPartitions=3")
    common = (*source, "--engine", "spark")
    counted = invoke(count, *common, "--json")
    assert json.loads(counted.stdout)["records"] == 200
    copying = [word for word in common if word not in {"--topic", "orders"}]
    lake = str(tmp_path / "lake")
    told = invoke(table, *copying, "orders", lake, "--until-end", "--partition-by", "day(timestamp)")
    assert told.stdout.startswith("committed 200 records of 200 offsets in 1 partition"), told.output
    frame = spark.read.parquet(*deltalake.DeltaTable(lake).file_uris())
    assert sorted(row.offset for row in frame.select("offset").collect()) == list(range(200))
    again = invoke(table, *copying, "orders", lake, "--until-end")
    assert "nothing new" in again.stdout
    damaged = bytearray(log.read_bytes())
    damaged[70] ^= 1
    log.write_bytes(damaged)
    failed = invoke(table, *copying, "orders", str(tmp_path / "other"), "--until-end")
    assert failed.exit_code == 1
    assert f"Error: {log}: damaged batch at position 0: the CRC" in failed.stderr
    assert "Error: option minPartitions" in invoke(count, *common, "-o", "minPartitions=none").stderr


def test_a_removed_command_says_what_to_use() -> None:
    done = CliRunner().invoke(root, ["pipeline", "archive", "--topic", "orders", "--to", "lake", "--every", "10s"])
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert "'archive' was removed. Use `warmlog pipeline table TOPIC DIR --until-end`;" in done.stderr
    assert "archive" not in CliRunner().invoke(root, ["pipeline", "--help"]).stdout


def test_small_jobs_start_no_spark(write_partition: WritePartition, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even to look whether there is one."""
    monkeypatch.setattr(session, "check_java", lambda: pytest.fail("Java was asked for"))
    writer = write_partition()
    writer.segment([b"x"] * 10)
    result = invoke(count, "--path", str(writer.directory.parent), "--topic", "orders")
    assert "10 records" in result.stdout
    refused = CliRunner().invoke(count, ["--topic", "orders", "--engine", "local", "--master", "local[2]"])
    assert (refused.exit_code, "--master is for --engine spark" in refused.stderr) == (2, True)


def test_large_jobs_take_spark_if_it_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "check_spark", lambda: None)
    assert choose_engine("auto", LOCAL_BYTES, for_spark=False) == ("local", None)
    assert choose_engine("auto", LOCAL_BYTES + 1, for_spark=False) == ("spark", None)
    assert choose_engine("auto", 0, for_spark=True) == ("spark", None)
    assert choose_engine("local", LOCAL_BYTES * 9, for_spark=False) == ("local", None)

    def missing() -> None:
        raise PipelineError("Spark needs Java 17 or newer")

    monkeypatch.setattr(runner, "check_spark", missing)
    engine, note = choose_engine("auto", LOCAL_BYTES * 2, for_spark=False)
    assert (engine, note) == ("local", "reading 4,096 MiB in this process: Spark needs Java 17 or newer")
    for engine, for_spark in (("spark", False), ("auto", True)):
        with pytest.raises(PipelineError, match="Java 17"):
            choose_engine(engine, 0, for_spark=for_spark)


def test_what_a_job_reads_is_measured_before_it_is_read(broker: Broker, write_partition: WritePartition) -> None:
    writer = write_partition()
    sizes = [writer.segment(*[[b"x" * 50] * 10 for _ in range(9)]).stat().st_size for _ in range(3)]
    assert size_of(asked(writer)) == sum(sizes)
    assert size_of(asked(writer, startingOffsets='{"orders":{"0":100}}')) == sizes[1] + sizes[2]
    assert size_of(asked(writer, startingOffsets="latest")) == 0
    with Client(broker.native) as client:
        client.create_topic("sized", partitions=2)
        client.produce_many("sized", [bytes(1000)] * 100, partition=0)
        measured = size_of(read_options({"bootstrap": broker.native, "topic": "sized"}))
        assert measured == sum(path.stat().st_size for path in (broker.data_dir / "sized-0").glob("*.log"))
        past = {"bootstrap": broker.native, "topic": "sized", "startingOffsets": "latest"}
        assert size_of(read_options(past)) == 0


def test_splits_are_run_in_this_process_in_order() -> None:
    splits: Sequence[Split] = [Split(topic="t", partition=at, directory="", pieces=()) for at in range(3)]
    done: list[tuple[int, int]] = []
    run = LocalRunner(lambda *progress: done.append(progress))
    assert run(splits, lambda split: split.partition, lambda split: split.size) == [0, 1, 2]
    assert done == [(1, 3), (2, 3), (3, 3)]
