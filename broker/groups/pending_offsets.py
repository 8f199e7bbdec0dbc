"""Offsets committed within transactions that are still open.

Invariants:
1. A pending offset is visible to no reader; a marker in its log partition commits or drops it.
2. A marker in one partition of `__consumer_offsets` does not touch the offsets of another: a transaction may span both.

Source: org.apache.kafka.coordinator.group.OffsetMetadataManager (pendingTransactionalOffsets, openTransactions);
KIP-447.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias, TypeVar

from protocol.kafka.group_records import OffsetAndMetadata

_Place: TypeAlias = tuple[str, str, int]  # group, topic, partition
_Key = TypeVar("_Key")


class PendingOffset(NamedTuple):
    """An offset that a transaction commits, and the offset of its record in `__consumer_offsets`."""

    group: str
    topic: str
    partition: int
    value: OffsetAndMetadata
    record_offset: int


class PendingOffsets:
    """The pending offsets of all groups, by log partition and producer id."""

    def __init__(self) -> None:
        self._transactions: dict[tuple[int, int], dict[_Place, PendingOffset]] = {}
        self._places: Counter[_Place] = Counter()  # number of transactions that have an offset there
        self._groups: Counter[str] = Counter()  # number of places, over all transactions

    def put(self, log_partition: int, producer_id: int, pending: PendingOffset) -> None:
        """Add an offset; a later one of the same transaction replaces it."""
        offsets = self._transactions.setdefault((log_partition, producer_id), {})
        place = (pending.group, pending.topic, pending.partition)
        known = offsets.get(place)
        if known is not None and known.record_offset > pending.record_offset:
            return
        offsets[place] = pending
        if known is None:
            self._places[place] += 1
            self._groups[pending.group] += 1

    def end(self, log_partition: int, producer_id: int) -> list[PendingOffset]:
        """Remove and return the offsets of a transaction whose marker was written to a log partition."""
        offsets = self._transactions.pop((log_partition, producer_id), {})
        for place in offsets:
            self._release(place)
        return list(offsets.values())

    def is_pending(self, group: str, topic: str, partition: int) -> bool:
        """Return whether an open transaction may still change a committed offset."""
        return (group, topic, partition) in self._places

    def has_any(self, group: str) -> bool:
        """Return whether a group has pending offsets."""
        return group in self._groups

    def of(self, group: str) -> list[tuple[str, int]]:
        """Return the partitions for which a group has pending offsets, in order."""
        return sorted((topic, index) for name, topic, index in self._places if name == group)

    def remove(self, group: str, topic: str, partition: int, record_offset: int) -> None:
        """Remove the offsets that a tombstone at `record_offset` follows."""
        place = (group, topic, partition)
        if place in self._places:
            self._remove_all({place}, record_offset)

    def remove_topic(self, topic: str) -> Iterator[tuple[str, int]]:
        """Remove the offsets of a deleted topic; yield the group and partition of each, once."""
        places = {place for place in self._places if place[1] == topic}
        self._remove_all(places, None)
        for group, _, partition in sorted(places):
            yield group, partition

    def remove_partition(self, log_partition: int) -> None:
        """Remove what a log partition holds: it has gone offline."""
        for key in [key for key in self._transactions if key[0] == log_partition]:
            self.end(*key)

    def clear(self) -> None:
        """Remove all offsets."""
        self._transactions.clear()
        self._places.clear()
        self._groups.clear()

    def _remove_all(self, places: set[_Place], before: int | None) -> None:
        for key, offsets in list(self._transactions.items()):
            for place in places & offsets.keys():
                if before is None or offsets[place].record_offset < before:
                    del offsets[place]
                    self._release(place)
            if not offsets:
                del self._transactions[key]

    def _release(self, place: _Place) -> None:
        _decrement(self._places, place)
        _decrement(self._groups, place[0])


def _decrement(counter: Counter[_Key], key: _Key) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
