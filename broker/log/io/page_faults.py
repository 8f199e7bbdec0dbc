"""Count the event loop thread's page faults, minor (page resident) and major (read from disk), by operation.

    begin --- lookup --- end("index_warm") --- scan --- end("log_scan")      each end counts since the call before it

Each call is a getrusage system call: 0.2 us from the compiled version in `_page_cache.pyx`, 0.5 us from here. A read
makes two or three, all appends of one turn of the event loop together two. Faults outside of begin and end are reported
as "other". Faults of worker threads do not block the event loop and are not counted.
"""

import resource
from collections.abc import Iterable
from contextlib import suppress
from threading import get_ident, get_native_id
from typing import TYPE_CHECKING, Literal, TypeAlias

from warmlog.protocol.records.codec import compiled

Where: TypeAlias = Literal["index_warm", "index_cold", "log_scan", "append"]
SECTIONS: tuple[Where, ...] = ("index_warm", "index_cold", "log_scan", "append")


class FaultCounts:
    """The page faults of a thread, by operation."""

    __slots__ = ("_major_before", "_minor_before", "_thread", "major", "minor")

    def __init__(self, sections: Iterable[Where]) -> None:
        self.minor: dict[Where, int] = dict.fromkeys(sections, 0)
        self.major: dict[Where, int] = dict.fromkeys(sections, 0)
        self._thread = 0
        self._minor_before = self._major_before = 0

    def begin(self) -> None:
        """Start counting, in the calling thread."""
        used = resource.getrusage(resource.RUSAGE_THREAD)
        self._minor_before, self._major_before = used.ru_minflt, used.ru_majflt
        self._thread = get_ident()

    def end(self, where: Where) -> None:
        """Count the faults since the last `begin` or `end` under `where`. No effect in other threads."""
        if self._thread != get_ident():
            return
        used = resource.getrusage(resource.RUSAGE_THREAD)
        minor, major = used.ru_minflt, used.ru_majflt
        if minor != self._minor_before:
            self.minor[where] += minor - self._minor_before
            self._minor_before = minor
        if major != self._major_before:
            self.major[where] += major - self._major_before
            self._major_before = major

    def leave(self) -> None:
        """Stop counting."""
        self._thread = 0


if not TYPE_CHECKING and compiled:
    with suppress(ImportError):
        from warmlog.broker.log.io._page_cache import FaultCounts


class PageFaults(FaultCounts):
    """The counts of one broker. Only `total` and `rows` may be called outside of the event loop."""

    __slots__ = ("_native_id",)

    def __init__(self) -> None:
        super().__init__(SECTIONS)
        self._native_id = get_native_id()

    def total(self) -> tuple[int, int]:
        """Return all (minor, major) faults of the thread that created this object. Raises OSError."""
        with open(f"/proc/self/task/{self._native_id}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return int(fields[7]), int(fields[9])

    def rows(self) -> list[tuple[tuple[str, str], int]]:
        """Return ((kind, where), count) for all operations and the rest ("other"). Raises OSError."""
        rows: list[tuple[tuple[str, str], int]] = []
        for kind, counts, total in zip(("minor", "major"), (self.minor, self.major), self.total(), strict=True):
            rows += (((kind, where), count) for where, count in counts.items())
            rows.append(((kind, "other"), max(0, total - sum(counts.values()))))
        return rows
