"""Repair a data directory (`log repair`): bring it to the state after a clean stop.

A repair opens and closes the logs as a broker's start and stop do, with two differences. The checks run first, and a
log without findings in a directory that was stopped cleanly is not opened. Files that cannot be trusted according to
the findings are removed or rebuilt from the batches, and recovery does the rest.

1. Nothing is truncated below a recovery point unless it is requested (`RepairOptions.cut_damaged`): damage to flushed
data is often a single batch, followed by days of records.
2. Everything is written through the given disk, so a dry run executes the same code on an overlay.
3. The metadata store and unknown files are not changed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import NamedTuple

from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.descriptions import RecoveryReport
from warmlog.broker.log.directory.checkpoint import (
    CLEANER_POINTS,
    LEADER_EPOCHS,
    PARTITION_METADATA,
    write_epochs,
    write_topic_id,
)
from warmlog.broker.log.directory.checkpointed_log import CheckpointedLog
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.errors import MissingFilesError
from warmlog.broker.log.index.leader_epochs import LeaderEpochs
from warmlog.broker.log.io.directory_names import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_DIGITS,
    SNAPSHOT_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    base_offset_of,
)
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.recovery.context import LogContext
from warmlog.broker.log.recovery.contiguity import Contiguity
from warmlog.broker.log.recovery.rebuild import rebuild_indexes
from warmlog.broker.log.recovery.rebuild_transactions import rebuild_transaction_indexes
from warmlog.broker.log.segments.segment import Segment
from warmlog.broker.metadata.topic import Topic
from warmlog.broker.partitions.epochs import assign_epoch
from warmlog.broker.settings.settings import Settings
from warmlog.broker.settings.topics import log_config
from warmlog.inspect.checks.directories import CheckOptions, DirectoryCheck
from warmlog.inspect.checks.directory_files import CHECKPOINTS
from warmlog.inspect.checks.partition import TEMPORARY_SUFFIX, PartitionCheck
from warmlog.inspect.findings import Finding, Tally
from warmlog.protocol.partitions import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOptions:
    """`settings`: the broker's. `cut_damaged`: also truncate at damage below recovery points. `clock`: returns ms."""

    settings: Settings
    checks: CheckOptions
    clock: Callable[[], int]
    cut_damaged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRepair:
    """The repairs of one log; segments are given by base offset.

    `recovery`: the actions of recovery, None if the log was not opened. `error`: why it could not be opened. `indexes`,
    `transaction_indexes`: rebuilt in addition. `removed`: snapshots that contradicted the log.
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
class DirectoryRepair:
    """The repairs of a data directory. `untouched`: number of logs not opened; `removed`: names of leftovers."""

    directory: str
    was_clean: bool
    untouched: int
    logs: tuple[LogRepair, ...]
    removed: tuple[str, ...]
    checkpoints: tuple[str, ...]

    @property
    def failed(self) -> bool:
        """Whether a log could not be opened."""
        return any(log.error is not None for log in self.logs)


class _Offsets(NamedTuple):
    high_watermark: int
    log_start_offset: int


class _Durability(NamedTuple):
    recovery_point: int

    def checkpoint_epochs(self) -> None:
        """Do nothing, since the epochs have not changed."""


class _OldSegments(NamedTuple):
    first_base_offset: int


class UntouchedLog(NamedTuple):
    """A log that was not opened, as the checkpoints describe it."""

    topic: str
    partition: int
    offsets: _Offsets
    durability: _Durability
    old_segments: _OldSegments


@dataclass(slots=True)
class _Work:
    """The state of a directory's repair."""

    directory: DataDirectory
    disk: Disk
    options: RepairOptions
    findings: list[Finding]
    topics: dict[str, Topic]
    repairs: list[LogRepair] = field(default_factory=list)
    logs: list[CheckpointedLog] = field(default_factory=list)


def repair_directory(
    directory: DataDirectory, disk: Disk, options: RepairOptions, topics: dict[str, Topic]
) -> DirectoryRepair:
    """Repair a locked data directory. `topics`: known topics by name. Blocking. Raises OSError."""
    directory.unmark_clean()
    check = DirectoryCheck(Path(directory.path), options.checks, Tally(), locked_clean=directory.was_clean)
    work = _Work(directory, disk, options, list(check.findings()), topics)
    untouched = 0
    for key, path in sorted(check.partitions.items()):
        findings = [finding for finding in work.findings if finding.path.parent == path]
        repairer = _LogRepairer(work, key, path, check.checks[key], findings)
        if not directory.was_clean or findings:
            repairer.run()
            continue
        work.logs.append(_untouched_log(directory, key, check.checks[key], path))
        if repairer.has_topic_id():
            untouched += 1
        else:
            repairer.run_unopened()
    removed = tuple(_remove_leftovers(directory, disk))
    directory.unserved = frozenset(  # a start still has to report their missing directories
        (topic, index)
        for topic, index in directory.hinted.difference(check.partitions)
        if topic in topics and index < topics[topic].partitions
    )
    checkpoints = _write_checkpoints(work)
    return DirectoryRepair(
        directory=directory.path,
        was_clean=directory.was_clean,
        untouched=untouched,
        logs=tuple(work.repairs),
        removed=removed,
        checkpoints=checkpoints,
    )


