"""A topic that is deleted and created again, or a log that is cut and written again: never mistaken for the old one."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.conftest import NOW_MS, DirectoryWriter
from warmlog.client.blocking import Client
from warmlog.pipeline.errors import DataLossError
from warmlog.pipeline.source.options import ReadOptions, read_options
from warmlog.pipeline.source.ranges import Bounds
from warmlog.pipeline.source.spark_splits import read_partition
from warmlog.pipeline.source.stream import StreamReader
from warmlog.protocol.records.builder import build_batch
from warmlog.testing import Broker

WritePartition = Callable[..., DirectoryWriter]
BEFORE, AFTER = 100, 150  # records of the old topic, and of the new one


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"log.segment.delete.delay.ms": 0}) as running:
        yield running


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    create(client, name, "old", BEFORE)
    return name


def create(client: Client, name: str, what: str, count: int) -> None:
    client.create_topic(name, partitions=1)
    client.produce_many(name, [f"{what} {at}".encode() for at in range(count)])


def recreate(client: Client, name: str) -> None:
    client.delete_topic(name)
    create(client, name, "new", AFTER)


def asked(source: str, broker: Broker, topic: str, **options: Any) -> ReadOptions:
    where = {"path": broker.data_dir} if source == "path" else {"bootstrap": broker.native}
    given = {**where, "topic": topic, "startingOffsets": "earliest", **options}
    return read_options({name: str(value) for name, value in given.items()})


def read(reader: StreamReader, start: Any, end: Any, options: ReadOptions) -> list[bytes]:
    """What a micro-batch holds."""
    return [
        value
        for partition in reader.partitions(start, end)
        for batch in read_partition(partition, options, Bounds())
        for value in batch.column("value").to_pylist()
    ]


def consumed(options: ReadOptions) -> Any:
    """The offsets of a stream that has read everything, as they stand in a checkpoint."""
    reader = StreamReader(options)
    end = reader.latestOffset(reader.initialOffset())
    return json.loads(json.dumps(end))


@pytest.mark.parametrize("source", ["bootstrap", "path"])
def test_a_stream_over_a_recreated_topic_fails(broker: Broker, client: Client, topic: str, source: str) -> None:
    before = consumed(asked(source, broker, topic))
    recreate(client, topic)
    with pytest.raises(DataLossError, match=rf"{topic}-0: the topic was deleted and created again"):
        StreamReader(asked(source, broker, topic)).latestOffset(before)


@pytest.mark.parametrize("source", ["bootstrap", "path"])
def test_a_stream_that_may_lose_data_reads_a_recreated_topic_from_its_start(
    broker: Broker, client: Client, topic: str, source: str
) -> None:
    options = asked(source, broker, topic, failOnDataLoss="false")
    before = consumed(options)
    recreate(client, topic)
    reader = StreamReader(options)
    end = reader.latestOffset(before)
    assert read(reader, before, end, options) == [b"new %d" % at for at in range(AFTER)]
    client.produce(topic, value=b"newer")
    assert read(reader, end, reader.latestOffset(end), options) == [b"newer"]


@pytest.mark.parametrize("source", ["bootstrap", "path"])
def test_a_topic_recreated_after_planning_is_not_read_in_place_of_the_old_one(
    broker: Broker, client: Client, topic: str, source: str
) -> None:
    options = asked(source, broker, topic)
    reader = StreamReader(options)
    begin = reader.initialOffset()
    end = reader.latestOffset(begin)
    partitions = reader.partitions(begin, end)
    recreate(client, topic)
    with pytest.raises(DataLossError, match=f"{topic}-0: the topic was deleted and created again"):
        [batch for partition in partitions for batch in read_partition(partition, options, Bounds())]
    allowing = asked(source, broker, topic, failOnDataLoss="false")
    assert [batch for partition in partitions for batch in read_partition(partition, allowing, Bounds())] == []
    with pytest.raises(DataLossError, match="deleted and created again"):
        reader.partitions(begin, end)
    assert read(StreamReader(allowing), begin, end, allowing) == []


@pytest.mark.parametrize("source", ["bootstrap", "path"])
def test_offsets_of_older_checkpoints_are_read(broker: Broker, client: Client, topic: str, source: str) -> None:
    """They name neither topic id nor leader epoch."""
    options = asked(source, broker, topic)
    reader = StreamReader(options)
    old = {topic: {"0": 40}}
    end = reader.latestOffset(old)
    assert read(reader, old, end, options) == [b"old %d" % at for at in range(40, BEFORE)]
    assert end[topic]["partitions"]["0"]["offset"] == BEFORE
    assert end[topic]["topicId"]
    assert len(read(reader, {topic: {"0": 10}}, {topic: {"0": 30}}, options)) == 20


# -- logs that were cut and written again, which leader epochs tell ---------------------------------------------------


def write_epochs(writer: DirectoryWriter, *parts: tuple[int, int, int]) -> None:
    """One segment of batches of ten records; each part is (leader epoch, first offset, end offset)."""
    data = bytearray()
    for epoch, first, end in parts:
        for base in range(first, end, 10):
            rows = [(NOW_MS, None, b"%d/%d" % (epoch, base + at), ()) for at in range(10)]
            data += build_batch(rows, base_offset=base, leader_epoch=epoch)
    (writer.directory / f"{0:020d}.log").write_bytes(data)


def test_a_stream_over_a_rewritten_directory_fails_or_reads_what_was_rewritten(write_partition: WritePartition) -> None:
    writer = write_partition()
    options = read_options({"path": str(writer.directory.parent), "topic": "orders", "startingOffsets": "earliest"})
    write_epochs(writer, (0, 0, 20), (3, 20, 100))
    before = consumed(options)
    write_epochs(writer, (0, 0, 20), (3, 20, 60), (5, 60, 150))
    with pytest.raises(DataLossError, match="orders-0: offsets 60 to 99 were truncated and written again"):
        StreamReader(options).latestOffset(before)
    allowing = read_options(
        {
            "path": str(writer.directory.parent),
            "topic": "orders",
            "startingOffsets": "earliest",
            "failOnDataLoss": "false",
            "maxOffsetsPerTrigger": "50",
        }
    )
    reader = StreamReader(allowing)
    end = reader.latestOffset(before)
    assert read(reader, before, end, allowing) == [b"5/%d" % at for at in range(60, 110)]
    assert reader.lost_offsets == 40
    assert read(reader, end, reader.latestOffset(end), allowing) == [b"5/%d" % at for at in range(110, 150)]


def test_a_new_leader_epoch_alone_loses_nothing(write_partition: WritePartition) -> None:
    writer = write_partition()
    options = read_options({"path": str(writer.directory.parent), "topic": "orders", "startingOffsets": "earliest"})
    write_epochs(writer, (0, 0, 100))
    before = consumed(options)
    write_epochs(writer, (0, 0, 100), (7, 100, 120))
    reader = StreamReader(options)
    assert len(read(reader, before, reader.latestOffset(before), options)) == 20


def test_a_stream_over_a_broker_that_lost_its_tail_in_a_power_cut_fails(tmp_path: Path) -> None:
    """The log is cut as a power cut leaves it; the broker begins a new leader epoch and takes other records."""
    with Broker(data_dir=tmp_path) as broker:
        with Client(broker.native) as client:
            client.create_topic("orders", partitions=1)
            for at in range(BEFORE):
                client.produce("orders", value=b"old %d" % at)
        options = asked("bootstrap", broker, "orders")
        before = consumed(options)
        broker.stop()
        (log,) = (tmp_path / "orders-0").glob("*.log")
        os.truncate(log, log.stat().st_size * 6 // 10)
        (tmp_path / ".kafka_cleanshutdown").unlink()
        for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            (tmp_path / name).unlink()
        broker.start()
        with Client(broker.native) as client:
            kept = client.offsets("orders", "end")[0]
            assert 0 < kept < BEFORE
            for at in range(AFTER):
                client.produce("orders", value=b"new %d" % at)
        options = asked("bootstrap", broker, "orders")
        with pytest.raises(DataLossError, match=f"orders-0: offsets {kept} to 99 were truncated and written again"):
            StreamReader(options).latestOffset(before)
        allowing = asked("bootstrap", broker, "orders", failOnDataLoss="false")
        reader = StreamReader(allowing)
        end = reader.latestOffset(before)
        assert read(reader, before, end, allowing) == [b"new %d" % at for at in range(AFTER)]
