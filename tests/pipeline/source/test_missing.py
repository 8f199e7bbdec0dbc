"""Directories that are not there: a topic that was deleted is a loss of data, a mount that is missing is an error."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.conftest import DirectoryWriter, plain
from tests.pipeline.local import plan
from warmlog.client.blocking import Client
from warmlog.inspect.errors import MissingDirectoryError
from warmlog.pipeline.errors import DataLossError
from warmlog.pipeline.source.input import rules_of
from warmlog.pipeline.source.options import ReadOptions, read_options
from warmlog.pipeline.source.plan import RemoteSplit
from warmlog.pipeline.source.planning import Split
from warmlog.pipeline.source.ranges import Bounds
from warmlog.pipeline.source.reading import SplitReader
from warmlog.pipeline.source.spark_splits import SplitPartition, read_partition
from warmlog.pipeline.source.stream import StreamReader
from warmlog.testing import Broker

WritePartition = Callable[..., DirectoryWriter]


@pytest.fixture
def writer(write_partition: WritePartition) -> DirectoryWriter:
    """A partition of two segments, in a data directory with another topic."""
    write_partition("payments").segment([b"x"])
    made = write_partition()
    made.segment([b"a"] * 10)
    made.segment([b"b"] * 10)
    return made


def test_a_topic_deleted_before_it_was_read_is_a_loss(writer: DirectoryWriter) -> None:
    made = plan(writer.directory.parent)
    allowing = plan(writer.directory.parent, failOnDataLoss="false")
    shutil.rmtree(writer.directory)
    with pytest.raises(DataLossError, match="orders-0: offsets 0 to 9 were deleted before they were read"):
        made.read()
    assert allowing.offsets() == []
    (split,) = allowing.splits
    assert isinstance(split, Split)
    reader = SplitReader(split, rules_of(allowing.options), lambda *_: None)
    assert list(reader.run()) == []
    assert reader.tally.lost_offsets == 20


@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_mount_that_is_missing_on_an_executor_is_no_loss(writer: DirectoryWriter, loss: str) -> None:
    """To read on without the records would be to skip all there is."""
    data = writer.directory.parent
    made = plan(data, failOnDataLoss=loss)
    data.rename(data.with_name("elsewhere"))
    with pytest.raises(MissingDirectoryError, match=rf"{data}: no data directory on .*: is it mounted there\?"):
        made.read()
    data.mkdir()  # where nothing is mounted there is an empty directory
    with pytest.raises(MissingDirectoryError, match="no data directory"):
        made.read()


def stream(path: Path, **options: Any) -> StreamReader:
    given = {"path": path, "topic": "orders", "startingOffsets": "earliest", **options}
    return StreamReader(read_options({name: str(value) for name, value in given.items()}))


def test_a_deleted_topic_ends_a_stream_only_if_it_must_not_lose_data(
    writer: DirectoryWriter, write_partition: WritePartition
) -> None:
    data = writer.directory.parent
    reader = stream(data, failOnDataLoss="false")
    begin = reader.initialOffset()
    before = reader.latestOffset(begin)
    shutil.rmtree(writer.directory)
    with pytest.raises(DataLossError, match="orders-0 was deleted"):
        stream(data).latestOffset(before)
    with pytest.raises(DataLossError, match="orders-0 no longer exists"):
        stream(data).partitions(begin, before)
    assert reader.latestOffset(before) == before  # there is nothing new, and no micro-batch without records
    assert reader.partitions(begin, before) == []
    assert reader.lost_offsets == 20
    assert reader.reportLatestOffset() is not None
    write_partition("payments", 1)
    again = write_partition()
    again.segment([b"c"] * 30)
    assert plain(reader.latestOffset(before)) == {"orders": {"0": 30}}


def test_a_stream_whose_mount_is_gone_fails(writer: DirectoryWriter) -> None:
    data = writer.directory.parent
    reader = stream(data, failOnDataLoss="false")
    before = reader.initialOffset()
    data.rename(data.with_name("elsewhere"))
    with pytest.raises(MissingDirectoryError):
        reader.latestOffset(before)


def test_the_directory_of_a_partition_that_was_deleted(writer: DirectoryWriter) -> None:
    """Named by itself, it is a topic that is gone, as long as its data directory is there."""
    reader = stream(writer.directory, failOnDataLoss="false")
    before = reader.initialOffset()
    shutil.rmtree(writer.directory)
    assert plain(reader.latestOffset(before)) == plain(before)


# -- with a broker behind --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"log.segment.bytes": 1024}) as running:
        yield running


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.originalname
    with Client(broker.native) as client:
        client.create_topic(name, partitions=1)
        for at in range(50):
            client.produce(name, value=b"%d" % at + bytes(100))
        yield name


def handover(broker: Broker, topic: str, path: Path) -> ReadOptions:
    given = {"path": path, "bootstrap": broker.native, "topic": topic, "startingOffsets": "earliest"}
    return read_options({name: str(value) for name, value in given.items()})


def offsets_of(splits: list[Any], options: ReadOptions) -> list[int]:
    return [
        offset
        for split in splits
        for batch in read_partition(SplitPartition([split]), options, Bounds())
        for offset in batch.column("offset").to_pylist()
    ]


def splits_of(reader: StreamReader) -> list[Any]:
    begin = reader.initialOffset()
    found = reader.partitions(begin, reader.latestOffset(begin))
    return [split for partition in found if isinstance(partition, SplitPartition) for split in partition.splits]


def test_a_hand_over_fetches_what_an_executor_has_no_mount_for(broker: Broker, topic: str, tmp_path: Path) -> None:
    _copy(broker.data_dir / f"{topic}-0", tmp_path / "mnt" / f"{topic}-0")
    options = handover(broker, topic, tmp_path / "mnt")
    splits = splits_of(StreamReader(options))
    assert all(isinstance(split, Split) for split in splits)
    shutil.rmtree(tmp_path / "mnt")
    assert offsets_of(splits, options) == list(range(50))


def test_a_hand_over_fetches_what_left_the_directory_while_it_was_read(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    _copy(broker.data_dir / f"{topic}-0", tmp_path / f"{topic}-0")
    options = handover(broker, topic, tmp_path)
    splits = splits_of(StreamReader(options))
    for log in sorted((tmp_path / f"{topic}-0").glob("*.log"))[1:3]:
        log.unlink()
    (tmp_path / f"{topic}-0" / f"{0:020d}.log").unlink()
    assert offsets_of(splits, options) == list(range(50))


def test_a_hand_over_whose_driver_has_no_directory_reads_from_the_broker(
    broker: Broker, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = handover(broker, topic, tmp_path / "nowhere")
    splits = splits_of(StreamReader(options))
    assert all(isinstance(split, RemoteSplit) for split in splits)
    assert offsets_of(splits, options) == list(range(50))
    assert "reading from the broker instead" in caplog.text


def test_a_deleted_topic_behind_a_broker_ends_a_stream_only_if_it_must_not_lose_data(
    broker: Broker, topic: str
) -> None:
    given = {"bootstrap": broker.native, "topic": topic, "startingOffsets": "earliest"}
    reader = StreamReader(read_options({**given, "failOnDataLoss": "false"}))
    begin = reader.initialOffset()
    before = json.loads(json.dumps(reader.latestOffset(begin)))
    splits = list(reader.partitions(begin, before))
    with Client(broker.native) as client:
        client.delete_topic(topic)
        with pytest.raises(DataLossError, match=f"{topic}-0 was deleted"):
            StreamReader(read_options(given)).latestOffset(before)
        assert reader.latestOffset(before) == before
        assert reader.partitions(begin, before) == []
        options = read_options({**given, "failOnDataLoss": "false"})
        assert [batch for split in splits for batch in read_partition(split, options, Bounds())] == []
        client.create_topic(topic, partitions=1)
        client.produce(topic, value=b"new")
        assert plain(reader.latestOffset(before)) == {topic: {"0": 1}}


def _copy(source: Path, target: Path) -> None:
    """Copy a partition directory of a running broker, without files that it is about to rename."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.tmp"))
