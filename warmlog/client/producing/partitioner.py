"""Choose a record's partition.

1. A key maps to the partition that Kafka's Java client chooses for it: toPositive(murmur2(key)) % partitions. So it
   moves when partitions are added.
2. Records without a key stick to one partition until its batch is full, then move to another one at random. This fills
   batches better than round-robin (KIP-480).

Source: org.apache.kafka.clients.producer.internals.BuiltInPartitioner.
"""

from random import Random

from warmlog.protocol.records.codec import murmur2

_POSITIVE = 0x7FFFFFFF  # Java's toPositive clears the sign bit


def partition_of(key: bytes, partitions: int) -> int:
    """Return the key's partition."""
    return (murmur2(key) & _POSITIVE) % partitions


class StickyPartitions:
    """The current partition of records without a key, per topic."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._current: dict[str, int] = {}

    def current(self, topic: str, partitions: int) -> int:
        """Return the topic's current partition."""
        partition = self._current.get(topic)
        if partition is None or partition >= partitions:
            partition = self._current[topic] = self._random.randrange(partitions)
        return partition

    def move_on(self, topic: str, partition: int, partitions: int) -> None:
        """Choose another partition, if this one, whose batch is full, is the current one."""
        if self._current.get(topic) == partition and partitions > 1:
            self._current[topic] = (partition + self._random.randrange(1, partitions)) % partitions
