"""The producer of a transaction's batches: its id and epoch, and the sequence of each partition."""

from warmlog.client.errors import WarmlogError
from warmlog.client.producing.batches import Batch, ProducerStamp
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.transactions import NO_PRODUCER_EPOCH, NO_PRODUCER_ID


class ProducerIdentity:
    """The producer of a transactional id, in its current transaction. Every transaction has a separate epoch.

    `error`: why a batch of the transaction is not stored; then the transaction can only be aborted.
    """

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_PRODUCER_EPOCH
        self.error: WarmlogError | None = None
        self._next_sequences: dict[TopicPartition, int] = {}

    def begin(self, producer_id: int, producer_epoch: int) -> None:
        """Begin the next transaction."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.error = None
        self._next_sequences = {}

    @property
    def has_sent(self) -> bool:
        """Whether a batch of the transaction was sent."""
        return bool(self._next_sequences)

    def stamp(self, batch: Batch) -> None:
        """Stamp a batch with the transaction's producer, unless it was sent before."""
        if batch.stamp is None:
            key = batch.topic, batch.partition
            base_sequence = self._next_sequences.get(key, 0)
            batch.stamp = ProducerStamp(self.producer_id, self.producer_epoch, base_sequence)
            self._next_sequences[key] = base_sequence + batch.count

    def take_back(self, batch: Batch) -> None:
        """Free the sequences of a refused batch for reuse. It must be the last one of its partition."""
        assert batch.stamp is not None
        self._next_sequences[batch.topic, batch.partition] = batch.stamp.base_sequence

    def is_current(self, batch: Batch) -> bool:
        """Return whether a batch belongs to the current transaction."""
        return batch.stamp is None or batch.stamp[:2] == (self.producer_id, self.producer_epoch)
