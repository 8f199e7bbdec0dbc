"""The idempotent producers that one log knows: at work as objects, at rest as packed bytes, and forgotten when idle.

A partition may be written by a handful of producers for months, or by a new one for every message. Each is remembered
for `producer.id.expiration.ms` after its last batch, so that a batch that is sent again is recognized. What that takes:

    active, recent   touched since the last turn, or in the one before: `ProducerState`, 0.4 to 1.2 KB each, and no more
                     than 2 x MAX_ACTIVE
    idle             packed, about 0.2 KB each, oldest first within each bucket

A turn comes when MAX_ACTIVE producers are active, and with time (`age`): what was recent is packed, what was active is
recent. A producer that comes back is unpacked, and is active again.

A snapshot needs the states of one moment, and writing it takes long. So `capture` shares the buckets, and whoever
changes a shared bucket copies it first: some hundred entries, whatever the ids are.

Invariants:
1. A producer is in one of active, recent and idle. `planned` holds the states of those with plans that are not
   committed yet, each on top of the one before; `commit` moves one over, `abandon` forgets them all.
2. A producer whose last batch is younger than `warmlog.producers.min.idle.ms`, by this broker's clock, is not
   forgotten: a batch of it may still be sent again. One that was read from a snapshot at startup counts as active then.
3. All logs share a `ProducerBudget`. Where it is used up, the first batch of a producer that the log does not know is
   refused; nothing of that producer is in the log, so nothing can be stored twice.
4. One with an open transaction is never forgotten.

Source: org.apache.kafka.storage.internals.log.ProducerStateManager. Kafka bounds by time only; KIP-936 is about the
memory that clients have filled by making a producer for each message.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from random import SystemRandom
from struct import Struct
from threading import Lock
from typing import Protocol

from broker.log.errors import TooManyProducersError
from broker.log.producers.snapshot import ENTRY, ENTRY_SIZE, NO_BATCH, encode_entry
from broker.log.producers.state import NO_OFFSET, ProducerBatch, ProducerState, followed
from broker.log.producers.transactions import (
    Origin,
    TransactionMarker,
    UnstableTransactions,
    VerificationGuards,
    ended_by,
)
from protocol.records.layout import TRANSACTIONAL_BIT, BatchHeader

MAX_ACTIVE = 500  # of one log; a turn packs as many, in a millisecond, and copies as many shared buckets at most
MAX_GIVEN_ID = 1 << 62  # no broker comes to that, but a client can write any id: above the largest, none can be given
DEFAULT_LIMIT = 500_000
ENTRIES_PER_PIECE = 1000  # of a snapshot
_BUCKETS = 2048
_GROUP_BITS = 8  # ids that were given one after the other share a bucket: a log with few producers has few buckets
_SCATTER = SystemRandom().getrandbits(61) | 1  # so that nobody can choose ids that are all in one bucket
_PRIME = (1 << 61) - 1

# An idle producer: its entry as in a snapshot, since when it is idle (ms), the timestamp of its last batch; then the
# batches before that one, oldest first.
_REST = Struct(">qq")
_BATCH = Struct(">iqiq")
_SINCE = Struct(">q")
_LAST_TIMESTAMP = 26  # where it is in an entry


class ProducerBudget:
    """How many producers the logs of a broker may know together. For any thread."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self.count = 0
        self.refused = 0  # batches, of others
        self._lock = Lock()

    @property
    def is_full(self) -> bool:
        """Whether no further producer may come."""
        return self.count >= self.limit

    def add(self, count: int) -> None:
        """Count so many more, or fewer."""
        with self._lock:
            self.count += count


class Extent(Protocol):
    """What `append.BatchExtent` says of a batch: its last offset, its largest timestamp (ms)."""

    last_offset: int
    max_timestamp: int


class CapturedProducers:
    """The producers of a log as they were at one moment; for any thread."""

    def __init__(self, states: Sequence[ProducerState], buckets: Sequence[dict[int, bytes]]) -> None:
        self._states = states
        self._buckets = buckets

    def __len__(self) -> int:
        return len(self._states) + sum(map(len, self._buckets))

    def __iter__(self) -> Iterator[ProducerState]:
        yield from self._states
        for bucket in self._buckets:
            yield from map(_unpack, bucket.values())

    def pieces(self) -> Iterator[bytes]:
        """Return the entries for a snapshot, some at a time."""
        entries: list[bytes] = [encode_entry(state) for state in self._states]
        for bucket in self._buckets:
            for packed in bucket.values():
                entries.append(packed[:ENTRY_SIZE])
                if len(entries) >= ENTRIES_PER_PIECE:
                    yield b"".join(entries)
                    entries.clear()
        yield b"".join(entries)


