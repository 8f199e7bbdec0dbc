"""Decide when generators of a group yield: assignors, and matching of topics."""

UNITS = 500  # units of work between yields, of 1 us at most each: up to 16 lines of Python


class Pace:
    """Counts units of work since the last yield of a generator.

        if pace.due(len(partitions)):
            yield

    A unit is a step of a loop in Python, or ten elements that a function in C handles.
    """

    __slots__ = ("_done", "_limit")

    def __init__(self, limit: int = UNITS) -> None:
        self._limit = limit
        self._done = 0

    def due(self, units: int = 1) -> bool:
        """Count finished units; return whether to yield, and if so restart the count."""
        self._done += units
        if self._done < self._limit:
            return False
        self._done = 0
        return True
