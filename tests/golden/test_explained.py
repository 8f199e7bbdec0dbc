"""The way of a fetch through directories that Kafka wrote: to every batch, by the entries that Kafka itself lists."""

from bisect import bisect_right

from tests.golden.partitions import GoldenPartition
from warmlog.broker.log.reads.explain import SEARCHES, explain_offset, explain_time
from warmlog.inspect.log_snapshot import read_log_snapshot
from warmlog.protocol.records.layout import BatchHeader

INTERVAL = 1 << 20  # some of the topics have few entries


def placed(golden: GoldenPartition) -> list[tuple[int, int, BatchHeader]]:
    """(segment, position, header) of every batch."""
    found = []
    for log in golden.files(".log"):
        content = log.read_bytes()
        of_log = [each for each in golden.batches() if each[0] == content]
        found += [(int(log.stem), position, header) for _, position, header in of_log]
    return found


def test_every_batch_is_found_by_the_entries_that_kafka_lists(golden: GoldenPartition) -> None:
    snapshot = read_log_snapshot(golden.directory, index_interval_bytes=INTERVAL)
    assert snapshot.end_fault is None
    for base, position, header in placed(golden)[-60:]:
        if header.last_offset < snapshot.log_start_offset:
            continue
        found = explain_offset(snapshot, header.last_offset, searches=SEARCHES)
        assert found.batch is not None
        assert (found.segment.base_offset, found.batch.place.position) == (base, position)
        assert found.index_fault is None
        listed = listed_entries(golden, base)
        expected = bisect_right(listed, (header.last_offset, 1 << 40)) - 1
        for lookup in found.lookups:
            assert lookup.slot == (expected if expected >= 0 else None)
            assert lookup.entries == len(listed)
            assert (lookup.offset, lookup.position) == (listed[expected] if expected >= 0 else (base, 0))


def listed_entries(golden: GoldenPartition, base: int) -> list[tuple[int, int]]:
    """The entries of a segment's offset index, by Kafka's own dump."""
    file = golden.directory / f"{base:020d}.index"
    if not file.stat().st_size:
        return []
    dumped = golden.dumped(file, r"^offset: (?P<offset>\d+) position: (?P<position>\d+)$")
    return [(int(entry["offset"]), int(entry["position"])) for entry in dumped]


def test_the_largest_time_of_each_segment_is_found(golden: GoldenPartition) -> None:
    """By the time indexes that Kafka wrote; nothing of a directory that is looked at changes."""
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in golden.directory.iterdir()}
    snapshot = read_log_snapshot(golden.directory, index_interval_bytes=INTERVAL)
    batches = [
        header
        for _, _, header in placed(golden)
        if header.max_timestamp >= 0 and header.last_offset >= snapshot.log_start_offset
    ]
    for timestamp in sorted({header.max_timestamp for header in batches})[-20:]:
        found = explain_time(snapshot, timestamp)
        assert found.timestamp is not None
        assert found.timestamp >= timestamp
        assert found.index_fault is None
        first = next(header for header in batches if header.max_timestamp >= timestamp)
        assert found.batch is not None
        assert found.batch.base_offset == first.base_offset
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in golden.directory.iterdir()} == before