def _untouched_log(directory: DataDirectory, key: TopicPartition, check: PartitionCheck, path: Path) -> UntouchedLog:
    """Describe a sound log for the checkpoints: the current offsets, limited to the log."""
    end = check.log_end_offset
    first = min((base_offset_of(log.name) or 0 for log in path.glob(f"*{LOG_SUFFIX}")), default=0)
    start = max(_log_start(directory, key, end), first)
    recovery_point = min(max(directory.recovery_points.get(key, 0), 0), end)
    high_watermark = min(max(directory.high_watermarks.get(key, end), 0), end)
    return UntouchedLog(*key, _Offsets(high_watermark, start), _Durability(recovery_point), _OldSegments(first))


def _log_start(directory: DataDirectory, key: TopicPartition, end: int) -> int:
    """Return the log start offset in the checkpoint, or 0 if it belongs to files that have been replaced.

    Opening a log does the same: after a clean stop no log ends before its start.
    """
    start = directory.log_starts.get(key, 0)
    return 0 if directory.was_clean and start > end else start


class _LogRepairer:
    """Repairs one log."""

    def __init__(
        self, work: _Work, key: TopicPartition, path: Path, check: PartitionCheck, findings: Sequence[Finding]
    ) -> None:
        self._work = work
        self._key = key
        self._path = path
        self._check = check
        self._findings = findings
        self._known = work.topics.get(key[0])
        self._done = LogRepair(topic=key[0], partition=key[1])

    def run(self) -> None:
        """Repair the log, and record the actions or the failure."""
        try:
            self._prepare()
            log = self._open()
            try:
                bases = self._unsound_indexes(log)
                for base in bases:
                    log.reads.rebuild_indexes(base)
                self._done = replace(self._done, recovery=log.recovery, indexes=bases)
            except BaseException:
                log.close(clean=False)
                raise
            log.close()
            if bases := self._rebuild_active(bases):
                self._done = replace(self._done, indexes=bases)
            self._done = replace(self._done, transaction_indexes=self._rebuild_transactions())
            self._work.logs.append(log)
        except MissingFilesError as error:
            self._done = replace(self._done, error=str(error))
        except OSError as error:
            self._done = replace(self._done, error=f"{error.filename or self._path}: {error.strerror}")
        self._work.repairs.append(self._done)

    def has_topic_id(self) -> bool:
        """Return whether the directory has the id of its topic, or the topic is unknown."""
        return self._known is None or self._check.topic_id == self._known.id

    def run_unopened(self) -> None:
        """Repair a log whose only fault is its topic id."""
        self._prepare()
        self._work.repairs.append(self._done)

    def _prepare(self) -> None:
        """Remove files that cannot be trusted, and rewrite those whose content is known otherwise. Raises OSError."""
        self._forget_contiguity()
        self._done = replace(
            self._done,
            removed=tuple(self._remove_snapshots()),
            epochs_rewritten=self._rewrite_epochs(),
            topic_id_rewritten=self._write_topic_id(),
        )

    def _forget_contiguity(self) -> None:
        """Drop the information about gaps if the files were replaced, as opening after a clean stop does."""
        directory = self._work.directory
        if directory.was_clean and directory.recovery_points.get(self._key, 0) != self._check.log_end_offset:
            Contiguity(self._work.disk, str(self._path)).forget()

    def _write_topic_id(self) -> bool:
        """Write the topic's id if the directory lacks it, as a broker's start does."""
        if self.has_topic_id() or self._known is None:
            return False
        write_topic_id(self._work.disk, str(self._path / PARTITION_METADATA), self._known.id, sync=True)
        return True

    # -- before the log is opened --------------------------------------------------------------------------------------

    def _remove_snapshots(self) -> Iterator[str]:
        """Remove snapshots that contradict the log; recovery itself removes damaged ones."""
        for name in sorted({finding.path.name for finding in self._findings if finding.path.suffix == SNAPSHOT_SUFFIX}):
            self._work.disk.unlink(str(self._path / name))
            yield name

    def _rewrite_epochs(self) -> bool:
        """Rewrite the leader epochs from the batches if the checkpoint contradicts them."""
        if not self._is_reported(LEADER_EPOCHS):
            return False
        epochs = LeaderEpochs(self._check.epochs)
        write_epochs(self._work.disk, str(self._path / LEADER_EPOCHS), epochs.entries)
        return True

    def _is_reported(self, name: str) -> bool:
        """Return whether a finding concerns a file of this name, or its content."""
        return any(finding.path.name == name or "the checkpoint says" in finding.what for finding in self._findings)

    # -- opening -------------------------------------------------------------------------------------------------------

    def _open(self) -> PartitionLog:
        work = self._work
        topic, index = self._key
        log = PartitionLog.open(
            self._path,
            topic=topic,
            partition=index,
            config=self._config(),
            files=OpenFiles(disk=work.disk),
            clock=work.options.clock,
            random=Random(),  # noqa: S311  # spreads rolls over time; no secret
            recovery_point=self._recovery_point(),
            log_start_offset=_log_start(work.directory, self._key, self._check.log_end_offset),
            clean=False,
        )
        assign_epoch(log, records_lost=log.recovery is not None)
        log.durability.checkpoint_epochs()
        return log

    def _config(self) -> LogConfig:
        """Return the topic's settings; an unknown topic may be compacted."""
        settings = self._work.options.settings
        if self._known is None:
            return replace(log_config({}, settings), cleanup_policy="compact,delete")
        return log_config(self._known.configs, settings)

    def _recovery_point(self) -> int:
        """Return the start of recovery: the checkpoint, or the first damaged segment if it may be truncated."""
        checkpointed = self._work.directory.recovery_points.get(self._key, 0)
        damaged = [_base_of(finding) for finding in self._findings if finding.path.suffix == LOG_SUFFIX]
        return min([checkpointed, *damaged]) if self._work.options.cut_damaged else checkpointed

    # -- after the log was opened --------------------------------------------------------------------------------------

    def _unsound_indexes(self, log: PartitionLog) -> tuple[int, ...]:
        """Return the sealed segments with a wrong index, which a broker would rebuild at first use."""
        sealed = (base for base in self._wrong_indexes(log.recovery) if log.old_segments.first_base_offset <= base)
        return tuple(base for base in sealed if base < log.active_base_offset and self._log_path(base).exists())

    def _wrong_indexes(self, report: RecoveryReport | None) -> list[int]:
        """Return the segments with a wrong index that recovery has not rebuilt completely."""
        bases = {_base_of(finding) for finding in self._findings if finding.path.suffix in INDEX_SUFFIXES[:2]}
        kept = set() if report is None else {base for base in bases if base < report.recovery_point}
        done = set() if report is None else {*report.rebuilt_indexes, *report.rebuilt_time_indexes} - kept
        return sorted(bases - done)

    def _rebuild_active(self, rebuilt: tuple[int, ...]) -> tuple[int, ...]:
        """Rebuild the indexes of the last, now closed segment if needed; return all rebuilt segments."""
        active = self._segments()[-1]
        if active.base_offset in rebuilt or active.base_offset not in self._wrong_indexes(self._done.recovery):
            return rebuilt
        rebuild_indexes(active, self._config())
        return (*rebuilt, active.base_offset)

    def _log_path(self, base: int) -> Path:
        return self._path / f"{base:020}{LOG_SUFFIX}"

    def _rebuild_transactions(self) -> tuple[int, ...]:
        """Rebuild transaction indexes if one is wrong or the log was truncated; return all rebuilt segments."""
        report = self._done.recovery
        was_cut = report is not None and (report.truncated_bytes or report.removed_segments)
        is_wrong = any(finding.path.suffix == TRANSACTION_INDEX_SUFFIX for finding in self._findings)
        rebuilt = set() if report is None else {*report.rebuilt_transaction_indexes}
        if was_cut or is_wrong:
            rebuilt.update(rebuild_transaction_indexes(self._segments()))
        return tuple(sorted(rebuilt))

    def _segments(self) -> list[Segment]:
        """List all segments of the closed log."""
        work = self._work
        context = LogContext(
            directory=str(self._path),
            config=self._config(),
            files=OpenFiles(disk=work.disk),
            clock=work.options.clock,
            random=Random(),  # noqa: S311  # as above
        )
        entries = work.disk.scan(context.directory, stat_suffix=LOG_SUFFIX)
        sizes = {base_offset_of(entry.name): entry.size for entry in entries if _is_log(entry.name)}
        bases = sorted(base for base in sizes if base is not None)
        following = [*bases[1:], None]
        return [context.segment(base, sizes[base], after) for base, after in zip(bases, following, strict=True)]


