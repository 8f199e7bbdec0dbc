"""A stream that reads the directory first and then the broker: each offset once, wherever the one ends."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.conftest import plain
from warmlog.client.blocking import Client
from warmlog.pipeline.brokers import Brokers
from warmlog.pipeline.cluster import ClusterConnection
from warmlog.pipeline.errors import DataLossError, PipelineError, UnavailableError
from warmlog.pipeline.retry import Retry
from warmlog.pipeline.source.options import read_options
from warmlog.pipeline.source.plan import RemoteSplit
from warmlog.pipeline.source.planning import Split
from warmlog.pipeline.source.ranges import Bounds
from warmlog.pipeline.source.spark_splits import SplitPartition, read_partition
from warmlog.pipeline.source.stream import StreamReader
from warmlog.protocol.request import MetadataRequest
from warmlog.protocol.response import MetadataResponse
from warmlog.testing import Broker

TOPIC = "orders"
COPIED, TRIMMED, ALL = 60, 20, 100  # offsets: where the copy ends and begins, what the broker has


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"log.segment.bytes": 1024}) as running:
        yield running


@pytest.fixture(scope="module")
def copy(broker: Broker, client: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that was copied while the broker had less, and whose oldest segments are gone."""
    client.create_topic(TOPIC, partitions=1)
    append(client, TOPIC, range(COPIED))
    path = tmp_path_factory.mktemp("copy")
    # what is called so is on its way to another name
    shutil.copytree(broker.data_dir / f"{TOPIC}-0", path / f"{TOPIC}-0", ignore=shutil.ignore_patterns("*.tmp"))
    for log in (path / f"{TOPIC}-0").glob("*.log"):
        if int(log.stem) < TRIMMED:
            log.unlink()
    append(client, TOPIC, range(COPIED, ALL))
    return path


def append(client: Client, topic: str, numbers: range) -> None:
    for at in numbers:
        client.produce(topic, value=b"%d" % at + bytes(100))


def reader_of(broker: Broker, path: Path, **options: Any) -> StreamReader:
    given = {"bootstrap": broker.native, "path": path, "topic": TOPIC, "startingOffsets": "earliest", **options}
    return StreamReader(read_options({name: str(value) for name, value in given.items()}))


def planned(reader: StreamReader, first: int, end: int) -> list[Any]:
    partitions = reader.partitions({TOPIC: {"0": first}}, {TOPIC: {"0": end}})
    return [split for partition in partitions if isinstance(partition, SplitPartition) for split in partition.splits]


def offsets_of(splits: list[Any], broker: Broker) -> list[int]:
    options = read_options({"bootstrap": broker.native, "topic": TOPIC, "columns": "offset"})
    return [
        offset
        for split in splits
        for batch in read_partition(SplitPartition([split]), options, Bounds())
        for offset in batch.column("offset").to_pylist()
    ]


@given(first=st.integers(0, ALL), size=st.integers(0, ALL))
def test_any_micro_batch_holds_each_offset_once(
    broker: Broker, client: Client, copy: Path, first: int, size: int
) -> None:
    end = min(first + size, ALL)
    splits = planned(reader_of(broker, copy), first, end)
    assert offsets_of(splits, broker) == list(range(first, end))


def test_what_was_there_comes_from_files_and_all_after_it_from_the_broker(broker: Broker, client: Client) -> None:
    topic = "two"
    client.create_topic(topic, partitions=1)
    append(client, topic, range(30))
    reader = reader_of(broker, broker.data_dir, topic=topic)
    begin = reader.initialOffset()
    middle = reader.latestOffset(begin)
    (first,) = (split for partition in reader.partitions(begin, middle) for split in partition.splits)  # type: ignore[attr-defined]
    assert isinstance(first, Split)
    append(client, topic, range(30, 50))
    end = reader.latestOffset(middle)
    (second,) = (split for partition in reader.partitions(middle, end) for split in partition.splits)  # type: ignore[attr-defined]
    assert isinstance(second, RemoteSplit)
    assert (first.pieces[-1].end_offset, second.first_offset, second.end_offset) == (30, 30, 50)


def test_the_hand_over_offset_stays_for_the_query(broker: Broker, client: Client, copy: Path) -> None:
    reader = reader_of(broker, broker.data_dir)
    (split,) = planned(reader, TRIMMED, TRIMMED + 1)
    assert isinstance(split, Split)
    end = client.offsets(TOPIC, "end")[0]
    append(client, TOPIC, range(end, end + 3))
    kinds = [type(split) for split in planned(reader, end - 1, end + 3)]
    assert kinds == [Split, RemoteSplit]
    client.create_topic("unrelated", partitions=1)


def test_what_is_flushed_stands_in_the_directory_alone(broker: Broker, client: Client, copy: Path) -> None:
    reader = reader_of(broker, broker.data_dir, readUpTo="flushed")
    end = plain(reader.latestOffset())[TOPIC]["0"]
    assert end <= client.offsets(TOPIC, "end")[0]
    assert all(isinstance(split, Split) for split in planned(reader, 0, end))


def test_a_directory_of_another_topic_of_that_name_is_refused(broker: Broker, client: Client, copy: Path) -> None:
    other = copy.parent / "other" / f"{TOPIC}-0"
    shutil.copytree(copy / f"{TOPIC}-0", other)
    (other / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    with pytest.raises(PipelineError, match="belongs to another topic named orders"):
        planned(reader_of(broker, other.parent), 0, ALL)


def test_a_directory_without_the_topic_is_refused(broker: Broker, client: Client, copy: Path) -> None:
    client.create_topic("elsewhere", partitions=1)
    reader = reader_of(broker, copy, topic="elsewhere")
    with pytest.raises(PipelineError, match="has no topic elsewhere"):
        reader.partitions({"elsewhere": {"0": 0}}, {"elsewhere": {"0": 0}})


def test_offsets_that_are_gone_are_counted(broker: Broker, client: Client, copy: Path) -> None:
    with pytest.raises(DataLossError, match=r"orders-7 no longer exists"):
        reader_of(broker, copy).partitions({TOPIC: {"7": 3}}, {TOPIC: {"7": 10}})
    reader = reader_of(broker, copy, failOnDataLoss="false")
    reader.partitions({TOPIC: {"7": 3}}, {TOPIC: {"7": 10}})
    assert reader.lost_offsets == 7


def test_a_broker_that_is_away_is_waited_for(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        addresses = [broker.native]

        def ask() -> MetadataResponse:
            with ClusterConnection(Brokers(addresses=addresses[-1]), Retry(0)) as cluster:
                return cluster.ask(MetadataRequest(topics=None), MetadataResponse)

        def sleep(_: float) -> None:
            broker.start()
            addresses.append(broker.native)

        broker.stop()
        assert Retry(sleep=sleep).call(ask).topics == ()
        assert len(addresses) == 2
    times = iter(range(0, 1000, 50))
    with pytest.raises(UnavailableError):
        Retry(clock=lambda: next(times), sleep=lambda _: None).call(ask)
