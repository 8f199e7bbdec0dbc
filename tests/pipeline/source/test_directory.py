"""Directories planned and read, without Spark: everything once, whatever is cut, torn, replaced or gone."""

import gzip
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.partitions import consumed_partitions, read_seen
from tests.pipeline.conftest import NOW_MS, DirectoryWriter, positions
from tests.pipeline.local import plan, read_split
from tests.protocol.records.handmade import batch, record
from warmlog.client.blocking import Client
from warmlog.inspect.errors import InspectError, MissingDirectoryError
from warmlog.inspect.log_file import list_segments
from warmlog.pipeline.errors import DataLossError, PipelineError
from warmlog.pipeline.source.ranges import Bounds
from warmlog.protocol.records.layout import Codec
from warmlog.testing import Broker

WritePartition = Callable[..., DirectoryWriter]


@pytest.mark.parametrize("name", consumed_partitions())
def test_directories_that_kafka_wrote_say_what_kafkas_consumer_saw(kafka_fixtures: Path, name: str) -> None:
    seen = read_seen(name)
    assigned = json.dumps({seen.topic: [seen.partition]})
    found = plan(kafka_fixtures / name.partition("/")[0], topic=None, assign=assigned, includeHeaders="true").read()
    said = [
        (
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            row["timestampType"],
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"] or ()),
        )
        for row in found
    ]
    assert said == [
        (one.offset, one.timestamp, int(one.timestamp_type == "LogAppendTime"), one.key, one.value, one.headers)
        for one in seen.records
    ]


def test_a_partitions_own_directory_can_be_named(write_partition: WritePartition) -> None:
    writer = write_partition()
    writer.segment([b"a", b"b"])
    assert plan(writer.directory).values() == [b"a", b"b"]


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec_is_read(write_partition: WritePartition, codec: Codec) -> None:
    writer = write_partition()
    writer.segment(*[[b"%d" % at] * 50 for at in range(4)], compression=codec)
    assert plan(writer.directory.parent).values() == [b"%d" % at for at in range(4) for _ in range(50)]


@pytest.mark.parametrize(
    ("codec", "block", "is_read"),
    [
        (Codec.GZIP, gzip.compress(record(value=b"odd"), mtime=0) + bytes(30), True),
        (Codec.GZIP, gzip.compress(record(value=b"odd"), mtime=0)[:-8] + bytes(8), False),
    ],
    ids=["zeros after the block", "wrong checksum"],
)
def test_blocks_that_kafka_stores_are_read_and_others_handled_as_damage(
    write_partition: WritePartition, codec: Codec, block: bytes, is_read: bool
) -> None:
    writer = write_partition()
    log = writer.segment([b"a"])
    log.write_bytes(log.read_bytes() + batch(block, attributes=codec, base_offset=1))
    if is_read:
        assert plan(log.parent).values() == [b"a", b"odd"]
    else:
        assert plan(log.parent, onCorrupt="skip").values() == [b"a"]
        with pytest.raises(PipelineError, match="invalid gzip block"):
            plan(log.parent).values()


@given(data=st.data())
def test_splits_are_disjoint_and_together_what_was_asked_for(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    writer = DirectoryWriter(tmp_path_factory.mktemp("data"), interval=data.draw(st.integers(1, 400)))
    for _ in range(data.draw(st.integers(1, 3))):
        sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=12))
        writer.segment(*[[b"x" * 20] * size for size in sizes])
    end = writer.next_offset
    first = data.draw(st.integers(0, end))
    last = data.draw(st.integers(first, end))
    made = plan(
        writer.directory.parent,
        minPartitions=data.draw(st.integers(1, 9)),
        startingOffsets=json.dumps({"orders": {"0": first}}),
        endingOffsets=json.dumps({"orders": {"0": last}}),
    )
    assert made.offsets() == list(range(first, last))
    pieces = [piece for split in made.splits for piece in split.pieces]
    assert all(one.end_offset == two.first_offset for one, two in pairwise(pieces))


@given(data=st.data())
def test_no_split_has_more_records_than_it_may(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    writer = DirectoryWriter(tmp_path_factory.mktemp("data"), interval=200)
    for _ in range(2):
        writer.segment(*[[b"x"] * size for size in data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=9))])
    most = data.draw(st.integers(1, 40))
    made = plan(writer.directory.parent, maxRecordsPerPartition=most, minPartitions=data.draw(st.integers(1, 4)))
    parts = [[row["offset"] for row in read_split(split, made.options)] for split in made.splits]
    assert [offset for part in parts for offset in part] == list(range(writer.next_offset))
    assert all(0 < len(part) <= most for part in parts)


