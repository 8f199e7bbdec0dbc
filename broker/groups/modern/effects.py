"""Effects of all groups whose state is stored as one record per part."""

from typing import Any, Generic, NamedTuple, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class StoreRows(NamedTuple, Generic[K, V]):
    """Effect: write records, then call `stored` of the group with the ticket and the outcome. None: a tombstone.

    With `successor`, the records of that group follow them, and once they are stored, the group is replaced.
    """

    rows: tuple[tuple[K, V | None], ...]
    ticket: int
    successor: Any = None
