"""Track which delivered records are processed, and thereby the offsets that may be committed.

A record counts as processed when the next one is requested. Nothing is stored per record: a list is delivered through
an iterator, whose remaining items show the caller's progress.

With the blocking client, the caller's thread takes records from the iterator while the client's thread calls `revoke`
and `committable`. Each of these methods reads the iterator in one step of the interpreter, so no record is both
delivered and revoked.
"""

from collections.abc import Collection, Iterator, Mapping
from operator import length_hint

from warmlog.client.consuming.stream import ConsumedRecord
from warmlog.protocol.partitions import TopicPartition


class DeliveryTracker:
    """The current list of records. `remaining`: the records not taken yet."""

    __slots__ = ("_after", "_kept_back", "_records", "_whole", "remaining")

    def __init__(self) -> None:
        self._records: list[ConsumedRecord] = []
        self._after: Mapping[TopicPartition, int] = {}
        self._whole = False
        self._kept_back: list[ConsumedRecord] = []  # set by `keep_back`
        self.remaining: Iterator[ConsumedRecord] = iter(())

    def reset(self, positions: Mapping[TopicPartition, int]) -> None:
        """Start at these positions; nothing has been delivered yet."""
        self._records, self._after, self.remaining = [], positions, iter(())
        self._kept_back = []

    def deliver(self, records: list[ConsumedRecord], after: Mapping[TopicPartition, int]) -> None:
        """Deliver a list through `remaining`. `after`: the positions after it."""
        self._records, self._after, self._whole, self.remaining = records, after, False, iter(records)

    def deliver_all(self, records: list[ConsumedRecord], after: Mapping[TopicPartition, int]) -> None:
        """Deliver a list that the caller takes as a whole."""
        self._records, self._after, self._whole, self.remaining = records, after, True, iter(())

    def finish(self) -> None:
        """Mark the whole list as processed, because the next one is requested."""
        self._revoke_remaining()
        self._records = []

    def revoke(self) -> None:
        """Revoke the records that have not been taken."""
        self._revoke_remaining()
        self._kept_back = []

    def _revoke_remaining(self) -> list[ConsumedRecord]:
        not_taken = list(self.remaining)
        if not_taken:
            self.revoke_after(len(self._records) - len(not_taken))
        return not_taken

    def keep_back(self) -> None:
        """Retain the records not taken until `take_kept_back`, so that the caller requests the next list."""
        self._kept_back = self._revoke_remaining() or self._kept_back

    def take_kept_back(self) -> list[ConsumedRecord]:
        """Return the records retained by `keep_back`, to be delivered as a separate list."""
        kept, self._kept_back = self._kept_back, []
        return kept

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        """Continue with further partitions, at these positions."""
        self._after = {**positions, **self._after}

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Continue without these partitions, whose offsets are already committed. The list must be finished."""
        self._after = {key: offset for key, offset in self._after.items() if key not in partitions}
        self._kept_back = [record for record in self._kept_back if (record.topic, record.partition) not in partitions]

    def revoke_after(self, taken: int) -> None:
        """Revoke all but the first `taken` records of the list."""
        self._after, self._records, self.remaining = self._positions_at(taken), self._records[:taken], iter(())

    def revoke_last(self) -> None:
        """Also revoke the record (or whole list) taken last."""
        self.revoke()
        self.revoke_after(0 if self._whole else max(len(self._records) - 1, 0))

    def first_left(self, key: TopicPartition) -> int | None:
        """Return the offset of a partition's first record not taken, or None if all were taken."""
        return next((record.offset for record in self._left() if (record.topic, record.partition) == key), None)

    def move(self, key: TopicPartition, offset: int, *, keep_taken: bool) -> None:
        """Continue a partition at an offset, dropping its records not taken.

        `keep_taken`: records already taken still count; otherwise this offset is committed.
        """
        left = list(self.remaining)
        taken = self._records[: len(self._records) - len(left)]
        if not keep_taken:
            taken = [record for record in taken if (record.topic, record.partition) != key]
        left = [record for record in left if (record.topic, record.partition) != key]
        self._records, self.remaining = taken + left, iter(left)
        self._kept_back = [record for record in self._kept_back if (record.topic, record.partition) != key]
        self._after = {**self._after, key: offset}

    def _left(self) -> list[ConsumedRecord]:
        """Return the records not taken, without removing them."""
        left = list(self.remaining)
        self.remaining = iter(left)
        return left + self._kept_back

    def committable(self, *, include_last: bool) -> dict[TopicPartition, int]:
        """Return the offsets to commit. `include_last`: the record (or whole list) taken last counts as processed."""
        taken = len(self._records) - length_hint(self.remaining)
        if include_last:
            return self._positions_at(taken)
        return self._positions_at(0 if self._whole else max(taken - 1, 0))

    def _positions_at(self, index: int) -> dict[TopicPartition, int]:
        positions = dict(self._after)
        for record in reversed(self._records[index:]):
            positions[record.topic, record.partition] = record.offset
        return positions
