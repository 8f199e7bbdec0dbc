"""What a reader of a group was given, and how far it is with that.

Owns: one list of records and the positions behind it. Must not know: where records come from, or who commits.

A commit needs to know which records are done. Nothing is noted down per record: a list is handed over with an iterator,
and what that one has left says how far the reader is. A record counts as done when the next one is asked for.

Taking from the iterator, `cut` and `done` may happen in two threads (`blocking`): each looks at the iterator in one
step of the interpreter, so no record is both given and cut off.
"""

from collections.abc import Iterator, Mapping
from operator import length_hint
from typing import TypeAlias

from warmlog.client.stream import ConsumedRecord

Place: TypeAlias = tuple[str, int]  # topic and partition


class Handed:
    """The last list of records. `left`: what of it was not taken yet."""

    __slots__ = ("_after", "_records", "_whole", "left")

    def __init__(self) -> None:
        self._records: list[ConsumedRecord] = []
        self._after: Mapping[Place, int] = {}
        self._whole = False
        self.left: Iterator[ConsumedRecord] = iter(())

    def reset(self, positions: Mapping[Place, int]) -> None:
        """Nothing was given of these partitions yet, which are read from here."""
        self._records, self._after, self.left = [], positions, iter(())

    def give(self, records: list[ConsumedRecord], after: Mapping[Place, int]) -> None:
        """The next list, to be taken from `left`; `after`: the positions behind it."""
        self._records, self._after, self._whole, self.left = records, after, False, iter(records)

    def give_whole(self, records: list[ConsumedRecord], after: Mapping[Place, int]) -> None:
        """The next list, taken at once."""
        self._records, self._after, self._whole, self.left = records, after, True, iter(())

    def settle(self) -> None:
        """The next list is asked for: all of this one is done."""
        self.cut()
        self._records = []

    def cut(self) -> None:
        """Take back what was not taken."""
        not_taken = len(list(self.left))
        if not_taken:
            self.cut_at(len(self._records) - not_taken)

    def cut_at(self, taken: int) -> None:
        """Only so many of the list were taken."""
        self._after, self._records, self.left = self._positions_at(taken), self._records[:taken], iter(())

    def done(self, *, with_last: bool) -> dict[Place, int]:
        """Where another reader would go on; `with_last`: what was taken last is done, too."""
        taken = len(self._records) - length_hint(self.left)
        if with_last:
            return self._positions_at(taken)
        return self._positions_at(0 if self._whole else max(taken - 1, 0))

    def _positions_at(self, index: int) -> dict[Place, int]:
        positions = dict(self._after)
        for record in reversed(self._records[index:]):
            positions[record.topic, record.partition] = record.offset
        return positions
