"""`log repair`'s work: a data directory brought to the state of one that was stopped in order.

Owns: what is done about which finding, and in which order. Must not know: how a log is recovered (`broker.log`), what
is sound (`*_checks`), or how it is told.

It is a start and a stop of a broker's logs, with these differences: verify looks first, and a log of a directory that
was stopped in order and in which it finds nothing is not opened. Where it does find something, what cannot be believed
is taken away first, or made anew from the batches, and recovery does the rest.

1. Below a recovery point nothing is cut, unless that is asked for (`Wishes.cut_damaged`): what was flushed once and is
   damaged now is one batch, but behind it may lie days of records.
2. Everything is written through the disk that is given: over a `RehearsalDisk` it is a dry run of this very code.
3. The metadata and what is not known are left alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import NamedTuple

from broker.log.config import LogConfig
from broker.log.descriptions import RecoveryReport
from broker.log.directory.checkpoint import (
    CLEANER_POINTS,
    LEADER_EPOCHS,
    PARTITION_METADATA,
    TopicPartition,
    write_epochs,
    write_topic_id,
)
from broker.log.directory.data_directory import CheckpointedLog, DataDirectory
from broker.log.io.directory_names import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_DIGITS,
    SNAPSHOT_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    base_offset_of,
)
from broker.log.io.disk import Disk
from broker.log.io.files import OpenFiles
from broker.log.leader_epochs import LeaderEpochs
from broker.log.partition_log import PartitionLog
from broker.log.recovery.contiguity import Contiguity
from broker.log.recovery.load import LogPlace
from broker.log.recovery.rebuild import rebuild_indexes
from broker.log.recovery.rebuild_transactions import rebuild_transaction_indexes
from broker.log.segment import Segment
from broker.metadata.topic import Topic
from broker.settings.settings import Settings
from broker.settings.topics import log_config
from warmlog.inspect.all_checks import DirectoryCheck, Looking
from warmlog.inspect.directory_checks import CHECKPOINTS
from warmlog.inspect.findings import Finding, Tally
from warmlog.inspect.partition_checks import TEMPORARY_SUFFIX, PartitionCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """How to repair. `settings`: the broker's; `cut_damaged`: also below the recovery points; `clock` gives ms."""

    settings: Settings
    looking: Looking
    clock: Callable[[], int]
    cut_damaged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MendedLog:
    """What was done to one log. Segments by their base offsets.

    `recovery`: what opening it did; None: it was not opened, or begun anew, or could not be opened for the reason in
    `error`. `indexes` and `transaction_indexes`: made anew beside that. `removed`: snapshots that did not fit the log.
    """

    topic: str
    partition: int
    recovery: RecoveryReport | None = None
    indexes: tuple[int, ...] = ()
    transaction_indexes: tuple[int, ...] = ()
    removed: tuple[str, ...] = ()
    epochs_rewritten: bool = False
    topic_id_rewritten: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MendedDirectory:
    """What was done to a data directory. `was_clean`: the last stop was; `removed`: names of what was left over."""

    directory: str
    was_clean: bool
    untouched: int
    logs: tuple[MendedLog, ...]
    removed: tuple[str, ...]
    checkpoints: tuple[str, ...]

    @property
    def failed(self) -> bool:
        """Whether some log could not be opened."""
        return any(log.error is not None for log in self.logs)


class SoundLog(NamedTuple):
    """A log that was left alone, as the checkpoints know it."""

    topic: str
    partition: int
    recovery_point: int
    high_watermark: int
    log_start_offset: int
    first_base_offset: int

    def checkpoint_epochs(self) -> None:
        """Nothing has changed."""


@dataclass(slots=True)
class _Work:
    """What a directory's repair knows while it is under way."""

    directory: DataDirectory
    disk: Disk
    wishes: Wishes
    findings: list[Finding]
    topics: dict[str, Topic]
    mended: list[MendedLog] = field(default_factory=list)
    logs: list[CheckpointedLog] = field(default_factory=list)


