"""The job behind `warmlog pipeline archive`: consecutive batches, each starting where the previous one ended.

1. The archive is its own checkpoint: a job starts where the archive's last commit ends.
2. The group's offsets at the broker follow the commits, so that the lag can be monitored. A job commits them again when
it starts, in case the previous job was killed between a commit and the request to the broker.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from warmlog.pipeline.archive.files import FileRules, PartitionBy, Written, archiver
from warmlog.pipeline.archive.store import ArchiveStore, Commit
from warmlog.pipeline.copying.group_offsets import GroupOffsets
from warmlog.pipeline.copying.progress import Progress
from warmlog.pipeline.errors import PipelineError, UnavailableError
from warmlog.pipeline.job_stats import JobStats, Reporter, added
from warmlog.pipeline.runner import Runner
from warmlog.pipeline.source.input import choose_input, rules_of
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.plan import Plan, size_of_split
from warmlog.protocol.partitions import TopicPartition

_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """Options for writing an archive. `partition_by` cannot change after the first run."""

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
        self._progress = Progress(options, last.positions() if last is not None else None, verb="archives")
        self._group = GroupOffsets(options, self._progress.warn)
        self.reporter = Reporter("archive")
        self.commits = 0

    def pending_bytes(self) -> int:
        """Return the approximate size of the records to archive. Raises PipelineError, InspectError, OSError."""
        return choose_input(self._options).size(self._progress.pending)

    def run_once(self, run: Runner) -> Iterator[Commit]:
        """Archive the records that exist now, in batches. Raises PipelineError, InspectError, OSError."""
        self.commit_group()
        self._progress.until = choose_input(self._options).with_extents(self._progress.ends)
        while (commit := self.step(run)) is not None:
            yield commit

    def step(self, run: Runner) -> Commit | None:
        """Archive one batch, unless there are no new records. Raises PipelineError, InspectError, OSError."""
        progress = self._progress
        plan = choose_input(progress.split_options(run.parallelism)).plan(progress.choose, lenient=progress.is_lenient)
        if not any(wanted.end > wanted.start for wanted in plan.ranges.values()):
            progress.positions = (progress.positions or {}) | progress.reached
            if self._group.is_behind:
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
        """Commit the group's offsets as of the last batch; after a failure, the next step retries."""
        self._group.commit(self._progress.positions)

    @property
    def is_stopped(self) -> bool:
        """Whether reading a partition stopped at a damaged batch."""
        return bool(self._progress.stopped)

    def _commit(self, plan: Plan, written: Sequence[Written]) -> Commit:
        progress = self._progress
        reached = (progress.positions or {}) | progress.reached
        starts = {key: wanted.start for key, wanted in plan.ranges.items()}
        for part in written:
            if part.stopped_at is not None:
                key = part.topic, part.partition
                reached[key] = replace(reached[key], offset=part.stopped_at)
                progress.stopped.add(key)
        stats = added(part.stats for part in written)
        stats.skipped_bytes = plan.skipped_bytes
        files = [file for part in written for file in part.files]
        commit = Commit(
            number=self._number + 1,
            spans=_by_topic({key: (starts.get(key, at.offset), at.offset) for key, at in reached.items()}),
            partition_by=self._settings.partition_by,
            columns=self._options.columns,
            rows=stats.rows,
            lost_offsets=stats.lost_offsets + progress.lost,
            damaged=tuple(damage for part in written for damage in part.damaged),
            files=tuple(file.name for file in files),
            topic_ids={key[0]: at.topic_id for key, at in reached.items() if at.topic_id is not None},
            leader_epochs=_by_topic(
                {key: at.leader_epoch for key, at in reached.items() if at.leader_epoch is not None}
            ),
        )
        self._store.commit(commit, files)
        self._number, progress.positions = commit.number, commit.positions()
        self._count(commit, stats)
        return commit

    def _count(self, commit: Commit, stats: JobStats) -> None:
        stats.lost_offsets = commit.lost_offsets
        self.reporter.add(stats)
        self.commits += 1
        self.reporter.set_details(commits=self.commits, last_commit=commit.number)


def run_every(job: ArchiveJob, run: Runner, wait: Callable[[], Any]) -> Iterator[Commit]:
    """Archive new records endlessly, calling `wait` after each step, even if the broker is unavailable."""
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
