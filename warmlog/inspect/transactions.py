"""Find the aborted and open transactions of a partition's directory.

1. The transaction indexes of sealed segments list aborted transactions. The last segment's index is written after the
log, so the headers and markers of the log are read instead, from the newest producer snapshot at the start of a
segment.
2. A transaction that is open at the end of the readable part bounds the last stable offset (LSO).
3. Segments with a torn transaction index, or one of another version, are scanned as well.

Source: org.apache.kafka.storage.internals.log.UnifiedLog.collectAbortedTransactions, KIP-98.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from warmlog.broker.log.errors import CorruptSnapshotError, IndexCorruptError
from warmlog.broker.log.index.transaction import read_aborted
from warmlog.broker.log.io.directory_names import LOG_SUFFIX, SNAPSHOT_SUFFIX, TRANSACTION_INDEX_SUFFIX, segment_path
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.producers.snapshot import decode_snapshot
from warmlog.inspect.log_file import LogFile, Segment
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records.batch import BatchHeader
from warmlog.protocol.records.layout import TRANSACTIONAL_BIT
from warmlog.protocol.records.markers import EndMarker, Outcome, end_marker
from warmlog.protocol.records.reader import decode_batch

OpenTransactions = dict[int, int]  # producer id to the first offset of its open transaction


class Aborted(NamedTuple):
    """An aborted transaction of a producer, from its first offset to its marker's."""

    producer_id: int
    first_offset: int
    last_offset: int


class AbortedBatches:
    """Determines whether a batch was aborted (`header in aborted`), with one bisection per batch."""

    def __init__(self, aborted: Iterable[Aborted]) -> None:
        self._of: dict[int, list[Aborted]] = {}
        for transaction in aborted:
            self._of.setdefault(transaction.producer_id, []).append(transaction)
        for listed in self._of.values():
            listed.sort(key=_first_offset)

    def __contains__(self, header: BatchHeader) -> bool:
        listed = self._of.get(header.producer_id)
        if listed is None or not header.attributes & TRANSACTIONAL_BIT:
            return False
        before = bisect_right(listed, header.base_offset, key=_first_offset) - 1  # at most one is open per producer
        return before >= 0 and header.base_offset <= listed[before].last_offset


def _first_offset(aborted: Aborted) -> int:
    return aborted.first_offset


class Transactions(NamedTuple):
    """The aborted transactions, and the first offset of the earliest open one, or None."""

    aborted: tuple[Aborted, ...]
    first_open: int | None


def find_transactions(directory: str, segments: Sequence[Segment], end_position: int) -> Transactions:
    """Find a partition's transactions up to a position in its last segment. Raises SegmentGoneError, OSError."""
    indexed, count = _indexed(segments)
    first, open_since = _state_before(directory, segments, count)
    aborted = [transaction for each in indexed[:first] for transaction in each]
    for segment in segments[first:]:
        end = end_position if segment is segments[-1] else segment.size
        aborted += _scanned(segment, end, open_since)
    return Transactions(tuple(aborted), min(open_since.values(), default=None))


def _indexed(segments: Sequence[Segment]) -> tuple[list[list[Aborted]], int]:
    """Read the transaction indexes of the sealed segments, up to the first unreadable one; also return their number."""
    indexed = []
    for segment in segments[:-1]:
        stem, _, state = segment.path.rpartition(LOG_SUFFIX)
        try:
            entries = read_aborted(Disk(), f"{stem}{TRANSACTION_INDEX_SUFFIX}{state}", segment.base_offset)
        except IndexCorruptError:
            break
        indexed.append([Aborted(entry.producer_id, entry.first_offset, entry.last_offset) for entry in entries])
    return indexed, len(indexed)


def _state_before(directory: str, segments: Sequence[Segment], most: int) -> tuple[int, OpenTransactions]:
    """Return (segment, open transactions at its beginning) for the newest usable snapshot of the first `most`."""
    for at in range(most, 0, -1):
        path = segment_path(directory, segments[at].base_offset, SNAPSHOT_SUFFIX)
        with suppress(FileNotFoundError, CorruptSnapshotError):
            states = decode_snapshot(Path(path).read_bytes())
            first_offsets = {state.producer_id: state.transaction_first_offset for state in states}
            return at, {producer: offset for producer, offset in first_offsets.items() if offset >= 0}
    return 0, {}


def _scanned(segment: Segment, end: int, open_since: OpenTransactions) -> Iterator[Aborted]:
    """Yield the transactions whose abort markers lie in a segment; update `open_since` to its end.

    A damaged batch ends the scan; reading will report it.
    """
    with segment.open() as file, suppress(ProtocolError):
        for position, header in file.headers(0, end):
            if not header.attributes & TRANSACTIONAL_BIT:
                continue
            if not header.is_control:
                open_since.setdefault(header.producer_id, header.base_offset)
                continue
            marker = _marker(file, position, header)
            if marker is None:
                continue
            first = open_since.pop(header.producer_id, None)
            if marker.outcome is Outcome.ABORT and first is not None:
                yield Aborted(header.producer_id, first, header.last_offset)


def _marker(file: LogFile, position: int, header: BatchHeader) -> EndMarker | None:
    buffer, start = file.batch(position, header)
    return end_marker(decode_batch(buffer, start, header))