def test_splits_measure_about_the_same(write_partition: WritePartition) -> None:
    writer = write_partition()
    writer.segment(*[[b"x" * 90] * 3 for _ in range(300)])
    sizes = [split.size for split in plan(writer.directory.parent, minPartitions=8).splits]
    assert len(sizes) == 8
    assert max(sizes) < 1.2 * min(sizes)


@pytest.mark.parametrize("content", [b"", b"\0" * 4096, b"\xff" * 800, b"\0\0\0\1\0\0\0\1" * 90, b"\0\0\1"])
def test_an_offset_index_is_never_believed(write_partition: WritePartition, content: bytes) -> None:
    writer = write_partition()
    log = writer.segment(*[[b"%d" % at] * 3 for at in range(50)])
    log.with_suffix(".index").write_bytes(content)
    made = plan(writer.directory.parent, minPartitions=4, startingOffsets='{"orders":{"0":31}}')
    assert made.offsets() == list(range(31, 150))


@pytest.mark.parametrize("content", [b"", b"\0" * 1200, b"\0" * 8 + b"\0\0\0\x10", b"\xff" * 24])
def test_a_time_index_is_never_believed(write_partition: WritePartition, content: bytes) -> None:
    writer = write_partition()
    logs = [writer.segment(*[[b"%d" % at] for at in range(10)], first_ms=NOW_MS + 10 * one) for one in range(3)]
    for log in logs:
        log.with_suffix(".timeindex").write_bytes(content)
    assert plan(writer.directory.parent, startingTimestamp=NOW_MS + 15).offsets() == list(range(15, 30))


@given(cut=st.integers(1, 400), junk=st.binary(max_size=80))
def test_a_torn_end_is_not_there_yet(tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes) -> None:
    writer = DirectoryWriter(tmp_path_factory.mktemp("data"))
    log = writer.segment(*[[b"%d" % at] * 3 for at in range(12)])
    whole = log.read_bytes()
    ends = [*positions(log)[1:], len(whole)]
    log.write_bytes(whole[: len(whole) - cut] + junk)
    count = sum(end <= len(whole) - cut for end in ends)
    found = plan(writer.directory.parent).offsets()
    assert found == list(range(3 * count))


def test_a_damaged_batch_is_an_error_or_left_out_or_the_end(write_partition: WritePartition) -> None:
    writer = write_partition()
    log = writer.segment(*[[b"%d" % at] for at in range(20)])
    spoil(log, positions(log)[7] + 70)
    path = writer.directory.parent
    with pytest.raises(PipelineError, match=rf"{log}: damaged batch at position {positions(log)[7]}: the CRC"):
        plan(path).read()
    assert plan(path, onCorrupt="skip").offsets() == [*range(7), *range(8, 20)]
    assert plan(path, onCorrupt="stop", minPartitions=5).offsets() == list(range(7))
    writer.segment(*[[b"%d" % at] for at in range(6)])
    assert plan(path, onCorrupt="stop", minPartitions=5).offsets() == list(range(7))


def test_a_length_that_is_broken_is_passed_by_the_index(write_partition: WritePartition) -> None:
    writer = write_partition(interval=1)
    log = writer.segment(*[[b"%d" % at] for at in range(20)])
    spoil(log, positions(log)[7] + 9)
    found = plan(writer.directory.parent, onCorrupt="skip").offsets()
    assert found == [*range(7), *range(8, 20)]


def spoil(log: Path, position: int) -> None:
    data = bytearray(log.read_bytes())
    data[position] ^= 0x55
    log.write_bytes(data)


