"""Rebuild transaction indexes from the log.

After an unclean stop, the indexes of segments past the recovery point are rebuilt from the batches that the scan found.
Entries below the recovery point were synced with their log and are kept; transactions that were open there are known
from a producer snapshot. `log repair` rebuilds the indexes of a whole log.

Transactions without remaining batches, because the log start offset moved or compaction removed them, get no entry:
readers have nothing to skip.

Source: org.apache.kafka.storage.internals.log.LogSegment.recover, ProducerStateManager.completeTxn.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from typing import NamedTuple

from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.index.transaction import AbortedTransaction, encode_aborted, read_aborted
from warmlog.broker.log.io.directory_names import TRANSACTION_INDEX_SUFFIX
from warmlog.broker.log.io.disk import read_file, replace_file
from warmlog.broker.log.producers.replay import Scanned, apply_batch, read_marker, states_at
from warmlog.broker.log.producers.snapshot import ProducerSnapshots
from warmlog.broker.log.producers.state import ProducerState
from warmlog.broker.log.segments.log_scan import walk_readable
from warmlog.broker.log.segments.segment import Segment
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records.layout import BatchHeader
from warmlog.protocol.records.markers import EndMarker, Outcome
from warmlog.protocol.records.record import MAX_INT64

Batches = Iterable[tuple[int, BatchHeader]]  # position in the segment's file, header


def rebuild_transaction_indexes(segments: Sequence[Segment]) -> list[int]:
    """Rebuild the transaction indexes that are wrong; return the base offsets of their segments.

    `segments` are all of a log's, oldest first; the log must not be in use. A segment without aborted transactions has
    no index file. Blocking. Raises OSError.
    """
    transactions = _Transactions({})
    rebuilt = []
    for segment in segments:
        if _replace(segment, transactions.aborted_in(segment, _batches(segment))):
            rebuilt.append(segment.base_offset)
        segment.close()
    return rebuilt


def rebuild_sealed(snapshots: ProducerSnapshots, segments: Sequence[Segment], segment: Segment) -> bool:
    """Rebuild one sealed segment's transaction index if it is wrong; return whether it was. Blocking. Raises OSError.

    `segments` are all of the log's; the log may be in use.
    """
    transactions = _Transactions(states_at(snapshots, segments, segment.base_offset))
    return _replace(segment, transactions.aborted_in(segment, _batches(segment)))


class Rebuilt(NamedTuple):
    """The base offsets of segments whose index was wrong; transactions below `stable_offset` ended before the scan."""

    base_offsets: list[int]
    stable_offset: int


def rebuild_scanned(snapshots: ProducerSnapshots, segments: Sequence[Segment], scanned: Scanned) -> Rebuilt:
    """Rebuild the transaction indexes of scanned segments that are wrong.

    `segments` are all of the log's. Entries of transactions that ended before the scan began are kept; if these are
    damaged, the whole index of that segment is rebuilt. Blocking. Raises OSError.
    """
    begin = scan_start = scanned.from_offset
    kept = list[AbortedTransaction]()
    missed: Batches = ()
    if scanned.trails:
        first = scanned.trails[0][0]
        try:
            kept = _entries_below(first, scan_start)
        except IndexCorruptError:
            begin = first.base_offset
            missed = (each for each in _batches(first) if each[1].base_offset < scan_start)
    transactions = _Transactions(states_at(snapshots, segments, begin))
    stable_offset = min(begin, transactions.first_offset())
    rebuilt = []
    for segment, trail in scanned.trails:
        met = ((at, header) for at, header in trail if header.base_offset >= scan_start)
        if _replace(segment, [*kept, *transactions.aborted_in(segment, chain(missed, met))]):
            rebuilt.append(segment.base_offset)
        kept, missed = [], ()
        segment.close()
    return Rebuilt(rebuilt, stable_offset)


def _entries_below(segment: Segment, offset: int) -> list[AbortedTransaction]:
    """Return the entries of transactions that ended below an offset. Raises IndexCorruptError, OSError."""
    entries = read_aborted(segment.disk, segment.path(TRANSACTION_INDEX_SUFFIX), segment.base_offset, torn_end=True)
    below = [entry for entry in entries if entry.last_offset < offset]
    if entries[: len(below)] != below or any(
        after.last_offset <= before.last_offset for before, after in pairwise(below)
    ):
        raise IndexCorruptError(segment.base_offset, "its transaction index is not in order")
    if any(entry.last_offset < max(segment.base_offset, entry.first_offset + 1) for entry in below):
        raise IndexCorruptError(segment.base_offset, "its transaction index has an entry that no marker can have")
    return below


def _batches(segment: Segment) -> Batches:
    return walk_readable(segment.reader.descriptor(), 0, segment.size)


def _replace(segment: Segment, aborted: Iterable[AbortedTransaction]) -> bool:
    """Write a segment's transaction index unless it already holds these entries; return whether it was written."""
    path, content = segment.path(TRANSACTION_INDEX_SUFFIX), encode_aborted(aborted)
    try:
        stored = read_file(segment.disk, path)
    except FileNotFoundError:
        stored = b""
    if content == stored:
        return False
    if content:
        replace_file(segment.disk, path, content, sync=True)
    else:
        segment.disk.unlink(path)
    segment.forget_transactions()
    return True


class _Transactions:
    """Tracks open transactions from batch to batch. `states`: the producer states before the first batch."""

    def __init__(self, states: dict[int, ProducerState]) -> None:
        self._states = states
        self._open = {
            producer_id: state.transaction_first_offset
            for producer_id, state in states.items()
            if state.transaction_first_offset >= 0
        }

    def first_offset(self) -> int:
        """Return the first offset of the oldest open transaction; MAX_INT64 without one."""
        return min(self._open.values(), default=MAX_INT64)

    def aborted_in(self, segment: Segment, batches: Batches) -> list[AbortedTransaction]:
        """Return the transactions that these batches abort, in order. Raises OSError."""
        aborted: list[AbortedTransaction] = []
        with suppress(ProtocolError):  # an unreadable marker: the batches after it are not evaluated
            for position, header in batches:
                if header.producer_id >= 0:
                    marker = read_marker(segment, position, header) if header.is_control else None
                    aborted += self._aborted_by(header, marker)
                    self._apply(header, marker)
        return aborted

    def _apply(self, header: BatchHeader, marker: EndMarker | None) -> None:
        apply_batch(self._states, header, marker)
        state = self._states.get(header.producer_id)
        if state is not None and state.transaction_first_offset >= 0:
            self._open[header.producer_id] = state.transaction_first_offset
        else:
            self._open.pop(header.producer_id, None)

    def _aborted_by(self, header: BatchHeader, marker: EndMarker | None) -> Iterator[AbortedTransaction]:
        first_offset = self._open.get(header.producer_id)
        if marker is not None and marker.outcome is Outcome.ABORT and first_offset is not None:
            others = (offset for producer_id, offset in self._open.items() if producer_id != header.producer_id)
            stable = min(others, default=header.next_offset)
            yield AbortedTransaction(header.producer_id, first_offset, header.last_offset, stable)
