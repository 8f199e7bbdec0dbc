"""The job behind `warmlog pipeline archive`: batch after batch, each planned where the last one ended.

1. The archive is its own checkpoint: a job begins where the archive's last commit ends.
2. A batch takes at most `maxOffsetsPerTrigger` offsets, so a kill costs no more than one batch's work.
3. The group's offsets at the broker follow the commits, to monitor the lag. A job commits them again when it begins, in
   case the last one was killed between a commit and the request to the broker.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from warmlog.pipeline.archive.files import FileRules, PartitionBy, Written, archiver
from warmlog.pipeline.archive.store import ArchiveStore, Commit
from warmlog.pipeline.errors import DataLossError, PipelineError, UnavailableError
from warmlog.pipeline.job_stats import JobStats, Reporter, added
from warmlog.pipeline.runner import Runner
from warmlog.pipeline.source.input import choose_input, rules_of
from warmlog.pipeline.source.offsets import Position, continue_at, position_at
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.plan import Plan, size_of_split
from warmlog.pipeline.source.ranges import Extent, Range, key_of, last_of, limited, resolve, resolve_end
from warmlog.protocol.partitions import TopicPartition

_log = logging.getLogger(__name__)

T = TypeVar("T")

DEFAULT_BATCH_OFFSETS = 10_000_000  # a gigabyte of small records: a kill costs some seconds of work
MIN_SPLIT_OFFSETS = 250_000  # behind a broker: a task costs some milliseconds, and writes a file


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """Options for writing an archive; `partition_by` cannot change later."""

    partition_by: PartitionBy = "none"
    compression: str = "zstd"


class ArchiveJob:
    """Archives new records, a batch at a time. The store must be locked.

    Raises PipelineError if the archive has other columns, or another partitioning.
    """

    def __init__(self, options: ReadOptions, store: ArchiveStore, settings: ArchiveSettings) -> None:
        self._options = options
        self._store = store
        self._settings = settings
        last = store.last_commit()
        if last is not None:
            _check_same(store, last, options.columns, settings.partition_by)
        self._number = last.number if last is not None else 0
        self._positions: dict[TopicPartition, Position] | None = last.positions() if last is not None else None
        self._until: Mapping[TopicPartition, int] | None = None
        self._stopped: set[TopicPartition] = set()
        self._lost = 0  # offsets that were gone when the current batch was planned
        self._warned: set[str] = set()
        self._is_group_behind = False
        self._reached: dict[TopicPartition, Position] = {}  # the ends of the current plan
        self.reporter = Reporter("archive")
        self.commits = 0

    def pending_bytes(self) -> int:
        """Return the approximate size of the records to archive. Raises PipelineError, InspectError, OSError."""
        return choose_input(self._options).size(
            lambda extents: {
                key: Range(start=start, end=max(end, start)) for key, (start, end) in self._pending(extents).items()
            }
        )

    def run_once(self, run: Runner) -> Iterator[Commit]:
        """Archive the records that exist now, in batches. Raises PipelineError, InspectError, OSError."""
        self.commit_group()
        self._until = choose_input(self._options).with_extents(
            lambda extents: {key_of(extent): resolve_end(extent, self._options) for extent in extents}
        )
        while (commit := self.step(run)) is not None:
            yield commit

    def step(self, run: Runner) -> Commit | None:
        """Archive one batch; None if there are no new records. Raises PipelineError, InspectError, OSError."""
        lenient = self._positions is not None and not self._options.fail_on_data_loss
        plan = choose_input(self._split_options(run.parallelism)).plan(self._choose, lenient=lenient)
        if not any(wanted.end > wanted.start for wanted in plan.ranges.values()):
            self._positions = (self._positions or {}) | self._reached
            if self._is_group_behind:
                self.commit_group()
            return None
        rules = FileRules(
            directory=str(self._store.run_directory),
            columns=self._options.columns,
            partition_by=self._settings.partition_by,
            compression=self._settings.compression,
        )
        written = run(plan.splits, archiver(rules, rules_of(self._options)), size_of_split)
        commit = self._commit(plan, written)
        self.commit_group()
        return commit

    def commit_group(self) -> None:
        """Commit the group's offsets as of the last batch; if that fails, the next step tries again."""
        options = self._options
        if options.group is None or options.brokers is None or not self._positions:
            return
        from warmlog.pipeline.source.remote import commit_offsets  # imports the client

        offsets = {key: at.offset for key, at in self._positions.items()}
        try:
            commit_offsets(options.brokers, options.group, offsets)
            self._is_group_behind = False
        except PipelineError as error:
            self._is_group_behind = True
            self._warn(f"offsets of group {options.group} not committed: {error}")

    @property
    def is_stopped(self) -> bool:
        """Whether a partition was not read to its end because of a damaged batch."""
        return bool(self._stopped)

    def _split_options(self, parallelism: int) -> ReadOptions:
        """Return options with a number of splits for a broker, unless one is given or a partition must be one split."""
        options = self._options
        if options.path is not None or options.min_partitions is not None or options.on_corrupt == "stop":
            return options
        return replace(options, min_partitions=2 * parallelism, min_split_offsets=MIN_SPLIT_OFFSETS)

    def _choose(self, extents: list[Extent]) -> dict[TopicPartition, Range]:
        self._lost = 0
        for topic, partition in (self._positions or {}).keys() - {key_of(extent) for extent in extents}:
            if self._options.topics.wants(topic, partition):
                self._warn(f"{topic}-{partition} is gone")
        wanted = {key_of(extent): extent for extent in extents if self._is_wanted(key_of(extent))}
        pending = self._pending(wanted.values())
        starts = {key: start for key, (start, _) in pending.items()}
        ends = {key: max(end, start) for key, (start, end) in pending.items()}
        reached = limited(starts, ends, self._options.max_offsets_per_trigger or DEFAULT_BATCH_OFFSETS)
        before = self._positions or {}
        self._reached = {key: position_at(extent, reached[key], before.get(key)) for key, extent in wanted.items()}
        return {key: Range(start=starts[key], end=reached[key]) for key in wanted}

    def _pending(self, extents: Iterable[Extent]) -> dict[TopicPartition, tuple[int, int]]:
        """Return the start and end of the pending offsets of each partition."""
        return {key_of(extent): (self._start(extent), self._end(extent)) for extent in extents}

    def _is_wanted(self, key: TopicPartition) -> bool:
        return key not in self._stopped and (self._until is None or key in self._until)

    def _start(self, extent: Extent) -> int:
        """Return where to continue: at the end of the last commit, or at the beginning of a new partition."""
        if self._positions is None:
            return resolve(extent, self._options).start
        position = self._positions.get(key_of(extent))
        if position is None:
            return extent.start_offset
        end = last_of(extent, self._options)
        if self._options.flushed_only:
            end = max(end, position.offset)  # recovery points are checkpointed late, and may decrease
        return continue_at(extent, position, end, self._lose)

    def _end(self, extent: Extent) -> int:
        end = resolve_end(extent, self._options)
        return end if self._until is None else min(end, self._until[key_of(extent)])

    def _lose(self, what: str, count: int) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{what} (failOnDataLoss=false archives what is left)")
        self._warn(what)
        self._lost += count

    def _warn(self, what: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("%s", what)

    def _commit(self, plan: Plan, written: Sequence[Written]) -> Commit:
        reached = (self._positions or {}) | self._reached
        starts = {key: wanted.start for key, wanted in plan.ranges.items()}
        for part in written:
            if part.stopped_at is not None:
                key = part.topic, part.partition
                reached[key] = replace(reached[key], offset=part.stopped_at)
                self._stopped.add(key)
        stats = added(part.stats for part in written)
        stats.skipped_bytes = plan.skipped_bytes
        files = [file for part in written for file in part.files]
        commit = Commit(
            number=self._number + 1,
            spans=_by_topic({key: (starts.get(key, at.offset), at.offset) for key, at in reached.items()}),
            partition_by=self._settings.partition_by,
            columns=self._options.columns,
            rows=stats.rows,
            lost_offsets=stats.lost_offsets + self._lost,
            damaged=tuple(damage for part in written for damage in part.damaged),
            files=tuple(file.name for file in files),
            topic_ids={key[0]: at.topic_id for key, at in reached.items() if at.topic_id is not None},
            leader_epochs=_by_topic(
                {key: at.leader_epoch for key, at in reached.items() if at.leader_epoch is not None}
            ),
        )
        self._store.commit(commit, files)
        self._number, self._positions = commit.number, commit.positions()
        self._count(commit, stats)
        return commit

    def _count(self, commit: Commit, stats: JobStats) -> None:
        stats.lost_offsets = commit.lost_offsets
        self.reporter.add(stats)
        self.commits += 1
        self.reporter.set_details(commits=self.commits, last_commit=commit.number)


def run_every(job: ArchiveJob, run: Runner, wait: Callable[[], Any]) -> Iterator[Commit]:
    """Archive new records without end, calling `wait` after each step, also if the broker is unavailable."""
    job.commit_group()
    while True:
        try:
            commit = job.step(run)
        except UnavailableError as error:
            _log.warning("%s; retrying", error)
            commit = None
        if commit is not None:
            yield commit
        wait()


def _check_same(store: ArchiveStore, last: Commit, columns: tuple[str, ...], partition_by: str) -> None:
    for name, begun, wanted in (
        ("partitioned by", last.partition_by, partition_by),
        ("written with the columns", ",".join(last.columns), ",".join(columns)),
    ):
        if begun != wanted:
            raise PipelineError(
                f"{store.directory} is {name} {begun}, and cannot be continued with {wanted}: use another directory"
            )


def _by_topic(values: Mapping[TopicPartition, T]) -> dict[str, dict[str, T]]:
    form: dict[str, dict[str, T]] = {}
    for (topic, partition), value in sorted(values.items()):
        form.setdefault(topic, {})[str(partition)] = value
    return form
