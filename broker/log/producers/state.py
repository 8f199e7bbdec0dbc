"""The state of one idempotent producer in one log: its last batches. `transitions` says which batches may follow.

Sequences count records and wrap from 2^31 - 1 to 0. `table` decides which producers a log remembers, and how long.

Invariants:
1. States are immutable.
2. A state has up to five of the producer's last batches: none from before its current epoch and, after a clean stop,
   none from before the last batch at that time, the only one in the snapshot.

Source: org.apache.kafka.storage.internals.log.ProducerStateEntry; KIP-98.
"""

from typing import Final

from warmlog.broker.classes import mypyc_attr
from warmlog.protocol.records.layout import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP

MAX_SEQUENCE: Final = (1 << 31) - 1
BATCHES_KEPT: Final = 5  # the limit of max.in.flight.requests.per.connection for idempotent producers
NO_OFFSET: Final = -1
NO_COORDINATOR_EPOCH: Final = -1


def advanced(sequence: int, count: int) -> int:
    """Return the sequence `count` records later, or earlier if negative."""
    return sequence + count & MAX_SEQUENCE


@mypyc_attr(acyclic=True)
class ProducerBatch:
    """A batch in a producer's state; `timestamp` is its largest, in ms."""

    __slots__ = ("last_offset", "last_sequence", "offset_delta", "timestamp")

    def __init__(self, last_sequence: int, last_offset: int, offset_delta: int, timestamp: int) -> None:
        self.last_sequence = last_sequence
        self.last_offset = last_offset
        self.offset_delta = offset_delta
        self.timestamp = timestamp

    @property
    def base_offset(self) -> int:
        """The offset of its first record."""
        return self.last_offset - self.offset_delta

    @property
    def base_sequence(self) -> int:
        """The sequence of its first record."""
        return advanced(self.last_sequence, -self.offset_delta)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerBatch) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        return f"ProducerBatch{self._fields()}"

    def _fields(self) -> tuple[int, int, int, int]:
        return self.last_sequence, self.last_offset, self.offset_delta, self.timestamp


@mypyc_attr(acyclic=True)
class ProducerState:
    """One producer in one log. `batches` are its last ones in its current epoch, oldest first.

    `last_timestamp` (ms) is that of its last batch or of the marker that ended its last transaction, and
    `coordinator_epoch` that of the marker. `transaction_first_offset` is where its open transaction began, or -1.
    """

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "producer_id", "transaction_first_offset")

    def __init__(  # noqa: PLR0917 - the fields, as in a snapshot
        self,
        producer_id: int,
        epoch: int = NO_PRODUCER_EPOCH,
        coordinator_epoch: int = NO_COORDINATOR_EPOCH,
        last_timestamp: int = NO_TIMESTAMP,
        transaction_first_offset: int = NO_OFFSET,
        batches: tuple[ProducerBatch, ...] = (),
    ) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = last_timestamp
        self.transaction_first_offset = transaction_first_offset
        self.batches = batches

    @property
    def last_sequence(self) -> int:
        """The sequence of its last record; -1 if its epoch has none yet."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        """The offset of its last record; -1 if its epoch has none yet."""
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerState) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        return f"ProducerState{self._fields()}"

    def _fields(self) -> tuple[int, int, int, int, int, tuple[ProducerBatch, ...]]:
        return (
            self.producer_id,
            self.epoch,
            self.coordinator_epoch,
            self.last_timestamp,
            self.transaction_first_offset,
            self.batches,
        )
