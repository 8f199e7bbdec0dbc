"""Idempotent producers of one log: what each has appended last, and whether what it sends follows from that.

Owns: the rules of epochs and sequence numbers, and what is committed and what is planned of them. Must not know files,
requests, or how a refusal is told.

    a batch of a producer that is not known             begins its state, at any sequence
    with the epoch of its state, the next sequence      goes on
      one of the last five again                        is a duplicate: its records are in the log, it is not written
      any other sequence                                is out of order
    with a higher epoch, sequence 0                     begins anew; another sequence is out of order
    with a lower epoch                                  is refused: a newer producer has taken over

Sequences count records; after 2^31 - 1 comes 0.

Invariants:
1. `planned` holds the states of those producers that have plans not committed yet, each on top of the one before;
   `commit` moves one over, `abandon` forgets them all. A state is never changed, only replaced.
2. Of a producer the last five batches are known, or as many as there were since its epoch began or it was read from a
   snapshot (which has the last one only).
3. A batch that is already there was appended with the same epoch and the same first and last sequence.
4. There are never more than MAX_PRODUCERS states, but for those with an open transaction.

Source: org.apache.kafka.storage.internals.log.ProducerStateManager, ProducerStateEntry, ProducerAppendInfo,
UnifiedLog.analyzeAndValidateProducerState; KIP-98, KIP-360 (a producer that is not known). Kafka does not answer
DUPLICATE_SEQUENCE_NUMBER any more: what is older than the last five batches is out of order.
"""

from collections.abc import Iterable, Sequence
from typing import NoReturn, Protocol

from msgspec import Struct

from broker.log.errors import InvalidProducerEpochError, InvalidTransactionStateError, OutOfOrderSequenceError
from protocol.records.layout import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, TRANSACTIONAL_BIT, BatchHeader

MAX_SEQUENCE = (1 << 31) - 1
MAX_GIVEN_ID = 1 << 62  # no broker comes to that, but a client can write any id: above the largest, none can be given
BATCHES_KEPT = 5  # what a producer may have in flight while it keeps its order: max.in.flight.requests.per.connection
# Of one log. Kafka has no bound but time, and clients that make a producer for every message have filled its memory
# (KIP-936). Who is forgotten had so many others after its last batch that no retry of it is still to come.
MAX_PRODUCERS = 10_000
NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1


def advanced(sequence: int, count: int) -> int:
    """The sequence so many records later (or earlier, with a negative count)."""
    return sequence + count & MAX_SEQUENCE


class ProducerBatch(Struct, frozen=True, gc=False):
    """A batch as its producer's state remembers it; `timestamp` is its largest, in ms."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def base_offset(self) -> int:
        """The offset of its first record."""
        return self.last_offset - self.offset_delta

    @property
    def base_sequence(self) -> int:
        """The sequence of its first record."""
        return advanced(self.last_sequence, -self.offset_delta)


class ProducerState(Struct, frozen=True, gc=False):
    """One producer in one log. `batches`: its last ones, oldest first, none older than its epoch.

    `last_timestamp`: of its last batch or of the marker that ended its transaction, ms. `coordinator_epoch`: of that
    marker. `transaction_first_offset`: where the transaction that is open began; -1 if none is.
    """

    producer_id: int
    epoch: int = NO_PRODUCER_EPOCH
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    last_timestamp: int = NO_TIMESTAMP
    transaction_first_offset: int = NO_OFFSET
    batches: tuple[ProducerBatch, ...] = ()

    @property
    def last_sequence(self) -> int:
        """The sequence of its last record; -1 if its epoch has none yet."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """The offset of its last record; -1 if its epoch has none yet."""
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def expects(self, sequence: int) -> bool:
        """Whether a batch that begins with this sequence comes next in this epoch."""
        batches = self.batches
        return (batches[-1].last_sequence + 1 & MAX_SEQUENCE if batches else 0) == sequence

    def find(self, header: BatchHeader) -> ProducerBatch | None:
        """The batch that is there already, if this one is a duplicate."""
        if header.producer_epoch == self.epoch:
            last_sequence = advanced(header.base_sequence, header.last_offset_delta)
            for batch in self.batches:
                if batch.last_sequence == last_sequence and batch.offset_delta == header.last_offset_delta:
                    return batch
        return None

    def appended(self, header: BatchHeader, last_offset: int, timestamp: int) -> "ProducerState":
        """The state after a batch of records, unchecked. `timestamp`: its largest, in ms."""
        delta, epoch = header.last_offset_delta, header.producer_epoch
        batch = ProducerBatch(advanced(header.base_sequence, delta), last_offset, delta, timestamp)
        first_offset = self.transaction_first_offset
        if first_offset < 0 and header.attributes & TRANSACTIONAL_BIT:
            first_offset = last_offset - delta
        batches = (*self.batches[1 - BATCHES_KEPT :], batch) if epoch == self.epoch else (batch,)
        return ProducerState(self.producer_id, epoch, self.coordinator_epoch, timestamp, first_offset, batches)

    def ended(self, epoch: int, coordinator_epoch: int, timestamp: int) -> "ProducerState":
        """The state after the marker that ends its transaction."""
        batches = self.batches if epoch == self.epoch else ()
        return ProducerState(self.producer_id, epoch, coordinator_epoch, timestamp, NO_OFFSET, batches)

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether it may be forgotten: idle for so long (by its records' own times), with no transaction open."""
        return self.transaction_first_offset < 0 and now_ms - self.last_timestamp >= expiration_ms


class Extent(Protocol):
    """What `append.BatchExtent` says of a batch: its last offset, its largest timestamp (ms)."""

    last_offset: int
    max_timestamp: int


