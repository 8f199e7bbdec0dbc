"""List a log's directory when the log is opened: find its segments, remove leftovers.

Leftovers are files that a crash caught between two names: deleted segments, unfinished compactions, temporary files,
and index files whose log file was renamed as deleted, or never became part of the log.

Below the recovery point, all names are on the disk, so any other index file without a log file shows that the log file
was lost. Then the log is not opened, and nothing is removed, until the file is back or an operator accepts the loss
(`accepted_loss`):

    log file        index at 0, next log file at 880
    log start       0             below 880, if records were deleted
    recovery point  1000          0 to 879 are lost. With 500: 0 to 499. With 0: they may never have existed

A lost segment without any file cannot be detected. A sealed segment with an empty log file has also lost its records if
one of its indexes has entries, or if the next segment is known to have begun at its end (`contiguity`). Compaction
leaves empty segments without either sign.

The log is also not opened if something other than a file has the name of one: a directory, a FIFO, a dangling link.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise, zip_longest
from typing import NamedTuple

from warmlog.broker.log.directory.accepted_loss import ACCEPT_LOSS, how_to_accept
from warmlog.broker.log.directory.arrival import ARRIVAL
from warmlog.broker.log.directory.checkpoint import CONTIGUOUS_OFFSET, LEADER_EPOCHS, PARTITION_METADATA
from warmlog.broker.log.errors import MissingFilesError
from warmlog.broker.log.io.directory_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_DIGITS,
    OFFSET_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    base_offset_of,
    segment_path,
)
from warmlog.broker.log.io.disk import DirectoryEntry, IrregularFileError, read_file
from warmlog.broker.log.recovery.context import LogContext
from warmlog.broker.log.recovery.contiguity import Contiguity
from warmlog.broker.log.recovery.findings import Findings
from warmlog.broker.log.recovery.swap import finish_swaps
from warmlog.broker.log.segments.segment import Segment

_LEFTOVER_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, ".tmp")
_SWAP_SUFFIXES = (CLEANED_SUFFIX, SWAP_SUFFIX)
_SMALL_FILES = frozenset({LEADER_EPOCHS, CONTIGUOUS_OFFSET, PARTITION_METADATA, ARRIVAL})


class Listing(NamedTuple):
    """The segments of a directory, oldest first, and the offsets of its producer snapshots."""

    segments: list[Segment]
    snapshots: list[int]
    is_new: bool  # the directory did not exist
    accepts_loss: bool  # it has the file with which an operator accepts a loss of records


def list_directory(context: LogContext, findings: Findings, *, recovery_point: int, log_start_offset: int) -> Listing:
    """Return the contents of a log's directory; create it if it is missing, and remove leftovers.

    Raises MissingFilesError if a log file was lost that held records past `log_start_offset`, and OSError.
    """
    entries, is_new = _settled_entries(context, findings)
    _refuse_irregular(context.directory, entries)
    names = {entry.name for entry in entries}
    sizes = {
        base_offset: entry.size
        for entry in entries
        if (base_offset := base_offset_of(entry.name)) is not None and entry.name[OFFSET_DIGITS:] == LOG_SUFFIX
    }
    emptied = _emptied(context, sizes)
    if ACCEPT_LOSS not in names:
        _refuse_lost_segments(
            context.directory, names, sizes, emptied, recovery_point=recovery_point, log_start_offset=log_start_offset
        )
    else:
        for base_offset in emptied:
            context.segment(base_offset, sizes.pop(base_offset), None).remove_files()
    leftovers: list[str] = []
    indexes: list[tuple[int, str]] = []
    snapshots: list[int] = []
    for entry in entries:
        name = entry.name
        base_offset = base_offset_of(name)
        if name.endswith(_LEFTOVER_SUFFIXES):
            leftovers.append(name)
        elif base_offset is not None:
            suffix = name[OFFSET_DIGITS:]
            if suffix in INDEX_SUFFIXES:
                indexes.append((base_offset, suffix))
            elif suffix == SNAPSHOT_SUFFIX:
                snapshots.append(base_offset)
    if ACCEPT_LOSS in names:
        indexes = [(base_offset, suffix) for base_offset, suffix in indexes if base_offset not in emptied]
        snapshots = [offset for offset in snapshots if offset not in emptied]
    orphans = [
        f"{base_offset:0{OFFSET_DIGITS}d}{suffix}" for base_offset, suffix in indexes if base_offset not in sizes
    ]
    _remove(context, orphans, leftovers)
    findings.leftovers += orphans + leftovers
    bases = sorted(sizes)
    segments = [context.segment(base, sizes[base], after) for base, after in zip_longest(bases, bases[1:])]
    with_aborted = {base_offset for base_offset, suffix in indexes if suffix == TRANSACTION_INDEX_SUFFIX}
    for segment in segments:
        segment.may_have_aborted = segment.base_offset in with_aborted
    return Listing(segments, snapshots, is_new, ACCEPT_LOSS in names)


def _refuse_irregular(directory: str, entries: Sequence[DirectoryEntry]) -> None:
    """Raise IrregularFileError if something other than a regular file has the name of a log's file."""
    for entry in entries:
        if (entry.is_directory or entry.is_other) and (
            entry.name in _SMALL_FILES or base_offset_of(entry.name) is not None
        ):
            raise IrregularFileError(f"{directory}/{entry.name}")


def _emptied(context: LogContext, sizes: Mapping[int, int]) -> list[int]:
    """Return the sealed segments whose log file is empty, but held records. Raises OSError."""
    bases = sorted(sizes)
    return [base for base, following in pairwise(bases) if not sizes[base] and _held_records(context, base, following)]


def _held_records(context: LogContext, base_offset: int, following: int) -> bool:
    """Return whether an empty segment is known to have had records before the next one began. Raises OSError."""
    for suffix in (OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        with suppress(FileNotFoundError):
            if any(read_file(context.disk, segment_path(context.directory, base_offset, suffix))):
                return True
    known = Contiguity(context.disk, context.directory).offset()
    return known is not None and following > known


def _refuse_lost_segments(
    directory: str,
    names: Collection[str],
    sizes: Mapping[int, int],
    emptied: Sequence[int],
    *,
    recovery_point: int,
    log_start_offset: int,
) -> None:
    """Raise MissingFilesError if there was a log file with records that were not deleted."""
    lost = dict.fromkeys(emptied, "is empty, but held")
    for name in names:
        base_offset = base_offset_of(name)
        if base_offset is not None and base_offset not in sizes and name[OFFSET_DIGITS:] in INDEX_SUFFIXES:
            lost[base_offset] = "is missing, with"
    for base_offset, how in sorted(lost.items()):
        path = segment_path(directory, base_offset, LOG_SUFFIX)
        end = min([recovery_point, *(base for base in sizes if base > base_offset)])
        if end > max(base_offset, log_start_offset) and os.path.basename(path) + DELETED_SUFFIX not in names:
            raise MissingFilesError(
                f"{path} {how} the records from {base_offset} to {end - 1}: {how_to_accept(directory)}"
            )


def _remove(context: LogContext, orphans: Sequence[str], leftovers: Sequence[str]) -> None:
    """Unlink indexes without a log file, and other leftovers."""
    for name in orphans:
        context.disk.unlink(f"{context.directory}/{name}")
    if orphans and leftovers:
        context.disk.sync_directory(context.directory)  # a `.log.deleted` explains them until they are gone
    for name in leftovers:
        context.disk.unlink(f"{context.directory}/{name}")


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