def mend(directory: DataDirectory, disk: Disk, wishes: Wishes, topics: dict[str, Topic]) -> MendedDirectory:
    """Repair a data directory that is locked. `topics`: those that are known, by name. Blocking. Raises OSError."""
    check = DirectoryCheck(Path(directory.path), wishes.looking, Tally(), locked_clean=directory.was_clean)
    work = _Work(directory, disk, wishes, list(check.findings()), topics)
    untouched = 0
    for key, path in sorted(check.partitions.items()):
        found = [finding for finding in work.findings if finding.path.parent == path]
        repair = _LogRepair(work, key, path, check.checks[key], found)
        if not directory.was_clean or found:
            repair.run()
            continue
        work.logs.append(_sound_log(directory, key, check.checks[key], path))
        if repair.bears_its_id():
            untouched += 1
        else:
            repair.run_unopened()
    removed = tuple(_remove_leftovers(directory, disk))
    checkpoints = _write_checkpoints(work)
    return MendedDirectory(
        directory=directory.path,
        was_clean=directory.was_clean,
        untouched=untouched,
        logs=tuple(work.mended),
        removed=removed,
        checkpoints=checkpoints,
    )


def _sound_log(directory: DataDirectory, key: TopicPartition, check: PartitionCheck, path: Path) -> SoundLog:
    """What the checkpoints say of a log in which nothing is wrong, where they can be believed."""
    end = check.log_end_offset
    first = min((base_offset_of(log.name) or 0 for log in path.glob(f"*{LOG_SUFFIX}")), default=0)
    start = max(_log_start(directory, key, end), first)
    recovery_point = min(max(directory.recovery_points.get(key, 0), 0), end)
    high_watermark = min(max(directory.high_watermarks.get(key, end), 0), end)
    return SoundLog(*key, recovery_point, high_watermark, start, first)


def _log_start(directory: DataDirectory, key: TopicPartition, end: int) -> int:
    """Return the log start offset in the checkpoint, or 0 where it tells of files that were here before.

    As opening a log does: after a clean stop no log ends before its start.
    """
    start = directory.log_starts.get(key, 0)
    return 0 if directory.was_clean and start > end else start


