"""The table of a log's producers: states of active ones, packed states of idle ones, until they expire.

A partition may have a few producers for months, or a new one for every message. Each is remembered for
`producer.id.expiration.ms` after its last batch, so that retries are recognized as duplicates. The memory this takes:

    active, recent   used in the current or the previous generation: `ProducerState`, 0.3 to 0.6 KB each, at most
                     2 x MAX_ACTIVE
    idle             packed to about 0.2 KB each, oldest first within each bucket

A new generation begins once MAX_ACTIVE producers are active, or after some time (`age`): recent producers are packed,
active ones become recent. An idle producer that sends a batch is unpacked and active again.

A snapshot needs the states of one moment and takes long to write. So `capture` shares the buckets, and a shared bucket
is copied before it is changed: some hundred entries, regardless of the ids.

Invariants:
1. A producer is either active, recent or idle. `planned` has the states after plans that are not committed yet, each
   based on the previous one; `commit` moves a state to active, `abandon` drops all.
2. A producer whose last batch is younger than `warmlog.producers.min.idle.ms` by the broker's clock is not dropped, as
   it may still retry. A producer read from a snapshot at startup counts as used at that time.
3. All logs share a `ProducerBudget`. Once it is used up, the first batch of an unknown producer is rejected. The log
   has nothing of that producer, so that nothing can be stored twice.
4. A producer with an open transaction is never dropped.

Source: org.apache.kafka.storage.internals.log.ProducerStateManager. Kafka limits by time only; KIP-936 describes how
clients that create a producer for each message fill a broker's memory.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import itemgetter
from random import SystemRandom
from typing import Final, Protocol

from warmlog.broker.log.errors import OutOfOrderSequenceError, TooManyProducersError
from warmlog.broker.log.producers.idle import LAST_TIMESTAMP, SINCE, CapturedProducers, ProducerBudget, pack, unpack
from warmlog.broker.log.producers.snapshot import ENTRY, ENTRY_SIZE
from warmlog.broker.log.producers.state import NO_OFFSET, ProducerBatch, ProducerState
from warmlog.broker.log.producers.transactions import (
    Origin,
    TransactionMarker,
    UnstableTransactions,
    VerificationGuards,
    ended_by,
)
from warmlog.broker.log.producers.transitions import expected_sequence, find_duplicate, followed
from warmlog.protocol.records.layout import TRANSACTIONAL_BIT, BatchHeader

MAX_ACTIVE: Final = 500  # per log; a new generation packs as many in 1 ms, and copies at most as many shared buckets
MAX_GIVEN_ID: Final = 1 << 62  # brokers never get that far, but clients can send any id, and none could follow it
_BUCKETS: Final = 2048
_GROUP_BITS: Final = 8  # consecutive ids share a bucket, so that a log with few producers has few buckets
_SCATTER: Final = SystemRandom().getrandbits(61) | 1  # random, so that clients cannot choose ids that share a bucket
_PRIME: Final = (1 << 61) - 1
_CLIENT: Final = Origin.CLIENT  # bound once: reading an enum's member takes longer than the comparison


class Extent(Protocol):
    """The part of `segments.tail.BatchExtent` that is used here: last offset and largest timestamp (ms)."""

    last_offset: int
    max_timestamp: int


class Producers:
    """The producers of one log. For the event loop, once the log is open; memory only."""

    __slots__ = (
        "_active",
        "_buckets",
        "_budget",
        "_clock",
        "_generation_ms",
        "_idle_count",
        "_recent",
        "_shared",
        "guards",
        "largest_id",
        "open_transactions",
        "planned",
        "unstable",
    )

    largest_id: int  # the largest id that a broker may have assigned; -1 if none

    def __init__(self, clock: Callable[[], int] = lambda: 0, budget: ProducerBudget | None = None) -> None:
        """Begin without producers. `clock` returns ms since the epoch."""
        self._clock = clock
        self._budget = budget or ProducerBudget()
        self._active: dict[int, ProducerState] = {}
        self._recent: dict[int, ProducerState] = {}
        self._buckets: dict[int, dict[int, bytes]] = {}  # packed idle producers, oldest first
        self._shared: set[int] = set()  # keys of buckets that a capture shares
        self._idle_count = 0
        self.planned: dict[int, ProducerState] = {}
        self.open_transactions: OrderedDict[int, int] = OrderedDict()  # by producer id, ordered by their first offsets
        self.unstable = UnstableTransactions()
        self.guards = VerificationGuards()
        self._generation_ms = clock()
        self.largest_id = -1

    # -- lookups -------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._active) + len(self._recent) + self._idle_count

    def get(self, producer_id: int) -> ProducerState | None:
        """Return the committed state of a producer, or None."""
        state = self._active.get(producer_id) or self._recent.get(producer_id)
        if state is None:
            bucket = self._buckets.get(_bucket_of(producer_id))
            packed = None if bucket is None else bucket.get(producer_id)
            state = None if packed is None else unpack(packed)
        return state

    def capture(self) -> CapturedProducers:
        """Return the committed states of all producers at this moment."""
        self._shared.update(self._buckets)
        return CapturedProducers([*self._active.values(), *self._recent.values()], list(self._buckets.values()))

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the first offset of the oldest transaction that is open or ended at or past the high watermark."""
        first_open = next(iter(self.open_transactions.values()), None)
        first_ended = self.unstable.first_offset(high_watermark)
        if first_open is None or first_ended is None:
            return first_ended if first_open is None else first_open
        return min(first_open, first_ended)

    # -- appends -------------------------------------------------------------------------------------------------------

    def find_duplicates(self, checked: Sequence[tuple[int, BatchHeader]]) -> list[ProducerBatch]:
        """Return the leading batches that are duplicates of committed or planned ones."""
        duplicates = []
        for _, header in checked:
            batch = self.find_duplicate(header)
            if batch is None:
                break
            duplicates.append(batch)
        return duplicates

    def find_duplicate(self, header: BatchHeader) -> ProducerBatch | None:
        """Return the committed or planned batch of which this one is a duplicate, or None."""
        state = self.latest(header.producer_id)
        if state is None or expected_sequence(state) == header.base_sequence:
            return None
        return find_duplicate(state, header)

    def plan_one(
        self, header: BatchHeader, last_offset: int, max_timestamp: int, *, origin: Origin, guard: int
    ) -> tuple[ProducerState, ...]:
        """Validate a batch of a producer as `plan` does, and return its new state."""
        producer_id = header.producer_id
        current = self.latest(producer_id)
        self._check_admissible(header, current)
        state = followed(
            current,
            header,
            last_offset,
            max_timestamp,
            may_begin=self._may_begin(header, guard),
            has_sequence=origin is _CLIENT,
        )
        self.planned[producer_id] = state
        if state.transaction_first_offset >= 0:
            self.guards.close(producer_id)
        return (state,)

    def plan(
        self,
        checked: Sequence[tuple[int, BatchHeader]],
        extents: Sequence[Extent],
        *,
        origin: Origin = Origin.CLIENT,
        guard: int = 0,
    ) -> tuple[ProducerState, ...]:
        """Validate batches that are not duplicates; return the new states, for `commit`.

        `guard` allows them to begin a transaction; see `VerificationGuards`. Raises TooManyProducersError and the
        errors of `followed`, and then nothing is planned.
        """
        states: dict[int, ProducerState] = {}
        for (_, header), extent in zip(checked, extents, strict=True):
            producer_id = header.producer_id
            if producer_id >= 0:
                current = states.get(producer_id) or self.latest(producer_id)
                self._check_admissible(header, current)
                states[producer_id] = followed(
                    current,
                    header,
                    extent.last_offset,
                    extent.max_timestamp,
                    may_begin=self._may_begin(header, guard),
                    has_sequence=origin is _CLIENT,
                )
        self.planned.update(states)
        for state in states.values():
            if state.transaction_first_offset >= 0:
                self.guards.close(state.producer_id)
        return tuple(states.values())

    def _may_begin(self, header: BatchHeader, guard: int) -> bool:
        return bool(header.attributes & TRANSACTIONAL_BIT) and self.guards.is_valid(header.producer_id, guard)

    def plan_marker(self, marker: TransactionMarker, timestamp: int) -> ProducerState:
        """Validate a marker; return the new state of its producer, for `commit`.

        An unknown producer is added even if the budget is used up, since the coordinator limits the number of markers.
        Raises the errors of `ended_by`, and then nothing is planned.
        """
        state = ended_by(self.latest(marker.producer_id), marker, timestamp)
        self.planned[marker.producer_id] = state
        self.guards.close(marker.producer_id)
        return state

    def _check_admissible(self, header: BatchHeader, current: ProducerState | None) -> None:
        """Check conditions outside of the states: batches that were not appended, and the number of producers."""
        if self.guards.has_earlier_batch(header, is_first=current is None):
            batch = f"batch of producer {header.producer_id}, sequence {header.base_sequence}"
            raise OutOfOrderSequenceError(f"{batch}: an earlier one is missing")
        budget = self._budget
        if current is None and budget.is_full:
            budget.refused += 1
            raise TooManyProducersError(
                f"cannot add producer {header.producer_id}: {budget.count:,} idempotent producers were active recently"
                " (create producers less often, or raise warmlog.producers.max)"
            )

    def commit(self, states: tuple[ProducerState, ...]) -> None:
        """Make planned states the current ones."""
        planned = self.planned
        for state in states:
            producer_id = state.producer_id
            self._set(producer_id, state)
            if planned.get(producer_id) is state:
                del planned[producer_id]

    def commit_marker(self, state: ProducerState, marker_offset: int) -> None:
        """Make the state after a marker, written at `marker_offset`, the current one."""
        first_offset = self.open_transactions.get(state.producer_id, NO_OFFSET)
        self.commit((state,))
        if first_offset >= 0:
            self.unstable.add(first_offset, marker_offset)

    def abandon(self) -> None:
        """Drop planned states."""
        self.planned.clear()

    def __setitem__(self, producer_id: int, state: ProducerState) -> None:
        self._set(producer_id, state)

    def _set(self, producer_id: int, state: ProducerState) -> None:
        active = self._active
        if producer_id not in active:
            self._wake(producer_id)
        active[producer_id] = state
        if state.transaction_first_offset >= 0:
            self._note_open(producer_id, state.transaction_first_offset)
        elif self.open_transactions:
            self.open_transactions.pop(producer_id, None)
        if len(active) > MAX_ACTIVE:
            self._begin_generation()

    def _note_open(self, producer_id: int, first_offset: int) -> None:
        """Add an open transaction; a new one has the largest first offset, so it comes last."""
        if self.open_transactions.get(producer_id) != first_offset:
            self.open_transactions[producer_id] = first_offset
            self.open_transactions.move_to_end(producer_id)

    def latest(self, producer_id: int) -> ProducerState | None:
        """Return the state of a producer after all plans, or None."""
        return self.planned.get(producer_id) or self.get(producer_id)

    def _wake(self, producer_id: int) -> None:
        """Remove a producer from the recent or idle ones, or count it if it is new."""
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

    # -- idle producers ------------------------------------------------------------------------------------------------

    def load(self, entries: memoryview) -> None:
        """Add the producers of consecutive snapshot entries, as idle from now on."""
        since = SINCE.pack(self._clock())
        count = 0
        stored_open = dict(self.open_transactions)
        for at in range(0, len(entries), ENTRY_SIZE):
            entry = bytes(entries[at : at + ENTRY_SIZE])
            fields = ENTRY.unpack(entry)
            producer_id, timestamp, first_offset = fields[0], fields[5], fields[7]
            bucket = self._buckets.setdefault(_bucket_of(producer_id), {})
            count += producer_id not in bucket
            bucket[producer_id] = b"".join((entry, since, SINCE.pack(timestamp)))
            if first_offset >= 0:
                stored_open[producer_id] = first_offset
            if self.largest_id < producer_id <= MAX_GIVEN_ID:
                self.largest_id = producer_id
        self.open_transactions = OrderedDict(sorted(stored_open.items(), key=itemgetter(1)))
        self._idle_count += count
        self._budget.add(count)

    def age(self, interval_ms: int) -> None:
        """Begin a new generation if the current one is this old, so that unused producers become idle."""
        if self._clock() - self._generation_ms >= interval_ms and (self._active or self._recent):
            self._begin_generation()

    def _begin_generation(self) -> None:
        """Pack the recent producers, and make the active ones recent."""
        for producer_id, state in self._recent.items():
            self._own(_bucket_of(producer_id))[producer_id] = pack(state, self._generation_ms)
        self._idle_count += len(self._recent)
        self._recent, self._active = self._active, {}
        self._generation_ms = self._clock()

    def forget_idle(self, idle_since_ms: int, last_timestamp_ms: int | None = None, *, most: int) -> bool:
        """Drop producers idle since `idle_since_ms`, checking up to `most`; return whether there may be more.

        With `last_timestamp_ms`, only those whose last batch is not younger than that. Producers that are kept
        nevertheless count as idle from now on, so that they are checked again after another expiration time.
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
        bucket, now = self._own(key), SINCE.pack(self._clock())
        gone = 0
        for producer_id, packed in idle:
            del bucket[producer_id]
            is_kept = producer_id in self.open_transactions or (
                last_timestamp_ms is not None and SINCE.unpack_from(packed, LAST_TIMESTAMP)[0] > last_timestamp_ms
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
        """Drop all producers, when the log is closed or gets another table."""
        self._budget.add(-len(self))
        self._active, self._recent, self._buckets = {}, {}, {}
        self._idle_count = 0

    def _own(self, key: int) -> dict[int, bytes]:
        """Return a bucket to be changed, copied if it is shared."""
        bucket = self._buckets.setdefault(key, {})
        if key in self._shared:
            self._shared.discard(key)
            bucket = self._buckets[key] = bucket.copy()
        return bucket


def _bucket_of(producer_id: int) -> int:
    return (producer_id >> _GROUP_BITS) * _SCATTER % _PRIME % _BUCKETS


def _idle_since(bucket: dict[int, bytes], since_ms: int, most: int) -> list[tuple[int, bytes]]:
    """Return up to `most` entries of a bucket that are idle since `since_ms`."""
    idle: list[tuple[int, bytes]] = []
    for producer_id, packed in bucket.items():
        if len(idle) == most or SINCE.unpack_from(packed, ENTRY_SIZE)[0] > since_ms:
            break
        idle.append((producer_id, packed))
    return idle