def test_offsets_and_times_choose_what_is_read(write_partition: WritePartition) -> None:
    writer = write_partition()
    for at in range(3):
        writer.segment(*[[b"%d" % one] for one in range(10)], first_ms=NOW_MS + at * 10)
    path = writer.directory.parent
    second = datetime.fromtimestamp(NOW_MS / 1000 + 0.01, UTC).isoformat()
    cases: list[tuple[dict[str, Any], range]] = [
        ({"startingOffsets": '{"orders":{"0":-2}}', "endingOffsets": '{"orders":{"0":-1}}'}, range(30)),
        ({"startingOffsets": "latest"}, range(0)),
        ({"startingTimestamp": NOW_MS + 25}, range(25, 30)),
        ({"startingTimestamp": second}, range(10, 30)),
        ({"endingTimestamp": NOW_MS + 3}, range(3)),
        ({"endingOffsetsByTimestamp": json.dumps({"orders": {"0": NOW_MS + 3}})}, range(3)),
        ({"startingTimestamp": NOW_MS + 99, "startingOffsetsByTimestampStrategy": "latest"}, range(0)),
        ({"startingOffsets": '{"orders":{"0":31}}', "failOnDataLoss": "false"}, range(0)),
    ]
    for options, expected in cases:
        assert plan(path, **options).offsets() == list(expected), options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingTimestamp": NOW_MS * 2}, r"no record at or past .* startingOffsetsByTimestampStrategy"),
        ({"startingOffsets": '{"orders":{"0":31}}'}, "offset 31 does not exist: the log ends at 1"),
        ({"endingOffsets": '{"orders":{"0":31}}'}, "offset 31 does not exist: the log ends at 1"),
        (
            {"startingOffsets": '{"orders":{"1":0}}'},
            "startingOffsets names orders-1, but .* are orders-0",
        ),
        ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"startingOffsets": "first"}, "option startingOffsets: 'first' is not"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "option endingOffsets"),
        ({"minPartitions": "0"}, "option minPartitions"),
        ({"columns": "value,size"}, "option columns"),
        ({"onCorrupt": "ignore"}, "option onCorrupt"),
        (
            {"startingOffsets": '{"orders":{"0":1}}', "endingOffsets": '{"orders":{"0":0}}'},
            "startingOffsets 1 of orders-0 is after endingOffsets 0",
        ),
        ({"startingTimestamp": "20", "endingTimestamp": "10"}, "startingTimestamp 20 is after endingTimestamp 10"),
        (
            {"startingOffsets": '{"orders":{"0":1}}', "endingTimestamp": NOW_MS},
            "orders-0: the start, offset 1, is after the end, offset 0",
        ),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "minOffsetsPerTrigger 9 is greater than max"),
        ({"maxTriggerDelay": "5m"}, "maxTriggerDelay needs minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "9", "maxTriggerDelay": "soon"}, "option maxTriggerDelay: 'soon' is not a time"),
        ({"maxRecordsPerPartition": "9", "onCorrupt": "stop"}, "onCorrupt=stop reads a partition in one split"),
        ({"topic": "payments"}, "has no topic payments"),
        ({"topic": None, "assign": '{"orders":[3]}'}, "no partition 3 of topic orders"),
        ({"topic": None, "assign": '{"orders":[]}'}, "option assign"),
        ({"topic": None, "assign": "{}"}, "option assign"),
        ({"topic": None}, "no topic: give option"),
        ({"subscribe": "orders"}, "topic and subscribe exclude each other"),
        ({"topic": None, "subscribePattern": "("}, "option subscribePattern"),
    ],
)
def test_what_is_wrong_is_said_clearly(write_partition: WritePartition, options: dict[str, Any], message: str) -> None:
    writer = write_partition()
    writer.segment([b"a"])
    with pytest.raises(PipelineError, match=message):
        plan(writer.directory.parent, **options)


def test_a_filter_on_times_leaves_earlier_segments_unread(write_partition: WritePartition) -> None:
    writer = write_partition()
    logs = [
        writer.segment(*[[b"%d" % one] for one in range(10)], first_ms=NOW_MS + ms) for ms in (0, 10, 20, 5)
    ]  # the last one is late
    bounds = Bounds(first_ms=NOW_MS + 15)
    made = plan(writer.directory.parent, bounds)
    assert made.splits[0].pieces[0].path == str(logs[1])
    assert made.splits[0].pieces[0].first_offset == 15
    spoil(logs[1], positions(logs[1])[5] + 70)
    assert plan(writer.directory.parent, bounds, onCorrupt="skip").splits[0].pieces[0].first_offset == 0
    assert plan(writer.directory.parent, Bounds(first_ms=NOW_MS + 1000)).splits == []


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(MissingDirectoryError, match="neither a data directory nor the directory of a partition"):
        plan(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InspectError, match="neither a data directory nor the directory of a partition"):
        plan(tmp_path)
    with pytest.raises(MissingDirectoryError, match="no such directory"):
        plan(tmp_path / "nowhere")


def test_the_log_start_and_what_is_flushed_are_taken_from_the_checkpoints(write_partition: WritePartition) -> None:
    writer = write_partition()
    writer.segment(*[[b"%d" % at] for at in range(10)])
    data_dir = writer.directory.parent
    (data_dir / "log-start-offset-checkpoint").write_text("0\n1\norders 0 3\n")
    (data_dir / "recovery-point-offset-checkpoint").write_text("0\n1\norders 0 8\n")
    assert plan(data_dir).offsets() == list(range(3, 10))
    assert plan(data_dir, readUpTo="flushed").offsets() == list(range(3, 8))
    assert plan(writer.directory).offsets() == list(range(3, 10))
    assert plan(writer.directory, readUpTo="flushed").offsets() == list(range(3, 8))
    with pytest.raises(DataLossError, match="offset 1 was deleted: the log starts at 3"):
        plan(data_dir, startingOffsets='{"orders":{"0":1}}')


