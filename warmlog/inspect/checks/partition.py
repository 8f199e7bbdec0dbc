"""Check a partition's directory: its segments in order, and the small files beside them.

1. Files are only read: checking is safe beside a running broker.
2. Beside a running broker the last batch may be incomplete, a roll unfinished, and files may disappear; none of these
   is
a finding.
"""

from collections.abc import Iterator
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from uuid import UUID

from warmlog.broker.log.directory.arrival import ARRIVAL
from warmlog.broker.log.directory.checkpoint import (
    CONTIGUOUS_OFFSET,
    LEADER_EPOCHS,
    PARTITION_METADATA,
    read_epochs,
    read_offset,
    read_topic_id,
)
from warmlog.broker.log.errors import CheckpointError
from warmlog.broker.log.index.leader_epochs import LeaderEpochs
from warmlog.broker.log.io.directory_names import DELETED_SUFFIX, INDEX_SUFFIXES, LOG_SUFFIX
from warmlog.broker.log.io.disk import Disk
from warmlog.inspect.broker_state import is_idle
from warmlog.inspect.checks.history import History, SnapshotChecks
from warmlog.inspect.checks.segment import CheckContext, CheckedSegment, LogContext, SegmentCheck
from warmlog.inspect.findings import Finding, Tally
from warmlog.inspect.paths import SegmentFile, segment_files

KNOWN_FILES = frozenset({ARRIVAL, CONTIGUOUS_OFFSET, LEADER_EPOCHS, PARTITION_METADATA})
CHECKPOINT_HEADER_LINES = 2  # lines with the version and the count
TEMPORARY_SUFFIX = ".tmp"  # new content of a small file, before the rename


