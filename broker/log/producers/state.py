"""The state of one idempotent producer in one log: its last batches. `transitions` says which batches may follow.

Sequences count records and wrap from 2^31 - 1 to 0. `table` decides which producers a log remembers, and how long.

Invariants:
1. States are immutable.
2. A state has up to five of the producer's last batches: none from before its current epoch and, after a clean stop,
   none from before the last batch at that time, the only one in the snapshot.

Source: org.apache.kafka.storage.internals.log.ProducerStateEntry; KIP-98.
"""

from msgspec import Struct

from warmlog.protocol.records.layout import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP

MAX_SEQUENCE = (1 << 31) - 1
BATCHES_KEPT = 5  # the limit of max.in.flight.requests.per.connection for idempotent producers
NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1


def advanced(sequence: int, count: int) -> int:
    """Return the sequence `count` records later, or earlier if negative."""
    return sequence + count & MAX_SEQUENCE


class ProducerBatch(Struct, frozen=True, gc=False):
    """A batch in a producer's state; `timestamp` is its largest, in ms."""

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
    """One producer in one log. `batches` are its last ones in its current epoch, oldest first.

    `last_timestamp` (ms) is that of its last batch or of the marker that ended its last transaction, and
    `coordinator_epoch` that of the marker. `transaction_first_offset` is where its open transaction began, or -1.
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
