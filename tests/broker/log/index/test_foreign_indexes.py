"""Active segments whose indexes another broker wrote by another rule: checked at open, and rebuilt."""

from collections.abc import Callable
from pathlib import Path
from struct import Struct

import pytest

from tests.broker.log.conftest import START_MS, Bench
from warmlog.broker.log.directory.checkpoint import is_own_marker, write_clean_marker
from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.protocol.records.batch import headers

Batch = Callable[..., bytes]
OffsetsIn = Callable[..., list[int]]

OFFSET_ENTRY, TIME_ENTRY = Struct(">ii"), Struct(">qi")
APPEND = 4  # batches that a follower appended at a time


@pytest.fixture
def log(bench: Bench, batch: Batch) -> PartitionLog:
    """A log of 100 batches of three records in one segment, closed."""
    log = bench.open(segment_bytes=1 << 20)
    for number in range(100):
        log.appends.append(batch(3, timestamp=START_MS + 10 * number))
    log.close()
    return log


def write_as_a_follower(log_path: Path) -> None:
    """Write an entry for each append of several batches: the last offset of all, the position of the first."""
    found = list(headers(log_path.read_bytes()))
    appends = [found[at : at + APPEND] for at in range(0, len(found), APPEND)]
    entries = [OFFSET_ENTRY.pack(each[-1][1].last_offset, each[0][0]) for each in appends[1:-1]]
    last = found[-1]
    entries.append(OFFSET_ENTRY.pack(last[1].last_offset, last[0]))  # as it is where one batch came alone
    log_path.with_suffix(".index").write_bytes(b"".join(entries))


def write_times_of_records(log_path: Path) -> None:
    """Write time entries with the offset of a record inside its batch, but for the last one."""
    path = log_path.with_suffix(".timeindex")
    entries = list(TIME_ENTRY.iter_unpack(path.read_bytes()))
    changed = [(time, offset - 1) for time, offset in entries[:-1]] + entries[-1:]
    path.write_bytes(b"".join(TIME_ENTRY.pack(*entry) for entry in changed))


@pytest.mark.parametrize("write", [write_as_a_follower, write_times_of_records])
def test_indexes_of_another_rule_are_rebuilt_when_a_foreign_directory_is_opened(
    bench: Bench, log: PartitionLog, offsets_in: OffsetsIn, write: Callable[[Path], None]
) -> None:
    files = [bench.path(0, suffix) for suffix in (".log", ".index", ".timeindex")]
    own = [path.read_bytes() for path in files]
    write(files[0])
    opened = bench.open()
    assert opened.recovery is not None
    assert opened.recovery.rebuilt_indexes == (0,)
    assert (opened.recovery.truncated_bytes, opened.recovery.scanned_bytes) == (0, 0)
    assert offsets_in(opened) == list(range(300))
    firsts = [opened.reads.offset_for_time(START_MS + 10 * number) for number in range(100)]
    assert [found and found.offset for found in firsts] == list(range(0, 300, 3))
    opened.close()
    assert [path.read_bytes() for path in files] == own


def test_own_indexes_are_not_checked_entry_by_entry(bench: Bench, log: PartitionLog) -> None:
    write_as_a_follower(bench.path(0, ".log"))
    opened = bench.open(recovery_point=log.offsets.log_end_offset)
    assert opened.recovery is None
    with pytest.raises(IndexCorruptError):
        opened.reads.read(150, 100)


def test_sound_indexes_of_another_broker_stay(bench: Bench, log: PartitionLog) -> None:
    bench.disk.calls.clear()
    opened = bench.open()
    assert opened.recovery is None
    assert not [call for call in bench.disk.calls if call[0] == "rename"]


def test_a_damaged_batch_is_not_cut_when_the_indexes_before_it_are_rebuilt(bench: Bench, log: PartitionLog) -> None:
    path = bench.path(0, ".log")
    write_as_a_follower(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2 + 200] ^= 1  # inside a record
    path.write_bytes(content)
    assert bench.open().offsets.log_end_offset == 300
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("content", "is_own"),
    [
        (None, True),
        ('{"version":0,"brokerEpoch":1800000000000}', True),
        ('{"version":0,"brokerEpoch":7}', False),
        ("", False),
        ("\xff", False),
    ],
    ids=["this broker's", "the time of its stop", "Kafka's", "older Kafka's", "garbage"],
)
def test_a_clean_marker_says_whether_this_broker_wrote_it(tmp_path: Path, content: str | None, *, is_own: bool) -> None:
    marker = tmp_path / ".kafka_cleanshutdown"
    if content is None:
        write_clean_marker(Disk(), str(marker))
    else:
        marker.write_text(content, encoding="latin-1")
    assert is_own_marker(Disk(), str(marker)) is is_own
