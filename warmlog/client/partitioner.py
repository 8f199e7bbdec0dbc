"""Which partition a record goes to.

Owns: the choice. Must not know: queues, brokers.

1. A key always goes to the same partition, and to the one where Kafka's Java clients put it: toPositive(murmur2(key)) %
   partitions. So it moves when partitions are added.
2. Records without a key stick to one partition until its batch is full, then go on to another one, by chance: fuller
   batches than one after the other would give (KIP-480).

Source: org.apache.kafka.clients.producer.internals.BuiltInPartitioner.
"""

from random import Random

from protocol.records.codec import murmur2

_POSITIVE = 0x7FFFFFFF  # Java's toPositive drops the sign bit; it does not negate


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key among `partitions`."""
    return (murmur2(key) & _POSITIVE) % partitions


class StickyChoice:
    """The partitions at which records without a key are at the moment, one for each topic."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._current: dict[str, int] = {}

    def current(self, topic: str, partitions: int) -> int:
        """Where the topic's records go now."""
        partition = self._current.get(topic)
        if partition is None or partition >= partitions:
            partition = self._current[topic] = self._random.randrange(partitions)
        return partition

    def move_on(self, topic: str, partition: int, partitions: int) -> None:
        """The batch of this partition is full: if it was the current one, choose another, if there is one."""
        if self._current.get(topic) == partition and partitions > 1:
            self._current[topic] = (partition + self._random.randrange(1, partitions)) % partitions
