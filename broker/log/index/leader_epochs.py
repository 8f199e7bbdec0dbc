"""The leader epochs of a log and the offset at which each began; `checkpoint` reads and writes the file.

Invariants:
1. Epochs and their first offsets both increase strictly.
2. `current` is never below an epoch in the list, and goes down only in `drop_empty`. It is above all of them in a log
   whose batches have the epochs of another cluster.

Source: org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache, KIP-101, KIP-279.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import count
from typing import ClassVar, Final

UNDEFINED: Final = -1
_numbers = count(1)  # its `next` is atomic: logs are opened in several threads


class LeaderEpochs:
    """The epochs of one log. Small enough to be copied for a worker.

    changes: a number that differs after each change of `current` in any log of the process.
    """

    changes: ClassVar[int] = 0

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        """Begin with (epoch, first offset) pairs read from a file; later pairs replace those out of order."""
        self._entries: list[tuple[int, int]] = []
        self._begin(0)
        self.changed = False
        for epoch, offset in entries:
            if epoch >= 0 and offset >= 0:
                self.assign(epoch, offset)
        self.changed = False

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """Pairs of epoch and first offset, oldest first."""
        return tuple(self._entries)

    @property
    def latest(self) -> int:
        """The last epoch in the list, or UNDEFINED."""
        return self._entries[-1][0] if self._entries else UNDEFINED

    def assign(self, epoch: int, first_offset: int) -> None:
        """Begin an epoch at an offset; drop entries with a later epoch or an offset that is not lower."""
        self._begin(max(self.current, epoch))
        entries = self._entries
        if entries and entries[-1][0] == epoch and first_offset >= entries[-1][1]:
            return
        while entries and (entries[-1][0] >= epoch or entries[-1][1] >= first_offset):
            entries.pop()
        entries.append((epoch, first_offset))
        self.changed = True

    def lead_without_entry(self, epoch: int) -> None:
        """Begin a leader epoch in which batches have epochs of another cluster, at most this one."""
        self._begin(max(self.current, epoch))

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop epochs that begin at or past the end of the log."""
        while self._entries and self._entries[-1][1] >= end_offset:
            self._entries.pop()
            self.changed = True

    def drop_empty(self, start_offset: int, end_offset: int) -> None:
        """Drop epochs in which no record was written, `current` included.

        An empty log keeps the epoch of the records that were removed from it.
        """
        if start_offset < end_offset:
            self.truncate_from_end(end_offset)
        self._begin(max(self.latest, 0))

    def _begin(self, epoch: int) -> None:
        self.current = epoch
        LeaderEpochs.changes = next(_numbers)

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop epochs that end at or before the log start offset; the one that contains it begins there."""
        begun = sum(1 for _, first_offset in self._entries if first_offset <= start_offset)
        if begun > 1 or (begun and self._entries[0][1] < start_offset):
            self._entries[:begun] = [(self._entries[begun - 1][0], start_offset)]
            self.changed = True

    def epoch_of(self, offset: int) -> int:
        """Return the epoch in which an offset was written, or UNDEFINED before the first entry."""
        slot = bisect_right(self._entries, offset, key=_first_offset) - 1
        return self._entries[slot][0] if slot >= 0 else UNDEFINED

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest epoch up to the requested one, and the offset at which it ended; UNDEFINED if unknown.

        An epoch before the first known one is assumed to end where that one begins.
        """
        if epoch == UNDEFINED or epoch > self.latest:
            return UNDEFINED, UNDEFINED
        if epoch == self.latest:
            return epoch, log_end_offset
        slot = bisect_right(self._entries, epoch, key=_epoch)
        largest = self._entries[slot - 1][0] if slot else epoch
        return largest, self._entries[slot][1]

    def end_offset_of_copy(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return what `end_offset` does, for a log whose batches have the epochs of another cluster.

        The current epoch, and some before it, are later than those of all batches: no batch was written in them.
        """
        end = self.end_offset(epoch, log_end_offset)
        if end[0] != UNDEFINED or not UNDEFINED < epoch <= self.current:
            return end
        return (self.latest if self._entries else epoch), log_end_offset


def _epoch(entry: tuple[int, int]) -> int:
    return entry[0]


def _first_offset(entry: tuple[int, int]) -> int:
    return entry[1]
