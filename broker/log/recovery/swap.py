"""A cleaned segment takes the place of those it stands for, without a moment in which the log is not whole.

Owns: the order of the renames, what readers find meanwhile, and what a start makes of a crash in between. Must not know
how the segment was made (`compaction`), or which segments should be.

    0  worker  <base>.log.cleaned, its indexes       made and synced by compaction; a start removes them
    1  worker  .cleaned -> .swap, directory synced   from when all are renamed, a start finishes the swap itself
    2  loop    the log reads the new segment, under the names `.swap`; who reads old ones looks for `.deleted`
    3  worker  the old files -> .deleted, directory synced, then .swap -> their own names: the log, directory synced,
               and its indexes, directory synced
    4  loop    the new segment has its own names

Invariants:
1. At every step a start finds the old segments, or the new one whole: a `.swap` counts unless a `.cleaned` of its base
   offset or a lower one is there (then step 1 was not over), and removes what it stands for.
2. In every file operation the log comes first: indexes without it are removed, and made anew where they are missing.
3. A reader finds the file it means, or none: then it looks again at what the log consists of (`sound_indexes`).
4. No step relies on the order in which a file system writes down names: the directory is synced between two of them. As
   long as a start finds a `.log.swap`, it removes what has the names that are to be taken, indexes of the new log, too.

Source: kafka.log.LocalLog.replaceSegments, org.apache.kafka.storage.internals.log.LogLoader (KAFKA-6264).
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from broker.log.io.directory_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    base_offset_of,
    segment_path,
)
from broker.log.io.disk import Disk
from broker.log.io.files import Descriptor
from broker.log.log_scan import walk_headers
from broker.log.segment import Segment
from broker.log.segments import Segments
from protocol.errors import ProtocolError
from protocol.records.record import MAX_INT64

_FILES = (LOG_SUFFIX, *INDEX_SUFFIXES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """One swap: the new segment, and the old ones it stands for, oldest first."""

    disk: Disk
    new: Segment
    old: Sequence[Segment]

    def prepare(self) -> None:
        """Step 1. For a worker. Raises OSError: then nothing of it is left, as far as that went."""
        try:
            self._clear_the_way()
            _rename_all(self.disk, self.new, CLEANED_SUFFIX, SWAP_SUFFIX)
            self.disk.sync_directory(self.new.directory)
        except OSError:
            self._undo()
            raise

    def commit(self, segments: Segments) -> None:
        """Step 2, on the loop."""
        self.new.synced = True
        self.new.use_names(SWAP_SUFFIX, "")
        segments.replace(self.old, self.new)
        for segment in self.old:
            segment.removed = True
            segment.use_names(DELETED_SUFFIX)

    def finish(self) -> list[str]:
        """Step 3; gives the names of the old files, to be unlinked later. For a worker. Raises OSError.

        Where it fails, the log goes on as it is, and the next start finishes.
        """
        names = [name for segment in self.old for name in self._set_aside(segment)]
        self.disk.sync_directory(self.new.directory)
        _rename_all(self.disk, self.new, SWAP_SUFFIX, "", [LOG_SUFFIX])
        self.disk.sync_directory(self.new.directory)
        _rename_all(self.disk, self.new, SWAP_SUFFIX, "", INDEX_SUFFIXES)
        self.disk.sync_directory(self.new.directory)
        return names

    def end(self, segments: Segments) -> None:
        """Step 4, on the loop."""
        self.new.use_names("")
        segments.touch()

    def _clear_the_way(self) -> None:
        """Remove what runs that were ended by force have left: a stray `.cleaned` would have a start undo this swap."""
        for entry in self.disk.scan(self.new.directory):
            is_stray = entry.name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX))
            if is_stray and base_offset_of(entry.name) != self.new.base_offset:
                self.disk.unlink(f"{self.new.directory}/{entry.name}")

    def _set_aside(self, segment: Segment) -> list[str]:
        """Rename the files of an old segment.

        The snapshot of producers at the new one's base offset is still true.
        """
        segment.close()
        is_replaced = segment.base_offset == self.new.base_offset
        names = []
        for suffix in _FILES if is_replaced else (*_FILES, SNAPSHOT_SUFFIX):
            path = segment_path(segment.directory, segment.base_offset, suffix)
            with suppress(FileNotFoundError):
                self.disk.rename(path, path + DELETED_SUFFIX)
                names.append(path + DELETED_SUFFIX)
        return names

    def _undo(self) -> None:
        """Remove what was prepared: the `.swap` first, for without `.cleaned` beside it, it counts."""
        for extra in (SWAP_SUFFIX, CLEANED_SUFFIX):
            for suffix in _FILES:
                with suppress(FileNotFoundError):
                    self.disk.unlink(segment_path(self.new.directory, self.new.base_offset, suffix) + extra)


def _rename_all(disk: Disk, segment: Segment, old: str, new: str, suffixes: Sequence[str] = _FILES) -> None:
    """Give these files of a segment another suffix behind their names. Indexes may be missing, the log may not."""
    for suffix in suffixes:
        path = segment_path(segment.directory, segment.base_offset, suffix)
        try:
            disk.rename(path + old, path + new)
        except FileNotFoundError:
            if suffix == LOG_SUFFIX:
                raise


# -- after a crash -----------------------------------------------------------------------------------------------------


def finish_swaps(disk: Disk, directory: str, names: Iterable[str]) -> bool:
    """Resolve what a crash left of compaction in a directory with these names; whether it changed. Raises OSError.

    Unfinished ones are undone, those that were on their way are finished. `.deleted` files are left to the caller.
    """
    based = [(base, name) for name in names if (base := base_offset_of(name)) is not None]
    cleaned = [(base, name) for base, name in based if name.endswith(CLEANED_SUFFIX)]
    swaps = [(base, name) for base, name in based if name.endswith(SWAP_SUFFIX)]
    first_cleaned = min((base for base, _ in cleaned), default=MAX_INT64)
    void = [(base, name) for base, name in swaps if base >= first_cleaned]
    for names_of in (void, cleaned):  # in this order: a swap without its `.cleaned` would count at the next start
        for _, name in names_of:
            disk.unlink(f"{directory}/{name}")
        if names_of:
            disk.sync_directory(directory)
    valid = [swap for swap in swaps if swap not in void]
    if valid:
        _finish(disk, directory, based, valid)
    return bool(swaps or cleaned)


def _finish(disk: Disk, directory: str, based: Sequence[tuple[int, str]], swaps: Sequence[tuple[int, str]]) -> None:
    logs = [(base, name) for base, name in swaps if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
    if logs:
        first = min(base for base, _ in logs)
        end = max(_next_offset(disk, f"{directory}/{name}", base) for base, name in logs)
        for base, name in based:
            if name.endswith(_FILES) and first <= base < end:
                disk.unlink(f"{directory}/{name}")
        disk.sync_directory(directory)
    for renamed in (logs, [swap for swap in swaps if swap not in logs]):
        for _, name in renamed:
            disk.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(SWAP_SUFFIX)}")
        disk.sync_directory(directory)


def _next_offset(disk: Disk, path: str, base_offset: int) -> int:
    """The offset after the last batch of a log file, or after the last one that can be read. Raises OSError."""
    file = Descriptor(disk, disk.open(path, os.O_RDONLY))
    end = base_offset
    with suppress(ProtocolError):
        for _, header in walk_headers(file, 0, file.size()):
            end = header.next_offset
    return end
