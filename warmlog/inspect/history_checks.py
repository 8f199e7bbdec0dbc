"""What the batches of a whole log say about producers and transactions, and whether the files beside it say the same.

Owns: what must be true of `.snapshot` and `.txnindex` files, and of the offsets from one segment to the next. Must not
know: how batches are found; they are shown one by one, from the log's first to its last.

1. What cannot be told from damage is no finding: producers expire, retention takes their batches, compaction takes
   batches, markers and whole transactions. So a producer that a snapshot lacks is none, and a log with gaps is held
   to less than one without.
2. The files are read before the log: whatever they tell of must then be in it, also beside a running broker.
3. Once a batch could not be read, nothing that follows is held against the batches before.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from broker.log.errors import CorruptSnapshotError
from broker.log.index.transaction import ENTRY, VERSION, AbortedTransaction
from broker.log.io.directory_names import SNAPSHOT_SUFFIX
from broker.log.leader_epochs import UNDEFINED
from broker.log.producers.replay import apply_batch
from broker.log.producers.snapshot import ENTRY_SIZE, HEADER_SIZE, decode_snapshot
from broker.log.producers.state import NO_OFFSET, ProducerState
from protocol.records.layout import BatchHeader
from protocol.records.markers import EndMarker, Outcome
from warmlog.inspect.findings import Finding
from warmlog.inspect.paths import SegmentFile

MAX_GAPS = 100  # told of one log: who has more of them has read enough


class History:
    """The producers' states after the batches so far. `first_offset` and `next_offset` bound what was seen.

    `epochs`: the leader epochs of the batches, each with the first offset that has it.
    """

    def __init__(self) -> None:
        self.epochs: list[tuple[int, int]] = []
        self.states: dict[int, ProducerState] = {}
        self.first_offset: int | None = None
        self.next_offset = 0
        self.has_gaps = False
        self.is_whole = True
        self.was_compacted = False
        self._gaps: list[Finding] = []
        self._writing: set[int] = set()

    def meet(self, path: Path, position: int, header: BatchHeader, segment_base: int) -> None:
        """Look at where a batch begins, before it is added."""
        expected = segment_base if self.first_offset is None else self.next_offset
        if self.first_offset is None:
            self.first_offset = segment_base
        if header.base_offset > expected:
            self.has_gaps = True
            if len(self._gaps) < MAX_GAPS:
                what = f"offsets {expected} to {header.base_offset - 1} are missing"
                self._gaps.append(Finding(path, what, position))
        is_thinned = header.record_count != header.last_offset_delta + 1 or header.delete_horizon_ms is not None
        self.was_compacted |= is_thinned

    def add(self, header: BatchHeader, marker: EndMarker | None) -> None:
        """Let a batch change the states."""
        self.next_offset = max(self.next_offset, header.next_offset)
        if header.leader_epoch > (self.epochs[-1][0] if self.epochs else UNDEFINED):
            self.epochs.append((header.leader_epoch, header.base_offset))
        if header.producer_id < 0:
            return
        apply_batch(self.states, header, marker)
        if header.is_control:
            self._writing.discard(header.producer_id)
        elif header.record_count:
            self._writing.add(header.producer_id)

    def has_written(self, producer_id: int) -> bool:
        """Whether records of a producer were seen since its last marker."""
        return producer_id in self._writing

    def gaps(self) -> list[Finding]:
        """What is missing between the first offset and the last; nothing where compaction may have taken it."""
        return [] if self.was_compacted else self._gaps

    def open_since(self, producer_id: int) -> int:
        """Where a producer's open transaction began; -1 if none is open."""
        state = self.states.get(producer_id)
        return NO_OFFSET if state is None else state.transaction_first_offset

    def stable_after(self, header: BatchHeader) -> int:
        """The last stable offset once this marker ends its transaction."""
        others = (state for state in self.states.values() if state.producer_id != header.producer_id)
        open_since = [state.transaction_first_offset for state in others if state.transaction_first_offset >= 0]
        return min(open_since, default=header.next_offset)