class _LogRepair:
    """The repair of one log."""

    def __init__(
        self, work: _Work, key: TopicPartition, path: Path, check: PartitionCheck, found: Sequence[Finding]
    ) -> None:
        self._work = work
        self._key = key
        self._path = path
        self._check = check
        self._found = found
        self._known = work.topics.get(key[0])
        self._did = MendedLog(topic=key[0], partition=key[1])

    def run(self) -> None:
        """Do it, and note what was done, or why it could not be."""
        try:
            self._prepare()
            log = self._open()
            try:
                bases = self._unsound_indexes(log)
                for base in bases:
                    log.rebuild_indexes(base)
                self._did = replace(self._did, recovery=log.recovery, indexes=bases)
            except BaseException:
                log.close(clean=False)
                raise
            log.close()
            if bases := self._rebuild_active(bases):
                self._did = replace(self._did, indexes=bases)
            self._did = replace(self._did, transaction_indexes=self._rebuild_transactions())
            self._work.logs.append(log)
        except OSError as error:
            self._did = replace(self._did, error=f"{error.filename or self._path}: {error.strerror}")
        self._work.mended.append(self._did)

    def bears_its_id(self) -> bool:
        """Whether the directory says whose it is, as far as the metadata know; a directory that says nothing may."""
        return self._known is None or self._check.topic_id == self._known.id

    def run_unopened(self) -> None:
        """Where nothing but the topic id is wrong."""
        self._prepare()
        self._work.mended.append(self._did)

    def _prepare(self) -> None:
        """Take away what cannot be trusted, and write anew what is known from elsewhere. Raises OSError."""
        self._forget_contiguity()
        self._did = replace(
            self._did,
            removed=tuple(self._remove_snapshots()),
            epochs_rewritten=self._rewrite_epochs(),
            topic_id_rewritten=self._write_topic_id(),
        )

    def _forget_contiguity(self) -> None:
        """Drop what is known of gaps in other files that were here before, as opening after a clean stop does."""
        directory = self._work.directory
        if directory.was_clean and directory.recovery_points.get(self._key, 0) != self._check.log_end_offset:
            Contiguity(self._work.disk, str(self._path)).forget()

    def _write_topic_id(self) -> bool:
        """See to it that the directory bears its topic's id, as a start does."""
        if self.bears_its_id() or self._known is None:
            return False
        write_topic_id(self._work.disk, str(self._path / PARTITION_METADATA), self._known.id, sync=True)
        return True

    # -- before --------------------------------------------------------------------------------------------------------

    def _remove_snapshots(self) -> Iterator[str]:
        """Those that say what the log does not; what is damaged recovery removes itself."""
        for name in sorted({finding.path.name for finding in self._found if finding.path.suffix == SNAPSHOT_SUFFIX}):
            self._work.disk.unlink(str(self._path / name))
            yield name

    def _rewrite_epochs(self) -> bool:
        """Where the checkpoint of the leader epochs contradicts the batches, they are right."""
        if not self._tells_of(LEADER_EPOCHS):
            return False
        epochs = LeaderEpochs(self._check.epochs)
        write_epochs(self._work.disk, str(self._path / LEADER_EPOCHS), epochs.entries)
        return True

    def _tells_of(self, name: str) -> bool:
        """Whether a finding is of a file of this name, or tells of what it says."""
        return any(finding.path.name == name or "the checkpoint says" in finding.what for finding in self._found)

    # -- opening -------------------------------------------------------------------------------------------------------

    def _open(self) -> PartitionLog:
        work = self._work
        topic, index = self._key
        return PartitionLog.open(
            self._path,
            topic=topic,
            partition=index,
            config=self._config(),
            files=OpenFiles(disk=work.disk),
            clock=work.wishes.clock,
            random=Random(),  # noqa: S311  # spreads rolls over time; no secret
            recovery_point=self._recovery_point(),
            log_start_offset=_log_start(work.directory, self._key, self._check.log_end_offset),
            clean=False,
        )

    def _config(self) -> LogConfig:
        """The topic's; of one that is not known nobody can say that it is not compacted."""
        settings = self._work.wishes.settings
        if self._known is None:
            return replace(log_config({}, settings), cleanup_policy="compact,delete")
        return log_config(self._known.configs, settings)

    def _recovery_point(self) -> int:
        """Where recovery begins: at the checkpoint's, or before the first damage if that may be cut."""
        checkpointed = self._work.directory.recovery_points.get(self._key, 0)
        damaged = [_base_of(finding) for finding in self._found if finding.path.suffix == LOG_SUFFIX]
        return min([checkpointed, *damaged]) if self._work.wishes.cut_damaged else checkpointed

    # -- what opening leaves -------------------------------------------------------------------------------------------

    def _unsound_indexes(self, log: PartitionLog) -> tuple[int, ...]:
        """The sealed segments with an index that verify found wrong: a broker makes them anew at their first use."""
        sealed = (base for base in self._wrong_indexes(log.recovery) if log.first_base_offset <= base)
        return tuple(base for base in sealed if base < log.active_base_offset and self._log_path(base).exists())

    def _wrong_indexes(self, report: RecoveryReport | None) -> list[int]:
        """Return the segments with an index that verify found wrong and recovery has not rebuilt whole."""
        found = {_base_of(finding) for finding in self._found if finding.path.suffix in INDEX_SUFFIXES[:2]}
        kept = set() if report is None else {base for base in found if base < report.recovery_point}
        done = set() if report is None else {*report.rebuilt_indexes, *report.rebuilt_time_indexes} - kept
        return sorted(found - done)

    def _rebuild_active(self, rebuilt: tuple[int, ...]) -> tuple[int, ...]:
        """Rebuild indexes of the segment that was the active one, now that it is closed; return all rebuilt ones."""
        active = self._segments()[-1]
        if active.base_offset in rebuilt or active.base_offset not in self._wrong_indexes(self._did.recovery):
            return rebuilt
        rebuild_indexes(active, self._config())
        return (*rebuilt, active.base_offset)

    def _log_path(self, base: int) -> Path:
        return self._path / f"{base:020}{LOG_SUFFIX}"

    def _rebuild_transactions(self) -> tuple[int, ...]:
        """The transaction indexes, where verify found one wrong or the log has been cut; and those of the recovery."""
        report = self._did.recovery
        was_cut = report is not None and (report.truncated_bytes or report.removed_segments)
        is_wrong = any(finding.path.suffix == TRANSACTION_INDEX_SUFFIX for finding in self._found)
        rebuilt = set() if report is None else {*report.rebuilt_transaction_indexes}
        if was_cut or is_wrong:
            rebuilt.update(rebuild_transaction_indexes(self._segments()))
        return tuple(sorted(rebuilt))

    def _segments(self) -> list[Segment]:
        """All segments, now that the log is closed."""
        work = self._work
        place = LogPlace(
            directory=str(self._path),
            config=self._config(),
            files=OpenFiles(disk=work.disk),
            clock=work.wishes.clock,
            random=Random(),  # noqa: S311  # as above
        )
        entries = work.disk.scan(place.directory, stat_suffix=LOG_SUFFIX)
        sizes = {base_offset_of(entry.name): entry.size for entry in entries if _is_log(entry.name)}
        bases = sorted(base for base in sizes if base is not None)
        following = [*bases[1:], None]
        return [place.segment(base, sizes[base], after) for base, after in zip(bases, following, strict=True)]


