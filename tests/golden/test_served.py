"""Directories of Kafka's, put in place of a stopped broker's, served over a real socket."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden.partitions import GoldenPartition, Seen, consumed_partitions, read_seen
from warmlog import Client
from warmlog.client import ConsumedRecord
from warmlog.testing import Broker

NAMES = [name for name in consumed_partitions() if name.startswith("clean/")]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Of a broker that was stopped, given every golden partition, and started again."""
    data = tmp_path_factory.mktemp("served") / "data"
    with Broker(data_dir=data) as broker, Client(broker.native) as client:
        for topic, partitions in partition_counts().items():
            client.create_topic(topic, partitions=partitions)
    for name in NAMES:
        move_in(GoldenPartition.named(name), data)
    with Broker(data_dir=data) as broker, Client(broker.native) as client:
        yield client


def partition_counts() -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in NAMES:
        topic = read_seen(name).topic
        counts[topic] = counts.get(topic, 0) + 1
    return counts


def move_in(golden: GoldenPartition, data: Path) -> None:
    """What a person does: copy the partition's directory over the one of that name."""
    shutil.rmtree(data / golden.directory.name)
    shutil.copytree(golden.directory, data / golden.directory.name)


def served(client: Client, seen: Seen) -> list[ConsumedRecord]:
    """What the broker gives out of the range that Kafka's consumer saw; below and above it there may be more.

    Below, because the log start offset of a trimmed log is in a checkpoint of the data directory and stayed behind.
    """
    records = client.consume(seen.topic, partitions=[seen.partition], until_end=True)
    return [record for record in records if seen.log_start_offset <= record.offset < seen.end_offset]


def as_consumed(seen: Seen) -> list[ConsumedRecord]:
    return [
        ConsumedRecord(seen.topic, seen.partition, each.offset, each.timestamp, each.key, each.value, each.headers)
        for each in seen.records
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_partition_of_kafkas_is_served_as_kafka_served_it(client: Client, name: str) -> None:
    seen = read_seen(name)
    assert served(client, seen) == as_consumed(seen)


@pytest.mark.parametrize("name", NAMES)
def test_a_partition_of_kafkas_is_written_on_at_its_end(client: Client, name: str) -> None:
    seen = read_seen(name)
    written = client.produce(seen.topic, value=b"ours", partition=seen.partition)
    assert written.offset == seen.end_offset
    assert served(client, seen) == as_consumed(seen)
