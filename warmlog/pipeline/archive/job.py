"""The job behind `warmlog pipeline archive`: batch after batch, each planned where the last one ended.

1. The archive is its own checkpoint: a job begins where the archive's last commit ends.
2. A batch takes at most `maxOffsetsPerTrigger` offsets, so a kill costs no more than one batch's work.
3. The group's offsets at the broker follow the commits. They are for people and lag tools. A job commits them again
   when it begins, in case the last one was killed between a commit and telling the broker.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from warmlog.pipeline.archive.files import FileRules, PartitionBy, Written, archiver
from warmlog.pipeline.archive.store import ArchiveStore, Commit
from warmlog.pipeline.errors import PipelineError, UnavailableError
from warmlog.pipeline.job_stats import JobStats, Reporter, added
from warmlog.pipeline.runner import Runner
from warmlog.pipeline.source.input import Plan, choose_input, rules_of
from warmlog.pipeline.source.options import EARLIEST, Bound, ReadOptions
from warmlog.pipeline.source.ranges import (
    Extent,
    Range,
    Ranges,
    TopicPartition,
    key_of,
    last_of,
    limited,
    resolve,
)

_log = logging.getLogger(__name__)

DEFAULT_BATCH_OFFSETS = 10_000_000  # a gigabyte of small records: some seconds of work for a kill to cost
MIN_SPLIT_OFFSETS = 250_000  # over the wire: a task costs some milliseconds, and leaves a file


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """How an archive is written: the same for as long as it exists."""

    partition_by: PartitionBy = "none"
    compression: str = "zstd"


class ArchiveJob:
    """Archives what is new, a batch at a time. The store must be locked.

    Raises PipelineError if the archive was begun with other settings.
    """

    def __init__(self, run: Runner, options: ReadOptions, store: ArchiveStore, settings: ArchiveSettings) -> None:
        self._run = run
        self._options = options
        self._store = store
        self._settings = settings
        last = store.last_commit()
        if last is not None:
            _check_same(store, last, options.columns, settings.partition_by)
        self._number = last.number if last is not None else 0
        self._positions: dict[TopicPartition, int] | None = last.ends() if last is not None else None
        self._until: Mapping[TopicPartition, int] | None = None
        self._stopped: set[TopicPartition] = set()
        self.reporter = Reporter("archive")
        self.commits = 0

    def run_once(self) -> Iterator[Commit]:
        """Archive what exists now, in as many batches as it takes. Raises PipelineError, InspectError, OSError."""
        self.commit_group()
        self._until = choose_input(self._options).look(
            lambda extents: {key_of(one): resolve(one, self._continued(extents)).end for one in extents}
        )
        while (commit := self.step()) is not None:
            yield commit

    def step(self) -> Commit | None:
        """Archive one batch; None if nothing is new. Raises PipelineError, InspectError, OSError."""
        plan = choose_input(self._split_options()).plan(self._choose)
        before = self._positions or {}
        if not any(wanted.end > before.get(key, wanted.start) for key, wanted in plan.ranges.items()):
            self._positions = before | {key: wanted.end for key, wanted in plan.ranges.items()}
            return None
        rules = FileRules(
            directory=str(self._store.run_directory),
            columns=self._options.columns,
            partition_by=self._settings.partition_by,
            compression=self._settings.compression,
        )
        written = self._run(plan.splits, archiver(rules, rules_of(self._options)))
        commit = self._commit(plan, before, written)
        self.commit_group()
        return commit

    def commit_group(self) -> None:
        """Commit the group's offsets as of the last batch; if the broker is away, the next batch does."""
        options = self._options
        if options.group is None or options.bootstrap is None or not self._positions:
            return
        from warmlog.pipeline.source.remote import commit_offsets  # imports the client

        offsets = [(topic, partition, end) for (topic, partition), end in self._positions.items()]
        try:
            commit_offsets(options.bootstrap, options.group, offsets)
        except UnavailableError as error:
            _log.warning("offsets of group %s not committed: %s", options.group, error)

    @property
    def is_stopped(self) -> bool:
        """Whether a partition was not read to its end because of a damaged batch."""
        return bool(self._stopped)

    def _split_options(self) -> ReadOptions:
        """Return options with a number of splits over the wire, unless one is given or a partition must be whole."""
        if self._options.on_corrupt == "stop":
            return replace(self._options, min_partitions=None)
        if self._options.path is not None or self._options.min_partitions is not None:
            return self._options
        most = self._options.max_offsets_per_trigger or DEFAULT_BATCH_OFFSETS
        return replace(self._options, min_partitions=max(min(2 * self._run.parallelism, most // MIN_SPLIT_OFFSETS), 1))

    def _continued(self, extents: Sequence[Extent]) -> ReadOptions:
        """Return the options with the start of the next batch."""
        if self._positions is None:
            return self._options
        each: dict[str, dict[int, int]] = {}
        for one in extents:
            each.setdefault(one.topic, {})[one.partition] = self._positions.get(key_of(one), EARLIEST)
        return replace(self._options, start=Bound(each=each))

    def _choose(self, extents: list[Extent]) -> dict[TopicPartition, Range]:
        options = self._continued(extents)
        there = {key_of(one): self._wanted(one, options) for one in extents if self._is_wanted(key_of(one))}
        starts = {key: wanted.start for key, wanted in there.items()}
        ends = {key: self._end(key, wanted) for key, wanted in there.items()}
        most = options.max_offsets_per_trigger or DEFAULT_BATCH_OFFSETS
        return {key: Range(start=starts[key], end=end) for key, end in limited(starts, ends, most).items()}

    def _wanted(self, extent: Extent, options: ReadOptions) -> Range:
        """Return what to archive of a partition; nothing if the options end before what is archived already."""
        wanted = resolve(extent, options)
        archived = (self._positions or {}).get(key_of(extent), 0)
        if wanted.start < archived <= last_of(extent, options):
            return Range(start=archived, end=archived)
        return wanted

    def _is_wanted(self, key: TopicPartition) -> bool:
        return key not in self._stopped and (self._until is None or key in self._until)

    def _end(self, key: TopicPartition, wanted: Range) -> int:
        return wanted.end if self._until is None else max(min(wanted.end, self._until[key]), wanted.start)

    def _commit(self, plan: Plan, before: Mapping[TopicPartition, int], written: Sequence[Written]) -> Commit:
        spans = {key: (end, end) for key, end in before.items()}
        spans |= {key: (wanted.start, wanted.end) for key, wanted in plan.ranges.items()}
        for part in written:
            if part.stopped_at is not None:
                key = part.topic, part.partition
                spans[key] = (spans[key][0], part.stopped_at)
                self._stopped.add(key)
        stats = added(part.stats for part in written)
        stats.skipped_bytes = plan.skipped_bytes
        files = [file for part in written for file in part.files]
        commit = Commit(
            number=self._number + 1,
            spans=_as_json(spans),
            partition_by=self._settings.partition_by,
            columns=self._options.columns,
            rows=stats.rows,
            lost_offsets=stats.lost_offsets + _lost_between(before, plan.ranges),
            damaged=tuple(one for part in written for one in part.damaged),
            files=tuple(file.name for file in files),
        )
        self._store.commit(commit, files)
        self._number, self._positions = commit.number, commit.ends()
        self._count(commit, stats)
        return commit

    def _count(self, commit: Commit, stats: JobStats) -> None:
        stats.lost_offsets = commit.lost_offsets
        self.reporter.add(stats)
        self.commits += 1
        self.reporter.tell(commits=self.commits, last_commit=commit.number)


def run_every(job: ArchiveJob, wait: Callable[[], Any]) -> Iterator[Commit]:
    """Archive what comes, for ever; `wait` after each step. A broker that is away is waited for."""
    job.commit_group()
    while True:
        try:
            commit = job.step()
        except UnavailableError as error:
            _log.warning("%s; trying again", error)
            commit = None
        if commit is not None:
            yield commit
        wait()


def _check_same(store: ArchiveStore, last: Commit, columns: tuple[str, ...], partition_by: str) -> None:
    for name, begun, asked in (
        ("partitioned by", last.partition_by, partition_by),
        ("of columns", ",".join(last.columns), ",".join(columns)),
    ):
        if begun != asked:
            raise PipelineError(
                f"{store.directory} is {name} {begun}, and cannot be continued with {asked}: use another directory"
            )


def _lost_between(before: Mapping[TopicPartition, int], ranges: Ranges) -> int:
    """Return how many offsets lie between the last commit and what could be read."""
    return sum(max(wanted.start - before.get(key, wanted.start), 0) for key, wanted in ranges.items())


def _as_json(spans: Mapping[TopicPartition, tuple[int, int]]) -> dict[str, dict[str, tuple[int, int]]]:
    form: dict[str, dict[str, tuple[int, int]]] = {}
    for (topic, partition), span in sorted(spans.items()):
        form.setdefault(topic, {})[str(partition)] = span
    return form
