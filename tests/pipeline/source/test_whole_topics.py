"""A part of a topic is not taken for the whole, and of a replica only what is committed is read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.pipeline.conftest import DirectoryWriter, register
from tests.pipeline.local import plan
from tests.warmlog.cli.nodes.running import nodes
from warmlog.broker.log.directory.checkpoint import HIGH_WATERMARKS, write_offsets
from warmlog.broker.log.io.disk import Disk
from warmlog.cli.pipeline.audit import audit
from warmlog.cli.pipeline.count import count
from warmlog.client.blocking import Client
from warmlog.inspect.catalog import KnownTopic
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.source import stored
from warmlog.pipeline.source.options import read_options
from warmlog.pipeline.source.stream import StreamReader
from warmlog.testing import Broker

WritePartition = Callable[..., DirectoryWriter]
PARTITIONS = 6
VALUES = sorted(b"%03d" % at for at in range(120))


@pytest.fixture(autouse=True)
def never_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "PAUSE_S", 0)


def fill(address: str, topic: str = "orders", **given: Any) -> None:
    with Client(address) as client:
        client.create_topic(topic, partitions=PARTITIONS, **given)
        for partition in range(PARTITIONS):
            client.produce_many(topic, [(None, value) for value in VALUES[partition::PARTITIONS]], partition=partition)


def test_several_data_directories_are_read_as_one(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for directory in (one, other):
        directory.mkdir()
    with Broker(data_dir=one, settings={"log.dirs": f"{one},{other}"}) as broker:
        fill(broker.native)
        for path in (one, other):
            with pytest.raises(PipelineError, match=r"of topic orders, .*assign"):
                plan(path)
        with pytest.raises(PipelineError, match="of topic orders, which has 6: give all of its data directories"):
            plan(other, bootstrap=broker.native)
        assert sorted(plan(Path(f"{one},{other}")).values()) == VALUES
        there = sorted(int(path.name.partition("-")[2]) for path in one.glob("orders-*"))
        assigned = plan(one, topic=None, assign=json.dumps({"orders": there}))
        assert sorted(assigned.values()) == sorted(value for at in there for value in VALUES[at::PARTITIONS])
        assert CliRunner().invoke(count, ["--topic", "orders", "--path", str(one)]).exit_code == 1
        for job in (count, audit):
            done = CliRunner().invoke(job, ["--topic", "orders", "--path", f"{one},{other}", "--json"])
            assert done.exit_code == 0, done.output
            assert done.output.count('"partition"') == PARTITIONS


def test_a_copy_without_a_store_has_to_be_named(write_partition: WritePartition) -> None:
    for partition in range(2):
        writer = write_partition("orders", partition)
        writer.segment([b"a"] * 10)
    data = writer.directory.parent
    (data / "metadata.sqlite").unlink()
    with pytest.raises(
        PipelineError, match=r"has partitions 0, 1 of topic orders, whose number of partitions is unknown"
    ):
        plan(data)
    assert len(plan(data, topic=None, assign='{"orders":[0,1]}').values()) == 20
    assert len(plan(writer.directory).values()) == 10  # the directory of a partition is what it is


def test_a_stream_does_not_go_on_without_new_partitions_elsewhere(write_partition: WritePartition) -> None:
    writer = write_partition()
    writer.segment([b"a"] * 10)
    data = writer.directory.parent
    reader = StreamReader(read_options({"path": str(data), "topic": "orders", "startingOffsets": "earliest"}))
    end = reader.latestOffset(reader.initialOffset())
    register(data, "orders", 3)
    with pytest.raises(PipelineError, match="has partition 0 of topic orders, which has 3"):
        reader.latestOffset(end)


def test_of_replicas_what_is_committed_is_read(
    write_partition: WritePartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = write_partition()
    writer.segment(*[[b"a"] * 10] * 15)
    data = writer.directory.parent
    write_offsets(Disk(), str(data / HIGH_WATERMARKS), {("orders", 0): 100})
    assert len(plan(data).values()) == 150  # it has no other replica
    assert len(plan(data, topic=None, assign='{"orders":[0]}', readUpTo="end").values()) == 150
    topic = KnownTopic(topic_id="", partitions=1, replicas={0: 3})
    monkeypatch.setattr(stored, "known_topics", lambda _: {"orders": topic})
    assert plan(data).offsets() == list(range(100))
    with pytest.raises(PipelineError, match="the log ends at 100"):
        plan(data, startingOffsets='{"orders":{"0":120}}')
    (data / HIGH_WATERMARKS).unlink()
    assert plan(data).offsets() == []
    write_offsets(Disk(), str(data / HIGH_WATERMARKS), {("orders", 0): 100})
    monkeypatch.setattr(stored, "known_topics", lambda _: {})
    assert plan(data, topic=None, assign='{"orders":[0]}').offsets() == list(range(100))  # nothing is known of replicas


def test_of_all_replicas_what_they_have_in_common_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writers = [DirectoryWriter(tmp_path / name) for name in "abc"]
    for at, writer in enumerate(writers):
        writer.segment(*[[b"a"] * 10] * (5 + at))
    topic = KnownTopic(topic_id="", partitions=1, replicas={0: 3})
    monkeypatch.setattr(stored, "known_topics", lambda _: {"orders": topic})
    paths = [str(writer.directory.parent) for writer in writers]
    assert plan(Path(",".join(paths))).offsets() == list(range(50))
    assert plan(Path(",".join(paths[1:]))).offsets() == []  # the third may have less


def test_nodes_are_read_together_and_their_replicas_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with nodes(data, 3, "--set", "log.flush.offset.checkpoint.interval.ms=50") as running:
        fill(running.native[0])
        fill(running.native[1], "copied", replication_factor=3)
        for node in (1, 2, 3):
            with pytest.raises(PipelineError, match="of topic orders, which has 6"):
                plan(data / "nodes" / str(node))
        assert sorted(plan(data).values()) == VALUES
        assert sorted(plan(Path(",".join(f"{data}/nodes/{at}" for at in (1, 2, 3)))).values()) == VALUES
        assert sorted(plan(data, topic="copied").values()) == VALUES  # on all replicas
        while len(found := plan(data / "nodes" / "2", topic="copied").values()) < len(VALUES):
            pass  # until the high watermarks are in the checkpoint
        assert sorted(found) == VALUES
        assert running.stop() == 0
    assert sorted(plan(data).values()) == VALUES