def test_records_that_retention_took_before_they_were_read(write_partition: WritePartition) -> None:
    writer = write_partition()
    logs = [writer.segment([b"%d" % at] * 5) for at in range(3)]
    made = plan(writer.directory.parent)
    allowing = plan(writer.directory.parent, failOnDataLoss="false")
    os.unlink(logs[0])
    with pytest.raises(DataLossError, match="offsets 0 to 4 were deleted before they were read"):
        made.read()
    assert allowing.offsets() == list(range(5, 15))


def test_a_segment_that_compaction_replaced_is_read_by_offsets(write_partition: WritePartition) -> None:
    writer = write_partition()
    logs = [writer.segment(*[[b"%d" % at] * 2 for at in range(5)]) for _ in range(3)]
    made = plan(writer.directory.parent, minPartitions=6)
    merged = b"".join(log.read_bytes() for log in logs[:2])
    for log in logs[:2]:
        os.rename(log, f"{log}.deleted")
    cleaned = logs[0].with_name(f"{logs[0].name}.swap")
    cleaned.write_bytes(merged)
    assert made.offsets() == list(range(30))
    os.rename(cleaned, logs[0])
    assert made.offsets() == list(range(30))
    assert plan(writer.directory.parent).offsets() == list(range(30))


@pytest.mark.parametrize("moment", ["before its file is looked at", "beside the listing"])
def test_a_swap_that_gets_its_own_name_meanwhile_is_not_lost(
    write_partition: WritePartition, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    writer = write_partition()
    logs = [writer.segment(*[[b"%d" % at] * 2 for at in range(5)]) for _ in range(2)]
    made = plan(writer.directory.parent)
    swap = logs[0].with_name(f"{logs[0].name}.swap")
    os.rename(logs[0], swap)
    real_stat, real_scandir = os.stat, os.scandir

    def renaming_stat(path: str) -> os.stat_result:
        with suppress(FileNotFoundError):
            os.rename(swap, logs[0])
        return real_stat(path)

    @contextmanager
    def missing_scandir(directory: str) -> Iterator[list[os.DirEntry[str]]]:
        with real_scandir(directory) as entries:
            found = [entry for entry in entries if entry.name != swap.name]
        with suppress(FileNotFoundError):
            os.rename(swap, logs[0])
        yield found

    with monkeypatch.context() as patched:
        if moment == "beside the listing":
            patched.setattr(os, "scandir", missing_scandir)
        else:
            patched.setattr(os, "stat", renaming_stat)
        listed = list_segments(str(writer.directory))
    assert [segment.base_offset for segment in listed] == [0, 10]
    assert made.offsets() == list(range(20))


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_beside_a_broker_that_rolls_deletes_and_compacts(tmp_path: Path, codec: str) -> None:
    """Whoever reads again and again while keys are overwritten sees growing offsets, and what was written there."""
    settings = {"log.cleaner.backoff.ms": 50, "log.retention.check.interval.ms": 100, "log.initial.task.delay.ms": 0}
    with Broker(data_dir=tmp_path, settings=settings) as broker, Client(broker.native) as client:
        configs = {"cleanup.policy": "compact", "segment.bytes": "16384", "min.cleanable.dirty.ratio": "0.01"}
        client.create_topic(
            "orders", partitions=1, configs={**configs, "compression.type": codec.replace("none", "producer")}
        )
        done = threading.Event()

        def write() -> None:
            try:
                for one in range(60):
                    client.produce_many("orders", [(b"k%d" % (at % 17), b"%d" % (one * 50 + at)) for at in range(50)])
            finally:
                done.set()

        writer = threading.Thread(target=write)
        writer.start()
        reads = 0
        try:
            while not done.is_set() or not reads:
                rows = plan(tmp_path, minPartitions=4).read()
                offsets = [row["offset"] for row in rows]
                assert offsets == sorted(set(offsets))
                assert all(row["offset"] == int(row["value"]) for row in rows)
                reads += 1
        finally:
            writer.join()
        last = {row["key"]: row["value"] for row in plan(tmp_path).read()}
    assert last == {b"k%d" % key: b"%d" % (59 * 50 + max(range(key, 50, 17))) for key in range(17)}
