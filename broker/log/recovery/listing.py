"""List a log's directory when the log is opened: find its segments, remove leftovers.

Leftovers are files that a crash caught between two names: deleted segments, unfinished compactions, temporary files,
and index files without a log file.
"""

from itertools import zip_longest
from typing import NamedTuple

from warmlog.broker.log.io.directory_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_DIGITS,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    base_offset_of,
    segment_path,
)
from warmlog.broker.log.io.disk import DirectoryEntry
from warmlog.broker.log.recovery.context import LogContext
from warmlog.broker.log.recovery.findings import Findings
from warmlog.broker.log.recovery.swap import finish_swaps
from warmlog.broker.log.segments.segment import Segment

_LEFTOVER_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")
_SWAP_SUFFIXES = (CLEANED_SUFFIX, SWAP_SUFFIX)


class Listing(NamedTuple):
    """The segments of a directory, oldest first, and the offsets of its producer snapshots."""

    segments: list[Segment]
    snapshots: list[int]
    is_new: bool  # the directory did not exist


def list_directory(context: LogContext, findings: Findings) -> Listing:
    """Return what a log's directory holds, creating it if it is missing and removing leftovers. Raises OSError."""
    entries, is_new = _settled_entries(context, findings)
    sizes: dict[int, int] = {}
    indexes: list[tuple[int, str]] = []
    snapshots: list[int] = []
    for entry in entries:
        name = entry.name
        base_offset = base_offset_of(name)
        if name.endswith(_LEFTOVER_SUFFIXES):
            findings.leftovers.append(name)
            context.disk.unlink(f"{context.directory}/{name}")
        elif base_offset is not None:
            suffix = name[OFFSET_DIGITS:]
            if suffix == LOG_SUFFIX:
                sizes[base_offset] = entry.size
            elif suffix in INDEX_SUFFIXES:
                indexes.append((base_offset, suffix))
            elif suffix == SNAPSHOT_SUFFIX:
                snapshots.append(base_offset)
    for base_offset, suffix in indexes:
        if base_offset not in sizes:
            findings.leftovers.append(f"{base_offset:0{OFFSET_DIGITS}d}{suffix}")
            context.disk.unlink(segment_path(context.directory, base_offset, suffix))
    bases = sorted(sizes)
    segments = [context.segment(base, sizes[base], after) for base, after in zip_longest(bases, bases[1:])]
    with_aborted = {base_offset for base_offset, suffix in indexes if suffix == TRANSACTION_INDEX_SUFFIX}
    for segment in segments:
        segment.may_have_aborted = segment.base_offset in with_aborted
    return Listing(segments, snapshots, is_new)


def _settled_entries(context: LogContext, findings: Findings) -> tuple[list[DirectoryEntry], bool]:
    """Finish or undo interrupted compactions; return the entries after that, and whether the directory is new."""
    try:
        entries = context.disk.scan(context.directory, stat_suffix=LOG_SUFFIX)
    except FileNotFoundError:
        context.disk.make_directory(context.directory)
        return [], True
    if finish_swaps(context.disk, context.directory, [entry.name for entry in entries]):
        findings.leftovers += [entry.name for entry in entries if entry.name.endswith(_SWAP_SUFFIXES)]
        entries = context.disk.scan(context.directory, stat_suffix=LOG_SUFFIX)
    return entries, False
