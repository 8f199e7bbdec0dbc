"""Offsets committed within open transactions.

Invariants:
1. Readers do not see pending offsets; a marker in the log partition commits or drops them. A transaction may span
   several partitions of `__consumer_offsets`, each with its own `PendingOffsets`.
2. The first marker after its record ends an offset, even if the marker is reported before the record: while an append
   is in progress, or the log partition is being loaded.

Source: org.apache.kafka.coordinator.group.OffsetMetadataManager (pendingTransactionalOffsets, openTransactions);
KIP-447.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple, TypeAlias

from warmlog.broker.groups.offsets import held_bytes
from warmlog.protocol.kafka.group_records import OffsetAndMetadata
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.markers import Outcome

_Key: TypeAlias = tuple[str, str, int]  # group, topic, partition


class PendingOffset(NamedTuple):
    """An offset that a transaction commits, and the offset of its record in `__consumer_offsets`."""

    group: str
    topic: str
    partition: int
    value: OffsetAndMetadata
    record_offset: int


class PendingTransaction:
    """The offsets of a transaction in one log partition."""

    __slots__ = ("offsets",)

    def __init__(self) -> None:
        self.offsets: dict[_Key, PendingOffset] = {}

    def __len__(self) -> int:
        return len(self.offsets)


class PendingOffsets:
    """The pending offsets of the groups of one log partition, by producer id."""

    def __init__(self) -> None:
        self._open: dict[int, PendingTransaction] = {}
        self._ended: set[PendingTransaction] = set()  # transactions with a written marker and offsets not taken yet
        self._groups: dict[str, dict[str, dict[int, set[PendingTransaction]]]] = {}  # by group, topic and partition
        self._count = 0
        self._bytes: Counter[str] = Counter()  # bytes held by the offsets of each group
        self._writes: Counter[int] = Counter()  # appends not reported yet
        self._is_loading = False
        self._markers: dict[int, list[tuple[int, Outcome]]] = {}  # markers reported in the meantime, with their offsets

    def __len__(self) -> int:
        """Return the number of offsets, counted per transaction."""
        return self._count

    # -- changes --

    def begin_write(self, producer_id: int) -> None:
        """Record that offsets of a producer are about to be appended."""
        self._writes[producer_id] += 1

    def end_write(self, producer_id: int) -> None:
        """Record that an append was reported. Call it after `put`."""
        self._writes[producer_id] -= 1
        if not self._writes[producer_id]:
            del self._writes[producer_id]
            self._forget_markers(producer_id)

    def begin_loading(self) -> None:
        """Record that the log partition is about to be read."""
        self._is_loading = True

    def finish_loading(self) -> None:
        """Record that the pending offsets of the log partition were `put`."""
        self._is_loading = False
        for producer_id in list(self._markers):
            self._forget_markers(producer_id)

    def _forget_markers(self, producer_id: int) -> None:
        if producer_id not in self._writes and not self._is_loading:
            self._markers.pop(producer_id, None)

    def outcome_of(self, producer_id: int, record_offset: int) -> Outcome | None:
        """Return the outcome of the transaction of a record being reported, if it has already ended."""
        for offset, outcome in self._markers.get(producer_id, ()):
            if offset > record_offset:
                return outcome
        return None

    def put(self, producer_id: int, pending: PendingOffset) -> None:
        """Add an offset; a later one of the same transaction replaces it."""
        transaction = self._open.get(producer_id)
        if transaction is None:
            transaction = self._open[producer_id] = PendingTransaction()
        key = (pending.group, pending.topic, pending.partition)
        known = transaction.offsets.get(key)
        if known is not None and known.record_offset > pending.record_offset:
            return
        transaction.offsets[key] = pending
        self._bytes[pending.group] += held_bytes(pending.value) - held_bytes(known and known.value)
        if known is None:
            group, topic, partition = key
            self._groups.setdefault(group, {}).setdefault(topic, {}).setdefault(partition, set()).add(transaction)
            self._count += 1

    def end(self, producer_id: int, marker_offset: int, outcome: Outcome) -> PendingTransaction | None:
        """Record that a marker was written. Return its transaction, whose offsets stay pending until `take`."""
        if producer_id in self._writes or self._is_loading:
            self._markers.setdefault(producer_id, []).append((marker_offset, outcome))
        transaction = self._open.pop(producer_id, None)
        if transaction is not None:
            self._ended.add(transaction)
        return transaction

    def take(self, transaction: PendingTransaction, limit: int) -> list[PendingOffset]:
        """Remove and return up to `limit` offsets of a transaction that has ended; none when there are no more."""
        taken = list(islice(transaction.offsets.values(), limit))
        for each in taken:
            self._remove(transaction, (each.group, each.topic, each.partition))
        if not transaction:
            self._ended.discard(transaction)
        return taken

    def remove(self, group: str, topic: str, partition: int, record_offset: int) -> None:
        """Remove the offsets that precede a tombstone at `record_offset`."""
        key = (group, topic, partition)
        for transaction in list(self._groups.get(group, {}).get(topic, {}).get(partition, ())):
            if transaction.offsets[key].record_offset < record_offset:
                self._remove(transaction, key)

    def remove_topic(self, topic: str, end: int) -> Iterator[tuple[str, list[int]]]:
        """Remove a deleted topic's offsets with records before `end`; yield each group and its partitions."""
        for group in [name for name, topics in self._groups.items() if topic in topics]:
            offsets = list(self._groups.get(group, {}).get(topic, {}).items())
            for partition, transactions in offsets:
                for transaction in list(transactions):
                    if transaction.offsets[group, topic, partition].record_offset < end:
                        self._remove(transaction, (group, topic, partition))
            # not for a partition with a later offset, which the tombstone would also remove when the log is read again
            yield group, [partition for partition, _ in offsets if not self.is_pending(group, topic, partition)]

    def forget(self, count: int) -> bool:
        """Drop `count` offsets of one transaction; return whether any are left."""
        if not self._ended and self._open:
            self._ended.add(self._open.popitem()[1])
        for transaction in [*islice(self._ended, 1)]:
            self.take(transaction, count)
        return bool(self._open or self._ended)

    # -- queries --

    def is_pending(self, group: str, topic: str, partition: int) -> bool:
        """Return whether an open transaction may still change a committed offset."""
        return partition in self._groups.get(group, {}).get(topic, {})

    def bytes_of(self, group: str) -> int:
        """Estimate the bytes that a group's pending offsets hold."""
        return self._bytes.get(group, 0)

    def has_any(self, group: str) -> bool:
        """Return whether a group has pending offsets."""
        return group in self._groups

    def groups(self) -> list[str]:
        """Return the groups that have pending offsets."""
        return list(self._groups)

    def of(self, group: str) -> list[TopicPartition]:
        """Return the partitions for which a group has pending offsets, in order."""
        topics = sorted(self._groups.get(group, {}).items())
        return [(topic, partition) for topic, partitions in topics for partition in sorted(partitions)]

    # -- inside --

    def _remove(self, transaction: PendingTransaction, key: _Key) -> None:
        removed = transaction.offsets.pop(key)
        self._count -= 1
        group, topic, partition = key
        self._bytes[group] -= held_bytes(removed.value)
        topics = self._groups[group]
        partitions = topics[topic]
        partitions[partition].discard(transaction)
        if not partitions[partition]:
            del partitions[partition]
        if not partitions:
            del topics[topic]
        if not topics:
            del self._groups[group], self._bytes[group]