class Producers:
    """All producers of one log, as committed and as planned. Belongs to the loop; memory only."""

    __slots__ = ("_committed", "_idle_since", "_planned")

    def __init__(self, states: Iterable[ProducerState] = ()) -> None:
        self._committed = {state.producer_id: state for state in states}
        self._planned: dict[int, ProducerState] = {}
        self._idle_since: dict[int, tuple[ProducerState, int]] = {}

    def __len__(self) -> int:
        return len(self._committed)

    def committed(self) -> tuple[ProducerState, ...]:
        """The states as the log holds them."""
        return tuple(self._committed.values())

    def committed_of(self, producer_id: int) -> ProducerState | None:
        """The state of one producer as the log holds it; None if it is not known."""
        return self._committed.get(producer_id)

    @property
    def largest_id(self) -> int:
        """The largest producer id known here that a broker may have given; -1 if there is none."""
        return max((known for known in self._committed if known <= MAX_GIVEN_ID), default=-1)

    def find_duplicates(self, checked: Sequence[tuple[int, BatchHeader]]) -> list[ProducerBatch]:
        """Those batches, from the first one on, that the log has already (or will have, once what is planned is)."""
        found = []
        for _, header in checked:
            state = self._latest(header.producer_id)
            if state is None or state.expects(header.base_sequence) or (batch := state.find(header)) is None:
                break
            found.append(batch)
        return found

    def plan(self, checked: Sequence[tuple[int, BatchHeader]], extents: Sequence[Extent]) -> Sequence[ProducerState]:
        """Check batches that are no duplicates against their producers; gives the new states, for `commit`.

        Raises OutOfOrderSequenceError, InvalidProducerEpochError, InvalidTransactionStateError: then nothing is
        planned.
        """
        if len(checked) == 1 and (header := checked[0][1]).producer_id >= 0:  # half the time of what follows
            extent = extents[0]
            state = _followed(self._latest(header.producer_id), header, extent.last_offset, extent.max_timestamp)
            self._planned[header.producer_id] = state
            return (state,)
        states: dict[int, ProducerState] = {}
        for (_, header), extent in zip(checked, extents, strict=True):
            producer_id = header.producer_id
            if producer_id >= 0:
                current = states.get(producer_id) or self._latest(producer_id)
                states[producer_id] = _followed(current, header, extent.last_offset, extent.max_timestamp)
        self._planned.update(states)
        return tuple(states.values())

    def commit(self, states: Sequence[ProducerState]) -> None:
        """What was planned is in the log."""
        planned, committed = self._planned, self._committed
        for state in states:
            producer_id = state.producer_id
            committed[producer_id] = state
            if planned.get(producer_id) is state:
                del planned[producer_id]
        if len(committed) > MAX_PRODUCERS:
            self._forget_oldest()

    def abandon(self) -> None:
        """Forget what is planned."""
        self._planned.clear()

    def forget_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers that have been idle for so long. What is planned stays.

        Idle by their records' own times, and by our clock since this was first called after their last batch: who
        copies records of last year would otherwise be forgotten at work.
        """
        idle, self._idle_since = self._idle_since, {}
        for producer_id, state in list(self._committed.items()):
            if not state.is_expired(now_ms, expiration_ms):
                continue
            found_idle, since_ms = idle.get(producer_id, (None, 0))
            if found_idle is not state:
                self._idle_since[producer_id] = (state, now_ms)
            elif now_ms - since_ms >= expiration_ms:
                del self._committed[producer_id]
            else:
                self._idle_since[producer_id] = (state, since_ms)

    def _forget_oldest(self) -> None:
        """Make room for many: forget the quarter whose last batches are the oldest."""
        idle = [state for state in self._committed.values() if state.transaction_first_offset < 0]
        idle.sort(key=lambda state: state.last_offset)
        for state in idle[: MAX_PRODUCERS // 4]:
            del self._committed[state.producer_id]

    def _latest(self, producer_id: int) -> ProducerState | None:
        return self._planned.get(producer_id) or self._committed.get(producer_id)


def _followed(current: ProducerState | None, header: BatchHeader, last_offset: int, timestamp: int) -> ProducerState:
    """The state after a batch of a client. Raises what `Producers.plan` does unless it may be appended now."""
    if header.attributes & TRANSACTIONAL_BIT:
        raise InvalidTransactionStateError(f"{_of(header)} belongs to a transaction, which this broker does not serve")
    if current is None:
        return ProducerState(header.producer_id).appended(header, last_offset, timestamp)
    if header.producer_epoch != current.epoch:
        _check_new_epoch(current, header)
    elif not current.expects(header.base_sequence):
        _refuse_sequence(current, header)
    if current.transaction_first_offset >= 0:
        raise InvalidTransactionStateError(f"{_of(header)} is outside the transaction that is open")
    return current.appended(header, last_offset, timestamp)


def _check_new_epoch(current: ProducerState, header: BatchHeader) -> None:
    if header.producer_epoch < current.epoch:
        raise InvalidProducerEpochError(f"{_of(header)}: the producer's epoch is {current.epoch} by now")
    if header.base_sequence:
        raise OutOfOrderSequenceError(f"{_of(header)}: after epoch {current.epoch} a new one begins with sequence 0")


def _refuse_sequence(current: ProducerState, header: BatchHeader) -> NoReturn:
    expected = current.last_sequence + 1 & MAX_SEQUENCE
    raise OutOfOrderSequenceError(f"{_of(header)}: the next sequence is {expected}")


def _of(header: BatchHeader) -> str:
    return f"a batch of producer {header.producer_id}, epoch {header.producer_epoch}, sequence {header.base_sequence}"