def _is_log(name: str) -> bool:
    return base_offset_of(name) is not None and name[OFFSET_DIGITS:] == LOG_SUFFIX


def _base_of(finding: Finding) -> int:
    return base_offset_of(finding.path.name) or 0


def _remove_leftovers(directory: DataDirectory, disk: Disk) -> Iterator[str]:
    """Directories that were being deleted, and small files that were being replaced, as a start does."""
    for name in directory.deleted_directories():
        path = directory.partition_path(name)
        for entry in disk.scan(path):
            disk.unlink(f"{path}/{entry.name}")
        disk.remove_directory(path)
        yield name
    for entry in sorted(disk.scan(directory.path)):
        if entry.name.endswith(TEMPORARY_SUFFIX) and not entry.is_directory and _is_ours(entry.name):
            disk.unlink(directory.partition_path(entry.name))
            yield entry.name


def _is_ours(name: str) -> bool:
    return name.removesuffix(TEMPORARY_SUFFIX) in {*CHECKPOINTS, "meta.properties", ".kafka_cleanshutdown"}


def _write_checkpoints(work: _Work) -> tuple[str, ...]:
    """The checkpoints, where they are not what they should be, and the marker of a clean stop.

    Gives the names of what was rewritten. Where a log could not be opened nothing is written: the next start tries.
    """
    directory = work.directory
    if any(log.error is not None for log in work.mended):
        return ()
    found = {finding.path.name for finding in work.findings if finding.path.parent == Path(directory.path)}
    names: list[str] = []
    if not directory.was_clean or work.mended or found & set(CHECKPOINTS):
        directory.write_checkpoints(work.logs)
        names += [name for name in CHECKPOINTS if name != CLEANER_POINTS]
    if CLEANER_POINTS in found:
        ends = {(log.topic, log.partition): log.high_watermark for log in work.logs}
        points = directory.cleaner_points.items()
        directory.write_cleaner_points({key: point for key, point in points if 0 <= point <= ends.get(key, -1)})
        names.append(CLEANER_POINTS)
    directory.mark_clean()
    return tuple(names)