class Producers:
    """The producers that one log knows. Belongs to the event loop, once the log is open; memory only."""

    __slots__ = (
        "_active",
        "_buckets",
        "_budget",
        "_clock",
        "_idle_count",
        "_planned",
        "_recent",
        "_shared",
        "_turned_ms",
        "guards",
        "largest_id",
        "open_transactions",
        "unstable",
    )

    largest_id: int  # that a broker may have given; -1 if there is none

    def __init__(self, clock: Callable[[], int] = lambda: 0, budget: ProducerBudget | None = None) -> None:
        """None yet. `clock` gives ms since the epoch."""
        self._clock = clock
        self._budget = budget or ProducerBudget()
        self._active: dict[int, ProducerState] = {}
        self._recent: dict[int, ProducerState] = {}
        self._buckets: dict[int, dict[int, bytes]] = {}  # of idle ones, oldest first
        self._shared: set[int] = set()  # buckets that somebody has captured
        self._idle_count = 0
        self._planned: dict[int, ProducerState] = {}
        self.open_transactions: OrderedDict[int, int] = OrderedDict()  # by producer id, ordered by their first offsets
        self.unstable = UnstableTransactions()
        self.guards = VerificationGuards()
        self._turned_ms = clock()
        self.largest_id = -1

    # -- what is known -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._active) + len(self._recent) + self._idle_count

    def get(self, producer_id: int) -> ProducerState | None:
        """Return the state of a producer as the log holds it; None if it is not known."""
        state = self._active.get(producer_id) or self._recent.get(producer_id)
        if state is None:
            bucket = self._buckets.get(_bucket_of(producer_id))
            packed = None if bucket is None else bucket.get(producer_id)
            state = None if packed is None else _unpack(packed)
        return state

    def capture(self) -> CapturedProducers:
        """Return the producers as the log holds them now."""
        self._shared.update(self._buckets)
        return CapturedProducers([*self._active.values(), *self._recent.values()], list(self._buckets.values()))

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return where the oldest transaction begins that is open or whose marker is not below the high watermark."""
        first_open = next(iter(self.open_transactions.values()), None)
        first_ended = self.unstable.first_offset(high_watermark) if self.unstable else None
        if first_open is None or first_ended is None:
            return first_ended if first_open is None else first_open
        return min(first_open, first_ended)

    # -- appends -------------------------------------------------------------------------------------------------------

    def find_duplicates(self, checked: Sequence[tuple[int, BatchHeader]]) -> list[ProducerBatch]:
        """Return those batches, from the first one on, that the log has, or will have once plans are committed."""
        found = []
        for _, header in checked:
            state = self._latest(header.producer_id)
            if state is None or state.expects(header.base_sequence) or (batch := state.find(header)) is None:
                break
            found.append(batch)
        return found

    def plan(
        self,
        checked: Sequence[tuple[int, BatchHeader]],
        extents: Sequence[Extent],
        *,
        origin: Origin = Origin.CLIENT,
        guard: int = 0,
    ) -> Sequence[ProducerState]:
        """Check batches that are no duplicates against their producers; return the new states, for `commit`.

        `guard` allows a client to begin a transaction; see `VerificationGuards`. Raises what `followed` does, and
        TooManyProducersError: then nothing is planned.
        """
        has_sequence = origin is Origin.CLIENT
        if len(checked) == 1 and (header := checked[0][1]).producer_id >= 0:  # half the time of what follows
            extent = extents[0]
            current = self._latest(header.producer_id)
            if current is None:
                self._check_room(header)
            state = followed(
                current,
                header,
                extent.last_offset,
                extent.max_timestamp,
                may_begin=self._may_begin(header, origin, guard),
                has_sequence=has_sequence,
            )
            self._planned[header.producer_id] = state
            self._close_guards((state,))
            return (state,)
        states: dict[int, ProducerState] = {}
        for (_, header), extent in zip(checked, extents, strict=True):
            producer_id = header.producer_id
            if producer_id >= 0:
                current = states.get(producer_id) or self._latest(producer_id)
                if current is None:
                    self._check_room(header)
                states[producer_id] = followed(
                    current,
                    header,
                    extent.last_offset,
                    extent.max_timestamp,
                    may_begin=self._may_begin(header, origin, guard),
                    has_sequence=has_sequence,
                )
        self._planned.update(states)
        self._close_guards(tuple(states.values()))
        return tuple(states.values())

    def _may_begin(self, header: BatchHeader, origin: Origin, guard: int) -> bool:
        if not header.attributes & TRANSACTIONAL_BIT:
            return False
        return origin is Origin.COORDINATOR or self.guards.is_valid(header.producer_id, guard)

    def _close_guards(self, states: Sequence[ProducerState]) -> None:
        for state in states:
            if state.transaction_first_offset >= 0:
                self.guards.close(state.producer_id)

    def plan_marker(self, marker: TransactionMarker, timestamp: int) -> ProducerState:
        """Check a marker against its producer; return the new state, for `commit`.

        A producer that is not known becomes known, even if the budget is used up: its number of markers is the
        coordinator's to bound. Raises what `ended_by` does: then nothing is planned.
        """
        state = ended_by(self._latest(marker.producer_id), marker, timestamp)
        self._planned[marker.producer_id] = state
        self.guards.close(marker.producer_id)
        return state

    def _check_room(self, header: BatchHeader) -> None:
        budget = self._budget
        if budget.is_full:
            budget.refused += 1
            raise TooManyProducersError(
                f"no room for producer {header.producer_id}: {budget.count:,} idempotent producers of all partitions"
                " have written of late (make producers less often, or raise warmlog.producers.max)"
            )

    def commit(self, states: Sequence[ProducerState]) -> None:
        """Take over what was planned: it is in the log."""
        planned = self._planned
        for state in states:
            producer_id = state.producer_id
            self[producer_id] = state
            if planned.get(producer_id) is state:
                del planned[producer_id]

    def commit_marker(self, state: ProducerState, marker_offset: int) -> None:
        """Take over the state after a marker, which is in the log at this offset."""
        first_offset = self.open_transactions.get(state.producer_id, NO_OFFSET)
        self.commit((state,))
        if first_offset >= 0:
            self.unstable.add(first_offset, marker_offset)

    def abandon(self) -> None:
        """Forget what is planned."""
        self._planned.clear()

    def __setitem__(self, producer_id: int, state: ProducerState) -> None:
        active = self._active
        if producer_id not in active:
            self._wake(producer_id)
        active[producer_id] = state
        if state.transaction_first_offset >= 0:
            self._note_open(producer_id, state.transaction_first_offset)
        elif self.open_transactions:
            self.open_transactions.pop(producer_id, None)
        if len(active) > MAX_ACTIVE:
            self._turn()

    def _note_open(self, producer_id: int, first_offset: int) -> None:
        """Keep open transactions in order: one that begins is the last."""
        if self.open_transactions.get(producer_id) != first_offset:
            self.open_transactions[producer_id] = first_offset
            self.open_transactions.move_to_end(producer_id)

    def _latest(self, producer_id: int) -> ProducerState | None:
        return self._planned.get(producer_id) or self.get(producer_id)

    def _wake(self, producer_id: int) -> None:
        """Take a producer out of where it rested; count it if it is new."""
        if self._recent.pop(producer_id, None) is not None:
            return
        key = _bucket_of(producer_id)
        if producer_id in self._buckets.get(key, ()):
            del self._own(key)[producer_id]
            self._idle_count -= 1
            return
        self._budget.add(1)
        if self.largest_id < producer_id <= MAX_GIVEN_ID:
            self.largest_id = producer_id

    # -- rest ----------------------------------------------------------------------------------------------------------

    def load(self, entries: memoryview) -> None:
        """Take in the entries of a snapshot, end to end: idle from now on."""
        since = _SINCE.pack(self._clock())
        count = 0
        found_open = dict(self.open_transactions)
        for at in range(0, len(entries), ENTRY_SIZE):
            entry = bytes(entries[at : at + ENTRY_SIZE])
            fields = ENTRY.unpack(entry)
            producer_id, timestamp, first_offset = fields[0], fields[5], fields[7]
            bucket = self._buckets.setdefault(_bucket_of(producer_id), {})
            count += producer_id not in bucket
            bucket[producer_id] = b"".join((entry, since, _SINCE.pack(timestamp)))
            if first_offset >= 0:
                found_open[producer_id] = first_offset
            if self.largest_id < producer_id <= MAX_GIVEN_ID:
                self.largest_id = producer_id
        self.open_transactions = OrderedDict(sorted(found_open.items(), key=itemgetter(1)))
        self._idle_count += count
        self._budget.add(count)

    def age(self, interval_ms: int) -> None:
        """Let a turn come if the last one is so long ago: who is idle is to be known as that."""
        if self._clock() - self._turned_ms >= interval_ms and (self._active or self._recent):
            self._turn()

    def _turn(self) -> None:
        """Pack what was not touched since the last turn."""
        for producer_id, state in self._recent.items():
            self._own(_bucket_of(producer_id))[producer_id] = _pack(state, self._turned_ms)
        self._idle_count += len(self._recent)
        self._recent, self._active = self._active, {}
        self._turned_ms = self._clock()

    def forget_idle(self, idle_since_ms: int, last_timestamp_ms: int | None = None, *, most: int) -> bool:
        """Forget producers that are idle since then or longer, and tell whether there may be more than `most` of them.

        With `last_timestamp_ms`, only those whose last batch is not younger than that. Those that stay all the same
        count as idle from now on: they are looked at again when that is over.
        """
        for key in list(self._buckets):
            idle = _idle_since(self._buckets[key], idle_since_ms, most)
            if idle:
                self._forget_from(key, idle, last_timestamp_ms)
            most -= len(idle)
            if most <= 0:
                return True
        return False

    def _forget_from(self, key: int, idle: list[tuple[int, bytes]], last_timestamp_ms: int | None) -> None:
        bucket, now = self._own(key), _SINCE.pack(self._clock())
        gone = 0
        for producer_id, packed in idle:
            del bucket[producer_id]
            is_kept = producer_id in self.open_transactions or (
                last_timestamp_ms is not None and _SINCE.unpack_from(packed, _LAST_TIMESTAMP)[0] > last_timestamp_ms
            )
            if is_kept:
                bucket[producer_id] = packed[:ENTRY_SIZE] + now + packed[ENTRY_SIZE + len(now) :]
            else:
                gone += 1
        if not bucket:
            del self._buckets[key]
        self._idle_count -= gone
        self._budget.add(-gone)

    def release(self) -> None:
        """Forget all: the log is closed, or has other producers."""
        self._budget.add(-len(self))
        self._active, self._recent, self._buckets = {}, {}, {}
        self._idle_count = 0

    def _own(self, key: int) -> dict[int, bytes]:
        """Return a bucket that may be changed."""
        bucket = self._buckets.setdefault(key, {})
        if key in self._shared:
            self._shared.discard(key)
            bucket = self._buckets[key] = bucket.copy()
        return bucket


def _bucket_of(producer_id: int) -> int:
    return (producer_id >> _GROUP_BITS) * _SCATTER % _PRIME % _BUCKETS


def _idle_since(bucket: dict[int, bytes], since_ms: int, most: int) -> list[tuple[int, bytes]]:
    """Return the first entries of a bucket that are idle since then or longer."""
    found: list[tuple[int, bytes]] = []
    for producer_id, packed in bucket.items():
        if len(found) == most or _SINCE.unpack_from(packed, ENTRY_SIZE)[0] > since_ms:
            break
        found.append((producer_id, packed))
    return found


def _pack(state: ProducerState, since_ms: int) -> bytes:
    """Return a state as it is kept while its producer is idle."""
    *older, last = state.batches or (NO_BATCH,)
    parts = [_BATCH.pack(each.last_sequence, each.last_offset, each.offset_delta, each.timestamp) for each in older]
    return b"".join((encode_entry(state), _REST.pack(since_ms, last.timestamp), *parts))


def _unpack(packed: bytes) -> ProducerState:
    """Return the state that was packed."""
    producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, first_offset = ENTRY.unpack_from(packed)
    batches: tuple[ProducerBatch, ...] = ()
    if offset >= 0:
        _, last_timestamp = _REST.unpack_from(packed, ENTRY_SIZE)
        older = _BATCH.iter_unpack(memoryview(packed)[ENTRY_SIZE + _REST.size :])
        batches = (
            *[ProducerBatch(*fields) for fields in older],
            ProducerBatch(sequence, offset, delta, last_timestamp),
        )
    return ProducerState(producer_id, epoch, coordinator_epoch, timestamp, first_offset, batches)
