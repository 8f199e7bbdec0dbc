"""Rules for appends that begin, continue and end transactions, and the transactions that readers must wait for.

An append, of a client or of the group coordinator, may continue an open transaction at any time. It may begin one only
with a *guard*: the transaction coordinator has verified it since the producer's last marker (KIP-890). Without that
rule a batch that arrives after the marker of its transaction would open another one, which no marker would ever end.

Source: org.apache.kafka.storage.internals.log.ProducerAppendInfo (checkProducerEpoch, checkCoordinatorEpoch,
appendEndTxnMarker), ProducerStateManager (unreplicatedTxns, maybeCreateVerificationStateEntry), AppendOrigin.
"""

from collections.abc import Sequence
from enum import Enum
from heapq import heappop, heappush
from typing import Final, NamedTuple

from warmlog.broker.log.errors import InvalidProducerEpochError, TransactionCoordinatorFencedError
from warmlog.broker.log.producers.state import ProducerState
from warmlog.broker.log.producers.transitions import after_marker
from warmlog.protocol.records.layout import NO_PRODUCER_EPOCH, NO_SEQUENCE, BatchHeader
from warmlog.protocol.records.markers import Outcome

MAX_GUARDS: Final = 10_000  # per log; an evicted guard makes the client retry


class Origin(Enum):
    """The origin of an append. Neither origin may append control batches except through `append_marker`."""

    CLIENT = "client"  # checked in full: sequences, duplicates, guard
    COORDINATOR = "coordinator"  # a coordinator's own records: without sequences


class TransactionMarker(NamedTuple):
    """End the open transaction of a producer in one partition.

    `coordinator_epoch` is the leader epoch of the coordinator's log partition. `raises_epoch`: the producer takes part
    in transaction version 2 (KIP-890), where each marker has a higher producer epoch than the records it ends.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    outcome: Outcome
    raises_epoch: bool = False


def ended_by(current: ProducerState | None, marker: TransactionMarker, timestamp: int) -> ProducerState:
    """Return the state after a marker (`timestamp` in ms), whether or not a transaction is open.

    Raises InvalidProducerEpochError for a stale producer epoch, TransactionCoordinatorFencedError for a stale
    coordinator epoch.
    """
    state = current or ProducerState(marker.producer_id)
    epoch = marker.producer_epoch
    is_repeated = epoch == state.epoch and state.transaction_first_offset < 0
    if epoch < state.epoch or (marker.raises_epoch and epoch == state.epoch and not is_repeated):
        raise InvalidProducerEpochError(
            f"marker of producer {marker.producer_id}, epoch {epoch}: the producer's epoch is {state.epoch}"
        )
    if marker.coordinator_epoch < state.coordinator_epoch:
        raise TransactionCoordinatorFencedError(
            f"marker of producer {marker.producer_id}: coordinator epoch {marker.coordinator_epoch} is older than"
            f" {state.coordinator_epoch}, that of its last marker"
        )
    return after_marker(state, epoch, marker.coordinator_epoch, timestamp)


class ProducerStep(NamedTuple):
    """A producer's state after one batch, which is the marker of a transaction at `offset` if there is an `outcome`."""

    state: ProducerState
    outcome: Outcome | None
    offset: int


class Effects(NamedTuple):
    """Effects of a marker or of copied batches besides adding records: steps of producers, in order, and leader epochs.

    `epochs` are (epoch, first offset) pairs.
    """

    steps: Sequence[ProducerStep] = ()
    epochs: Sequence[tuple[int, int]] = ()


class UnstableTransactions:
    """Transactions that have ended at or past the high watermark, so that readers must not rely on their outcome."""

    __slots__ = ("ended",)

    def __init__(self) -> None:
        self.ended: list[tuple[int, int]] = []  # heap of (first offset, marker's offset)

    def add(self, first_offset: int, marker_offset: int) -> None:
        """Add a transaction whose marker was appended."""
        heappush(self.ended, (first_offset, marker_offset))

    def first_offset(self, high_watermark: int) -> int | None:
        """Return the smallest first offset of transactions whose marker is not below the high watermark, or None."""
        ended = self.ended
        while ended and ended[0][1] < high_watermark:
            heappop(ended)
        return ended[0][0] if ended else None

    def cut(self, end_offset: int) -> "UnstableTransactions":
        """Return the transactions whose markers are below the end of a truncated log."""
        left = UnstableTransactions()
        for first_offset, marker_offset in self.ended:
            if marker_offset < end_offset:
                left.add(first_offset, marker_offset)
        return left


class _Guard(NamedTuple):
    """A guard, and the lowest sequence of the batches that it was opened for.

    `restarts`: the producer begins each transaction with sequence 0, so that 0 precedes any other first batch.
    """

    number: int
    epoch: int
    sequence: int
    restarts: bool


class VerificationGuards:
    """Producers that may begin a transaction, as the coordinator has verified since their last marker."""

    __slots__ = ("_guards", "_last")

    def __init__(self) -> None:
        self._guards: dict[int, _Guard] = {}  # by producer id, oldest first
        self._last = 0

    def open(
        self,
        producer_id: int,
        epoch: int = NO_PRODUCER_EPOCH,
        sequence: int = NO_SEQUENCE,
        *,
        restarts: bool = False,
    ) -> int:
        """Return the guard of a producer, above 0. Request it before the coordinator verifies the transaction.

        `epoch` and `sequence` are those of the batch that may begin it, and `restarts` is whether the producer begins
        each transaction with sequence 0, for `has_earlier_batch`.
        """
        guard = self._guards.get(producer_id)
        if guard is None:
            self._last += 1
            guard = self._guards[producer_id] = _Guard(self._last, epoch, sequence, restarts)
            if len(self._guards) > MAX_GUARDS:
                del self._guards[next(iter(self._guards))]
        elif epoch > guard.epoch or (epoch == guard.epoch and sequence < guard.sequence):
            self._guards[producer_id] = _Guard(guard.number, epoch, sequence, guard.restarts)
        return guard.number

    def is_valid(self, producer_id: int, guard: int) -> bool:
        """Return whether no transaction was begun or ended since the guard was opened."""
        current = self._guards.get(producer_id)
        return current is not None and current.number == guard

    def has_earlier_batch(self, header: BatchHeader, *, is_first: bool) -> bool:
        """Return whether a batch precedes this one that is not in the log: it was rejected, or never sent."""
        guard = self._guards.get(header.producer_id)
        if guard is None:
            return False
        if is_first and guard.restarts and header.base_sequence:
            return True
        return NO_SEQUENCE < guard.sequence < header.base_sequence

    def clear(self) -> None:
        """Invalidate all: another broker appends, or has appended."""
        self._guards.clear()

    def close(self, producer_id: int) -> None:
        """Invalidate the guard of a producer: a transaction begins, or a marker ends one."""
        self._guards.pop(producer_id, None)
