"""Replace old segments by a compacted one, so that the log is complete at every moment, even across crashes.

    0  worker  <base>.log.cleaned and its indexes    written and synced by compaction; startup removes them
    1  worker  .cleaned -> .swap, directory synced   once all are renamed, startup finishes the swap
    2  loop    the log uses the new segment under the `.swap` names; readers of the old ones open `.deleted`
    3  worker  old files -> .deleted, directory synced; then .swap -> final names: the log, directory synced, its
               indexes, directory synced
    4  loop    the new segment uses the final names

Invariants:
1. After a crash at any step, startup finds either the old segments or the complete new one: a `.swap` file is valid
   unless there is a `.cleaned` file of the same or a lower base offset (step 1 was not over). A valid one replaces the
   segments in its range of offsets.
2. Every step renames the log file first: startup removes indexes without a log and rebuilds missing ones.
3. A reader opens the intended file or none; in the latter case it looks up the log's segments again (`index_repair`).
4. No step relies on the order in which a file system persists names: the directory is synced between steps. As long as
   startup finds a `.log.swap`, it removes the files whose names the new segment takes, also indexes already renamed.

Source: kafka.log.LocalLog.replaceSegments, org.apache.kafka.storage.internals.log.LogLoader (KAFKA-6264).
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from warmlog.broker.log.io.directory_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    base_offset_of,
    segment_path,
)
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import Descriptor
from warmlog.broker.log.segments.log_scan import walk_readable
from warmlog.broker.log.segments.segment import Segment
from warmlog.broker.log.segments.segment_map import Segments
from warmlog.protocol.records.record import MAX_INT64

_FILES = (LOG_SUFFIX, *INDEX_SUFFIXES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """One swap: the new segment, and the old ones it replaces, oldest first."""

    disk: Disk
    new: Segment
    old: Sequence[Segment]

    def prepare(self) -> None:
        """Run step 1. Blocking. Raises OSError, after removing the new files as far as possible."""
        try:
            self._remove_strays()
            _rename_all(self.disk, self.new, CLEANED_SUFFIX, SWAP_SUFFIX)
            self.disk.sync_directory(self.new.directory)
        except OSError:
            self._undo()
            raise

    def commit(self, segments: Segments) -> None:
        """Run step 2, on the event loop."""
        self.new.synced = True
        self.new.use_names(SWAP_SUFFIX, "")
        segments.replace(self.old, self.new)
        for segment in self.old:
            segment.removed = True
            segment.use_names(DELETED_SUFFIX)

    def finish(self) -> list[str]:
        """Run step 3; return the paths of the old files, to be unlinked later. Blocking. Raises OSError.

        After an error the log stays usable under the `.swap` names, and the next startup finishes the swap.
        """
        names = [name for segment in self.old for name in self._set_aside(segment)]
        self.disk.sync_directory(self.new.directory)
        _rename_all(self.disk, self.new, SWAP_SUFFIX, "", [LOG_SUFFIX])
        self.disk.sync_directory(self.new.directory)
        _rename_all(self.disk, self.new, SWAP_SUFFIX, "", INDEX_SUFFIXES)
        self.disk.sync_directory(self.new.directory)
        return names

    def end(self, segments: Segments) -> None:
        """Run step 4, on the event loop."""
        self.new.use_names("")
        segments.touch()

    def _remove_strays(self) -> None:
        """Remove files of killed compactions: a stray `.cleaned` would make startup undo this swap."""
        for entry in self.disk.scan(self.new.directory):
            is_stray = entry.name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX))
            if is_stray and base_offset_of(entry.name) != self.new.base_offset:
                self.disk.unlink(f"{self.new.directory}/{entry.name}")

    def _set_aside(self, segment: Segment) -> list[str]:
        """Rename an old segment's files to `.deleted`; return their paths.

        The producer snapshot at the new segment's base offset stays valid and is kept.
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
        """Remove the new files, `.swap` first: without a `.cleaned` beside it, a `.swap` is valid."""
        for extra in (SWAP_SUFFIX, CLEANED_SUFFIX):
            for suffix in _FILES:
                with suppress(FileNotFoundError):
                    self.disk.unlink(segment_path(self.new.directory, self.new.base_offset, suffix) + extra)


def _rename_all(disk: Disk, segment: Segment, old: str, new: str, suffixes: Sequence[str] = _FILES) -> None:
    """Change the extra suffix of a segment's files. Indexes may be missing, the log must exist. Raises OSError."""
    for suffix in suffixes:
        path = segment_path(segment.directory, segment.base_offset, suffix)
        try:
            disk.rename(path + old, path + new)
        except FileNotFoundError:
            if suffix == LOG_SUFFIX:
                raise


# -- after a crash -----------------------------------------------------------------------------------------------------


def finish_swaps(disk: Disk, directory: str, names: Iterable[str]) -> bool:
    """Finish or undo the swaps that a crash interrupted; return whether any file changed. Raises OSError.

    `names` are the directory's. `.deleted` files are left to the caller.
    """
    based = [(base, name) for name in names if (base := base_offset_of(name)) is not None]
    cleaned = [(base, name) for base, name in based if name.endswith(CLEANED_SUFFIX)]
    swaps = [(base, name) for base, name in based if name.endswith(SWAP_SUFFIX)]
    first_cleaned = min((base for base, _ in cleaned), default=MAX_INT64)
    void = [(base, name) for base, name in swaps if base >= first_cleaned]
    for names_of in (void, cleaned):  # in this order: a swap without its `.cleaned` would be valid at the next startup
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
    """Return the offset after the last readable batch of a log file. Raises OSError."""
    file = Descriptor(disk, disk.open(path, os.O_RDONLY))
    end = base_offset
    for _, header in walk_readable(file, 0, file.size()):
        end = header.next_offset
    return end