class PartitionCheck:
    """Checks one partition. `findings()` may be called once; the other attributes are valid afterwards.

    `gapless`: whether the log was never compacted, so that every missing offset is a finding. `is_whole`: whether every
    batch could be read. `has_gaps`: whether an offset is missing. `epochs`: (leader epoch, first offset) by the
    batches.
    """

    def __init__(self, directory: Path, context: CheckContext, tally: Tally, *, gapless: bool = False) -> None:
        self.directory = directory
        self.log_end_offset = 0
        self.topic_id: UUID | None = None
        self.is_whole = True
        self.has_gaps = False
        self.epochs: list[tuple[int, int]] = []
        self._context = context
        self._tally = tally
        self._gapless = gapless
        self._contiguous_offset: int | None = None
        self._epochs = LeaderEpochs()

    def findings(self) -> Iterator[Finding]:
        """Check every file of the partition. Raises OSError."""
        yield from self._unless_vanished(self._all_findings())

    def _all_findings(self) -> Iterator[Finding]:
        self._tally.partitions += 1
        yield from self._leader_epochs()
        yield from self._contiguity()
        yield from self._metadata()
        paths = sorted(self.directory.iterdir())  # listed once: beside a running broker, a second listing may differ
        files = segment_files(paths)
        yield from self._names(paths, files)
        history = History()
        snapshots = SnapshotChecks(files, history)
        yield from snapshots.decoding_findings()
        context = LogContext(
            epochs=self._epochs,
            history=history,
            snapshots=snapshots,
            check=self._context,
            tally=self._tally,
        )
        for segment in self._segments(files):
            check = SegmentCheck(segment, context)
            yield from self._unless_vanished(check.findings())
            self.log_end_offset = max(self.log_end_offset, check.next_offset)
            if history.is_whole and not self._gapless:  # a gapless log reports every gap
                yield from self._lost_end(segment, check.next_offset)
        self.is_whole, self.has_gaps, self.epochs = history.is_whole, history.has_gaps, history.epochs
        yield from self._end(snapshots, history)

    def _end(self, snapshots: SnapshotChecks, history: History) -> Iterator[Finding]:
        """Report findings that depend on the end of the log."""
        if self._gapless:
            yield from history.gaps()
        if self._context.running or not history.is_whole:
            return
        yield from snapshots.end_findings(self.log_end_offset)
        for epoch, offset in self._epochs.entries:
            if offset > self.log_end_offset:
                what = f"leader epoch {epoch} begins at offset {offset}, but the log ends at {self.log_end_offset}"
                yield Finding(self.directory / LEADER_EPOCHS, what)

    def _unless_vanished(self, findings: Iterator[Finding]) -> Iterator[Finding]:
        """Ignore a file that a running broker removes while it is checked."""
        try:
            yield from findings
        except FileNotFoundError:
            if not self._context.running:
                raise

    def _leader_epochs(self) -> Iterator[Finding]:
        path = self.directory / LEADER_EPOCHS
        try:
            entries = read_epochs(Disk(), str(path))
        except CheckpointError as error:
            yield Finding(path, without_path(error, path))
            return
        fault = checkpoint_fault(path)
        if fault is not None:
            yield Finding(path, fault)
        self._epochs = LeaderEpochs(entries)
        if list(self._epochs.entries) != entries:
            yield Finding(path, "leader epochs and their first offsets must both increase")

    def _contiguity(self) -> Iterator[Finding]:
        path = self.directory / CONTIGUOUS_OFFSET
        try:
            self._contiguous_offset = read_offset(Disk(), str(path))
        except CheckpointError as error:
            yield Finding(path, without_path(error, path))
            return
        fault = checkpoint_fault(path)
        if fault is not None:
            yield Finding(path, fault)

    def _lost_end(self, segment: CheckedSegment, end: int) -> Iterator[Finding]:
        """Report a gap before the next segment if the log is known to have been contiguous there."""
        following, known = segment.next_base_offset, self._contiguous_offset
        if following is not None and known is not None and max(known, end) < following:
            what = f"offsets {end} to {following - 1} are missing; they existed when the next segment was created"
            yield Finding(segment.log, what)

    def _metadata(self) -> Iterator[Finding]:
        path = self.directory / PARTITION_METADATA
        try:
            self.topic_id = read_topic_id(Disk(), str(path))
        except CheckpointError as error:
            yield Finding(path, without_path(error, path))

    def _names(self, paths: list[Path], files: list[SegmentFile]) -> Iterator[Finding]:
        """Report files that do not belong in the directory, are left over, or whose segment is missing."""
        running = self._context.running
        of_segments = {file.path for file in files}
        for path in paths:
            known = path.name.removesuffix(TEMPORARY_SUFFIX) in KNOWN_FILES
            if path not in of_segments and (not known or (path.name not in KNOWN_FILES and not running)):
                yield Finding(path, "left over from an interrupted change" if known else "does not belong here")
        bases = {file.base_offset for file in files if file.suffix == LOG_SUFFIX and not file.state}
        for file in files:
            if file.state == DELETED_SUFFIX:
                continue  # of a removed or compacted segment; deleted after file.delete.delay.ms or by the next start
            if file.state and not running:
                yield Finding(file.path, "left over from an interrupted change")
            elif (
                file.suffix in INDEX_SUFFIXES
                and not file.state
                and file.base_offset not in bases
                and self._is_at_rest(file.path)
            ):
                yield Finding(file.path, "belongs to no segment: there is no log file with this base offset")

    def _segments(self, files: list[SegmentFile]) -> list[CheckedSegment]:
        """List the segments by base offset."""
        logs = [file for file in files if file.suffix == LOG_SUFFIX and not file.state]
        following = [file.base_offset for file in logs[1:]]
        return [self._segment(file, next_base) for file, next_base in zip_longest(logs, following)]

    def _segment(self, file: SegmentFile, next_base_offset: int | None) -> CheckedSegment:
        at_rest = self._is_at_rest(file.path)
        return CheckedSegment(
            log=file.path,
            base_offset=file.base_offset,
            next_base_offset=next_base_offset,
            at_rest=at_rest,
            closed=at_rest and (next_base_offset is not None or self._context.clean),
        )

    def _is_at_rest(self, path: Path) -> bool:
        return not self._context.running or is_idle(path)


def checkpoint_fault(path: Path) -> str | None:
    """Return the fault of a checkpoint that parses as empty: Kafka writes empty files, but no partial headers."""
    with suppress(FileNotFoundError):
        content = path.read_bytes()
        if content and len(content.splitlines()) < CHECKPOINT_HEADER_LINES:
            return f"{len(content)} bytes, but no version and number of entries"
    return None


def without_path(error: Exception, path: Path) -> str:
    """Return the error's text without the path, which the finding already has."""
    return str(error).removeprefix(f"{path}").lstrip(": ")