def _is_log(name: str) -> bool:
    return base_offset_of(name) is not None and name[OFFSET_DIGITS:] == LOG_SUFFIX


def _base_of(finding: Finding) -> int:
    return base_offset_of(finding.path.name) or 0


def _remove_leftovers(directory: DataDirectory, disk: Disk) -> Iterator[str]:
    """Remove directories being deleted and temporary files, as a broker's start does; yield their names."""
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
    """Write wrong checkpoints and the marker of a clean stop; return the names of the checkpoints.

    Nothing is written if a log could not be opened, so that the next start retries.
    """
    directory = work.directory
    if any(log.error is not None for log in work.repairs):
        return ()
    damaged = {finding.path.name for finding in work.findings if finding.path.parent == Path(directory.path)}
    names: list[str] = []
    if not directory.was_clean or work.repairs or damaged & set(CHECKPOINTS):
        directory.write_checkpoints(work.logs)
        names += [name for name in CHECKPOINTS if name != CLEANER_POINTS]
    if CLEANER_POINTS in damaged:
        ends = {(log.topic, log.partition): log.offsets.high_watermark for log in work.logs}
        points = directory.cleaner_points.items()
        directory.write_cleaner_points({key: point for key, point in points if 0 <= point <= ends.get(key, -1)})
        names.append(CLEANER_POINTS)
    directory.mark_clean()
    return tuple(names)