class SnapshotChecks:
    """All `.snapshot` files of a log, read when this is made. Raises OSError."""

    def __init__(self, files: Sequence[SegmentFile], history: History) -> None:
        self._history = history
        self._damaged: list[Finding] = []
        self._coming: list[tuple[SegmentFile, list[ProducerState]]] = []
        for file in files:
            if file.suffix == SNAPSHOT_SUFFIX and not file.state:
                self._read(file)

    def _read(self, file: SegmentFile) -> None:
        try:
            self._coming.append((file, decode_snapshot(file.path.read_bytes())))
        except CorruptSnapshotError as error:
            self._damaged.append(Finding(file.path, str(error)))
        except FileNotFoundError:
            return  # a running broker has removed it meanwhile

    def form(self) -> Iterator[Finding]:
        """Those that cannot be believed."""
        yield from self._damaged

    def reach(self, offset: int) -> Iterator[Finding]:
        """The next batch begins at this offset, or the log ends there: hold what lies before against the log."""
        while self._coming and self._coming[0][0].base_offset <= offset:
            file, states = self._coming.pop(0)
            for slot, state in enumerate(states):
                for what in self._faults(file.base_offset, state):
                    place = HEADER_SIZE + slot * ENTRY_SIZE
                    yield Finding(file.path, f"producer {state.producer_id}: {what}", place)

    def end(self, log_end: int) -> Iterator[Finding]:
        """The log holds no more."""
        yield from self.reach(log_end)
        for file, _ in self._coming:
            yield Finding(file.path, f"lies past the end of the log at {log_end}")

    def _faults(self, offset: int, told: ProducerState) -> Iterator[str]:
        history, seen = self._history, self._history.states.get(told.producer_id)
        if max(told.last_offset, told.transaction_first_offset) >= offset:
            yield f"its last offset {told.last_offset} lies past the snapshot at {offset}"
        elif not history.is_whole:
            return
        elif seen is None:
            first = offset if history.first_offset is None else history.first_offset
            if not history.has_gaps and told.last_offset >= first:
                yield f"its last offset is said to be {told.last_offset}, but the log has no batch of it"
        elif history.has_gaps:
            if told.epoch == seen.epoch and told.last_offset < seen.last_offset:
                yield f"its last offset is said to be {told.last_offset}, but the log has {seen.last_offset}"
        elif last_batch(told) != last_batch(seen) and not self._lies_before(told, seen):
            yield f"epoch, sequence, offset, delta {last_batch(told)}, but the log has {last_batch(seen)}"

    def _lies_before(self, told: ProducerState, seen: ProducerState) -> bool:
        """Whether the log has a marker of the producer only, and what it ended lies before the log's start."""
        return told.epoch == seen.epoch and not seen.batches and told.last_offset < (self._history.first_offset or 0)


def last_batch(state: ProducerState) -> tuple[int, int, int, int]:
    """What a snapshot and a log must agree in: epoch, last sequence, last offset, offset delta."""
    delta = state.batches[-1].offset_delta if state.batches else 0
    return state.epoch, state.last_sequence, state.last_offset, delta


class TransactionIndexCheck:
    """`.txnindex` of one segment: each aborted transaction whose marker lies in it. No file is an empty one."""

    def __init__(self, path: Path, history: History, *, still: bool) -> None:
        """Read the file. `still`: nobody writes to it. Raises OSError."""
        self.path = path
        self._history = history
        self._still = still
        data = b""
        with suppress(FileNotFoundError):
            data = path.read_bytes()
        whole = len(data) // ENTRY.size * ENTRY.size
        self._rest = len(data) - whole
        rows = list(ENTRY.iter_unpack(data[:whole]))
        self._foreign = [slot for slot, row in enumerate(rows) if row[0] != VERSION]
        self._transactions = [AbortedTransaction(*row[1:]) for row in rows]
        self._coming = {entry.last_offset: (slot, entry) for slot, entry in enumerate(self._transactions)}

    def form(self) -> Iterator[Finding]:
        """Size, versions and order."""
        if self._rest and self._still:
            place = len(self._transactions) * ENTRY.size
            yield Finding(self.path, f"{self._rest} bytes at the end are no whole entry", place)
        for slot in self._foreign:
            yield self._finding(slot, "is of another version")
        for slot, (before, after) in enumerate(pairwise(self._transactions), start=1):
            if after.last_offset <= before.last_offset:
                yield self._finding(slot, "does not increase on the one before")

    def marker(self, header: BatchHeader, marker: EndMarker) -> Iterator[Finding]:
        """Hold the entry of an aborted transaction against its marker, before that is added to the history."""
        if marker.outcome is not Outcome.ABORT:
            return
        found = self._coming.pop(header.last_offset, None)
        if found is not None:
            slot, entry = found
            for what in self._faults(entry, header):
                yield self._finding(slot, what)
        elif self._still and self._history.is_whole and self._history.has_written(header.producer_id):
            what = f"no entry for the transaction that producer {header.producer_id} aborted"
            yield Finding(self.path, f"{what} at offset {header.last_offset}")

    def end(self) -> Iterator[Finding]:
        """The segment holds no more."""
        for slot, entry in self._coming.values():
            yield self._finding(slot, f"no transaction was aborted at offset {entry.last_offset}")

    def _faults(self, entry: AbortedTransaction, header: BatchHeader) -> Iterator[str]:
        history = self._history
        if entry.producer_id != header.producer_id:
            yield f"producer {entry.producer_id}, but the marker at {entry.last_offset} is of {header.producer_id}"
        elif history.is_whole:
            yield from self._first_offset_faults(entry, history.open_since(header.producer_id))
            expected, found = history.stable_after(header), entry.last_stable_offset
            is_early = history.has_gaps or found < (history.first_offset or 0)
            if found != expected and not (is_early and 0 <= found <= header.next_offset):
                yield f"last stable offset {found}, but by the log it was {expected}"

    def _first_offset_faults(self, entry: AbortedTransaction, seen: int) -> Iterator[str]:
        """What was before the log's start, or was compacted, has not been seen."""
        first = entry.first_offset
        if seen >= 0 and (first > seen or (first < seen and not self._may_be_gone(first))):
            yield f"first offset {first}, but the log has {seen}"
        elif seen < 0 and not self._may_be_gone(first):
            yield f"first offset {first}, but the log has nothing of that transaction"

    def _may_be_gone(self, offset: int) -> bool:
        return offset >= 0 and (self._history.has_gaps or offset < (self._history.first_offset or 0))

    def _finding(self, slot: int, what: str) -> Finding:
        return Finding(self.path, f"entry {slot}: {what}", slot * ENTRY.size)
