"""The states of one partition of `__share_group_state`, for one term of that partition.

Invariants:
1. A state changes when its record is appended, so that the next request sees it; an answer that depends on it waits
   until that record and earlier ones are stored. If one is not, the state reverts to the last stored one, and all
   waiting answers of the share-partition are failures.
2. No record before the one that `redundant_before` returns is needed by a later load.

Source: org.apache.kafka.coordinator.share.ShareCoordinatorShard, ShareCoordinatorOffsetsManager.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from warmlog.broker.coordinator.term import Term
from warmlog.broker.share.state.rules import RefusedError, ShareState, replayed
from warmlog.broker.share.state.topic import StateRow
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.kafka.share_state_records import SharePartitionKey, ShareRecord, ShareSnapshot, encode_record
from warmlog.protocol.records.builder import record_size_bound
from warmlog.protocol.records.layout import HEADER_SIZE

FREED_PER_STEP = 500
VISITED_PER_STEP = 2_000
STATE_BYTES = 700  # bytes of a state and its entry, with an empty list of batches
BATCH_BYTES = 180

_SEQUENCE = itemgetter(0)

#: Called with NONE once earlier records are stored, or with an error.
Waiter: TypeAlias = Callable[[ErrorCode], None]


class StateEntry:
    """A share-partition. `state` follows from the last appended record, `stored` from the last stored one."""

    __slots__ = ("_appended", "_broken", "_settled", "_waiting", "key", "size", "snapshot_offset", "state", "stored")

    def __init__(self, key: SharePartitionKey) -> None:
        """Begin without a state."""
        self.key = key
        self.state: ShareState | None = None
        self.stored: ShareState | None = None
        self.snapshot_offset = -1  # offset of the first needed record
        self.size = 0
        self._appended = self._settled = 0
        self._broken = 0  # up to this one, states depend on a record that was not stored
        self._waiting: list[tuple[int, Waiter]] = []  # short; a deque would take half of an entry's memory

    @property
    def is_changing(self) -> bool:
        """Whether a record of it is being appended."""
        return self._appended > self._settled

    def appended(self, state: ShareState | None) -> None:
        """Set the state after a record that is about to be appended."""
        self.state = state
        self._appended += 1

    def wait(self, waiter: Waiter) -> None:
        """Call a function when the records appended so far are stored, or one of them is not."""
        self._waiting.append((self._appended, waiter))

    def succeed(self, change: "Change", replay: Callable[[ShareState | None], ShareState | None]) -> None:
        """Record that the next record is stored. `replay` returns the state after it."""
        self._settled += 1
        is_broken = self._settled <= self._broken
        self.stored = replay(self.stored) if is_broken else change.state
        if is_broken and not self.is_changing:
            self.state = self.stored
        count = bisect_right(self._waiting, self._settled, key=_SEQUENCE)
        if count:
            ready, self._waiting = self._waiting[:count], self._waiting[count:]
            for _, waiter in ready:
                waiter(ErrorCode.NONE)

    def fail(self, error: ErrorCode) -> None:
        """Record that the next record was not stored."""
        self._settled += 1
        self._broken = self._appended
        self.state = self.stored
        waiting, self._waiting = self._waiting, []
        for _, waiter in waiting:
            waiter(error)


class Change(NamedTuple):
    """A record being appended, with its key and value as bytes and the state after it.

    `record` is None for a tombstone.
    """

    entry: StateEntry
    record: ShareRecord | None
    state: ShareState | None
    row: tuple[bytes, bytes | None]


class ShareStateShard:
    """The states of one log partition. Belongs to the event loop."""

    __slots__ = ("_last_offset", "_updates_per_snapshot", "bytes", "entries", "term")

    def __init__(self, term: Term, updates_per_snapshot: int) -> None:
        """Begin without states."""
        self.term = term
        self.entries: dict[SharePartitionKey, StateEntry] = {}
        self.bytes = 0  # estimated bytes of the states
        self._updates_per_snapshot = updates_per_snapshot
        self._last_offset = 0  # offset of the latest snapshot or tombstone

    def change(self, entry: StateEntry, record: ShareRecord | None) -> Change:
        """Change a state by a record, which the caller appends; None deletes the state.

        `entry` belongs to this shard or is new. Raises RefusedError for a record that no batch can hold.
        """
        try:
            row = encode_record(entry.key, record)
        except MalformedError as error:
            raise RefusedError(ErrorCode.INVALID_REQUEST, str(error)) from None
        if record_size_bound(*row) > self.term.partition.log.config.max_message_bytes - HEADER_SIZE:
            raise RefusedError(ErrorCode.INVALID_REQUEST, "the state is too large for a record")
        state = self._after(entry.state, record)
        self.entries.setdefault(entry.key, entry)
        entry.appended(state)
        self._measure(entry)
        return Change(entry, record, state, row)

    def settle(self, change: Change, offset: int | None, error: ErrorCode) -> None:
        """Apply the outcome of the next record of a share-partition: its offset, or why it was not stored."""
        entry = change.entry
        if offset is None:
            entry.fail(error or ErrorCode.NOT_COORDINATOR)
            self._measure(entry)
        else:
            entry.succeed(change, lambda state: self._after(state, change.record))
            self._note_stored(entry, change.record, offset)

    def replay(self, _name: str, row: StateRow, offset: int) -> None:
        """Apply the next record of a share-partition."""
        entry = self.entries.get(row.key)
        if entry is None:
            entry = self.entries[row.key] = StateEntry(row.key)
        entry.state = entry.stored = self._after(entry.state, row.record)
        self._note_stored(entry, row.record, offset)

    def replay_pending(self, producer_id: int, name: str, row: StateRow, offset: int) -> None:
        """Ignore a transactional record: no coordinator writes states in transactions."""

    def _after(self, state: ShareState | None, record: ShareRecord | None) -> ShareState | None:
        return None if record is None else replayed(state, record, self._updates_per_snapshot)

    def _note_stored(self, entry: StateEntry, record: ShareRecord | None, offset: int) -> None:
        if record is None or isinstance(record, ShareSnapshot):
            entry.snapshot_offset = self._last_offset = offset
        elif entry.snapshot_offset < 0:
            entry.snapshot_offset = offset
        self._measure(entry)

    def _measure(self, entry: StateEntry) -> None:
        """Count the memory of an entry, and drop it if it has no state and none is being appended."""
        state = entry.state or entry.stored
        size = 0 if state is None else STATE_BYTES + len(entry.key.group) + BATCH_BYTES * len(state.content.batches)
        self.bytes += size - entry.size
        entry.size = size
        if state is None and not entry.is_changing and self.entries.get(entry.key) is entry:
            del self.entries[entry.key]

    def redundant_before(self) -> Iterator[int | None]:
        """Yield the offset of the first needed record, after steps that yield None."""
        offset = self._last_offset
        for number, entry in enumerate(list(self.entries.values()), 1):
            if entry.stored is not None:
                offset = min(offset, entry.snapshot_offset)
            if number % VISITED_PER_STEP == 0:
                yield None
        yield offset

    def free(self) -> Iterator[None]:
        """Free the states in steps."""
        while self.entries:
            for _ in range(min(len(self.entries), FREED_PER_STEP)):
                self.entries.popitem()
            yield
