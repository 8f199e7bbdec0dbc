"""The directory of a partition checked: its segments one after the other, and the small files beside them.

Owns: what may lie in such a directory, and how its parts fit together. Must not know: how findings are told, or what
else lies in the data directory.

1. Nothing is written, and nothing but reading is done: it is safe beside a running broker.
2. Beside a running broker the end of the active segment may be half written, a roll half done, and files may vanish;
   none of that is a finding.
"""

from collections.abc import Iterator
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from uuid import UUID

from broker.log.arrival import ARRIVAL
from broker.log.directory.checkpoint import (
    CONTIGUOUS_OFFSET,
    LEADER_EPOCHS,
    PARTITION_METADATA,
    read_epochs,
    read_offset,
    read_topic_id,
)
from broker.log.errors import CheckpointError
from broker.log.io.directory_names import DELETED_SUFFIX, INDEX_SUFFIXES, LOG_SUFFIX
from broker.log.io.disk import Disk
from broker.log.leader_epochs import LeaderEpochs
from warmlog.inspect.circumstances import is_left_alone
from warmlog.inspect.findings import Finding, Tally
from warmlog.inspect.history_checks import History, SnapshotChecks
from warmlog.inspect.paths import SegmentFile, segment_files
from warmlog.inspect.segment_checks import Circumstances, LogContext, Segment, SegmentCheck

KNOWN_FILES = frozenset({ARRIVAL, CONTIGUOUS_OFFSET, LEADER_EPOCHS, PARTITION_METADATA})
CHECKPOINT_HEAD_LINES = 2  # version and count
TEMPORARY_SUFFIX = ".tmp"  # a small file that is being replaced


class PartitionCheck:
    """Checks one partition. `findings()` does it, once; `log_end_offset` and `topic_id` are known afterwards.

    `gapless`: nobody has ever compacted the log, so no offset may be missing. `is_whole`: all of it could be read.
    `has_gaps`: some offset is missing. `epochs`: the leader epochs that its batches tell of.
    """

    def __init__(self, directory: Path, circumstances: Circumstances, tally: Tally, *, gapless: bool = False) -> None:
        self.directory = directory
        self.log_end_offset = 0
        self.topic_id: UUID | None = None
        self.is_whole = True
        self.has_gaps = False
        self.epochs: list[tuple[int, int]] = []
        self._circumstances = circumstances
        self._tally = tally
        self._gapless = gapless
        self._contiguous_offset: int | None = None
        self._epochs = LeaderEpochs()

    def findings(self) -> Iterator[Finding]:
        """Everything that is wrong, file by file. Raises OSError."""
        yield from self._unless_vanished(self._all_findings())

    def _all_findings(self) -> Iterator[Finding]:
        self._tally.partitions += 1
        yield from self._leader_epochs()
        yield from self._contiguity()
        yield from self._metadata()
        paths = sorted(self.directory.iterdir())  # once: beside a running broker a second look would see other files
        files = segment_files(paths)
        yield from self._names(paths, files)
        history = History()
        snapshots = SnapshotChecks(files, history)
        yield from snapshots.form()
        context = LogContext(
            epochs=self._epochs,
            history=history,
            snapshots=snapshots,
            circumstances=self._circumstances,
            tally=self._tally,
        )
        for segment in self._segments(files):
            check = SegmentCheck(segment, context)
            yield from self._unless_vanished(check.findings())
            self.log_end_offset = max(self.log_end_offset, check.next_offset)
            if history.is_whole and not self._gapless:  # else every gap is found
                yield from self._lost_end(segment, check.next_offset)
        self.is_whole, self.has_gaps, self.epochs = history.is_whole, history.has_gaps, history.epochs
        yield from self._end(snapshots, history)

    def _end(self, snapshots: SnapshotChecks, history: History) -> Iterator[Finding]:
        """What can be said once the end of the log is known."""
        if self._gapless:
            yield from history.gaps()
        if self._circumstances.running or not history.is_whole:
            return
        yield from snapshots.end(self.log_end_offset)
        for epoch, offset in self._epochs.entries:
            if offset > self.log_end_offset:
                what = f"leader epoch {epoch} begins at {offset}, but the log ends at {self.log_end_offset}"
                yield Finding(self.directory / LEADER_EPOCHS, what)

    def _unless_vanished(self, findings: Iterator[Finding]) -> Iterator[Finding]:
        """A running broker may take away a file while it is looked at."""
        try:
            yield from findings
        except FileNotFoundError:
            if not self._circumstances.running:
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
            yield Finding(path, "epochs and their first offsets do not both increase")

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

    def _lost_end(self, segment: Segment, end: int) -> Iterator[Finding]:
        """Find a gap to the next segment where the log is known to have had none."""
        following, known = segment.next_base_offset, self._contiguous_offset
        if following is not None and known is not None and max(known, end) < following:
            what = f"offsets {end} to {following - 1} are missing, which were there when the next segment began"
            yield Finding(segment.log, what)

    def _metadata(self) -> Iterator[Finding]:
        path = self.directory / PARTITION_METADATA
        try:
            self.topic_id = read_topic_id(Disk(), str(path))
        except CheckpointError as error:
            yield Finding(path, without_path(error, path))

    def _names(self, paths: list[Path], files: list[SegmentFile]) -> Iterator[Finding]:
        """Files that do not belong here, that are left over, or that have lost their segment."""
        running = self._circumstances.running
        of_segments = {file.path for file in files}
        for path in paths:
            known = path.name.removesuffix(TEMPORARY_SUFFIX) in KNOWN_FILES
            if path not in of_segments and (not known or (path.name not in KNOWN_FILES and not running)):
                yield Finding(path, "left over from an interrupted change" if known else "does not belong here")
        bases = {file.base_offset for file in files if file.suffix == LOG_SUFFIX and not file.state}
        for file in files:
            if file.state == DELETED_SUFFIX:
                continue  # of a segment that was removed or compacted: it waits for its delay, or for the next start
            if file.state and not running:
                yield Finding(file.path, "left over from an interrupted change")
            elif (
                file.suffix in INDEX_SUFFIXES
                and not file.state
                and file.base_offset not in bases
                and self._is_still(file.path)
            ):
                yield Finding(file.path, "belongs to no segment")

    def _segments(self, files: list[SegmentFile]) -> list[Segment]:
        """The segments, oldest first."""
        logs = [file for file in files if file.suffix == LOG_SUFFIX and not file.state]
        following = [file.base_offset for file in logs[1:]]
        return [self._segment(file, next_base) for file, next_base in zip_longest(logs, following)]

    def _segment(self, file: SegmentFile, next_base_offset: int | None) -> Segment:
        still = self._is_still(file.path)
        return Segment(
            log=file.path,
            base_offset=file.base_offset,
            next_base_offset=next_base_offset,
            still=still,
            settled=still and (next_base_offset is not None or self._circumstances.clean),
        )

    def _is_still(self, path: Path) -> bool:
        return not self._circumstances.running or is_left_alone(path)


def checkpoint_fault(path: Path) -> str | None:
    """What is wrong with a checkpoint that can be read and says nothing: Kafka makes empty ones, nobody half ones."""
    with suppress(FileNotFoundError):
        content = path.read_bytes()
        if content and len(content.splitlines()) < CHECKPOINT_HEAD_LINES:
            return f"{len(content)} bytes, but no version and count of entries"
    return None


def without_path(error: Exception, path: Path) -> str:
    """What the error says, without the path that the finding names anyway."""
    return str(error).removeprefix(f"{path}").lstrip(": ")
