"""Page faults by what took them: what the page cache does to a lookup, a scan, an append.

Owns: the counts, minor (the page was in memory) and major (the disk was waited for), of the thread that runs the loop.
Must not know: metrics, or what is looked for.

    begin --- lookup --- end("index_warm") --- scan --- end("log_scan")      each end counts since what came before it

Each begin and end is a system call, getrusage: 0.2 us from the compiled version in `_page_cache.pyx`, and half a
microsecond from here. A read has two or three of them, all appends of a turn together have two. Whatever is not between
a begin and an end is the thread's other faults. Faults of worker threads hold nobody up and are not counted here.
"""

import resource
from collections.abc import Iterable
from contextlib import suppress
from threading import get_ident, get_native_id
from typing import TYPE_CHECKING, Literal, TypeAlias

from protocol.records.codec import compiled

Where: TypeAlias = Literal["index_warm", "index_cold", "log_scan", "append"]
PLACES: tuple[Where, ...] = ("index_warm", "index_cold", "log_scan", "append")


class FaultCounts:
    """The faults of a thread, by what took them."""

    __slots__ = ("_major_before", "_minor_before", "_thread", "major", "minor")

    def __init__(self, places: Iterable[Where]) -> None:
        self.minor: dict[Where, int] = dict.fromkeys(places, 0)
        self.major: dict[Where, int] = dict.fromkeys(places, 0)
        self._thread = 0
        self._minor_before = self._major_before = 0

    def begin(self) -> None:
        """What comes now is to be counted, by this thread."""
        used = resource.getrusage(resource.RUSAGE_THREAD)
        self._minor_before, self._major_before = used.ru_minflt, used.ru_majflt
        self._thread = get_ident()

    def end(self, where: Where) -> None:
        """What came since `begin`, or the end before, was this. Nothing in another thread, or without `begin`."""
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
        """What comes now is not to be counted."""
        self._thread = 0


if not TYPE_CHECKING and compiled:
    with suppress(ImportError):
        from broker.log.io._page_cache import FaultCounts


class PageFaults(FaultCounts):
    """The counts of one broker. Everything belongs to the loop but `total` and `rows`."""

    __slots__ = ("_native_id",)

    def __init__(self) -> None:
        super().__init__(PLACES)
        self._native_id = get_native_id()

    def total(self) -> tuple[int, int]:
        """(minor, major) of the thread that made this, all in all; from any thread. Raises OSError."""
        with open(f"/proc/self/task/{self._native_id}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return int(fields[7]), int(fields[9])

    def rows(self) -> list[tuple[tuple[str, str], int]]:
        """((kind, where), count) of all places and the rest ("other"). From any thread. Raises OSError."""
        rows: list[tuple[tuple[str, str], int]] = []
        for kind, counts, total in zip(("minor", "major"), (self.minor, self.major), self.total(), strict=True):
            rows += (((kind, where), count) for where, count in counts.items())
            rows.append(((kind, "other"), max(0, total - sum(counts.values()))))
        return rows
