"""The job behind `warmlog pipeline archive`: batch after batch, each planned where the last one ended.

Owns: which offsets the next batch takes, what its commit says, and what the group is told. Must not know: how files are
written (`archive`) or committed (`lake`), the command line.

1. The archive is its own checkpoint: a job begins where the archive's last commit ends, and nothing else is asked.
2. A batch takes at most `maxOffsetsPerTrigger` offsets, so a kill costs no more than one batch's work.
3. The group's offsets at the broker follow the commits, never the other way: they are for people and lag tools. A job
   tells them once more when it begins, should the last one have been killed in between.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from warmlog.pipeline.archive import ArchiveRules, PartitionBy, Written, archiver
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.jobs import Runner
from warmlog.pipeline.lake import Commit, Lake
from warmlog.pipeline.measured import Measured, Reporter, added
from warmlog.pipeline.options import EARLIEST, ReadOptions
from warmlog.pipeline.options import Place as Start
from warmlog.pipeline.origin import JobPlan, Place, extents_of, plan_job, rules_of
from warmlog.pipeline.positions import Extent, Range, last_of, resolve
from warmlog.pipeline.stream import limited
from warmlog.pipeline.wire import LostError

_log = logging.getLogger(__name__)

# Of one commit, where the options say nothing: a gigabyte of small records, some seconds of work to be lost by a kill.
DEFAULT_BATCH_OFFSETS = 10_000_000
# Over the wire a split is so many offsets at least: a task costs some milliseconds, and leaves a file.
MIN_SPLIT_OFFSETS = 250_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """How an archive is written: the same as long as it lives."""

    partition_by: PartitionBy = "none"
    compression: str = "zstd"


class ArchiveJob:
    """Archives what is new, a batch at a time. The lake must be locked.

    `parallelism`: how many tasks run at a time. Raises PipelineError where the archive was begun otherwise.
    """

    def __init__(
        self, run: Runner, options: ReadOptions, lake: Lake, settings: ArchiveSettings, *, parallelism: int = 1
    ) -> None:
        self._run = run
        self._options = options
        self._lake = lake
        self._settings = settings
        self._parallelism = parallelism
        last = lake.last_commit()
        if last is not None:
            _check_same(lake, last, options.columns, settings.partition_by)
        self._number = last.number if last is not None else 0
        self._positions: dict[Place, int] | None = last.ends() if last is not None else None
        self._until: Mapping[Place, int] | None = None
        self._stopped: set[Place] = set()
        self.reporter = Reporter("archive")
        self.commits = 0

    def run_once(self) -> Iterator[Commit]:
        """Archive what is there now, in as many batches as it takes. Raises PipelineError, OSError."""
        self.tell_group()
        with extents_of(self._options) as extents:
            self._until = {_place(one): resolve(one, self._from_earliest(extents)).end for one in extents}
        while (commit := self.step()) is not None:
            yield commit

    def step(self) -> Commit | None:
        """Archive one batch; None if nothing is new. Raises PipelineError, OSError."""
        plan = plan_job(self._split_options(), self._choose)
        before = self._positions or {}
        if not any(wanted.end > before.get(place, wanted.start) for place, wanted in plan.ranges.items()):
            self._positions = before | {place: wanted.end for place, wanted in plan.ranges.items()}
            return None
        rules = ArchiveRules(
            directory=str(self._lake.run_directory),
            columns=self._options.columns,
            partition_by=self._settings.partition_by,
            compression=self._settings.compression,
        )
        written = self._run(plan.splits, archiver(rules, rules_of(self._options)))
        commit = self._commit(plan, before, written)
        self.tell_group()
        return commit

    def tell_group(self) -> None:
        """The group's offsets are those of the last commit. A broker that is away is told of it with the next one."""
        options = self._options
        if options.group is None or options.bootstrap is None or not self._positions:
            return
        from warmlog.pipeline.remote import commit_offsets  # who tells no group does without

        offsets = [(topic, partition, end) for (topic, partition), end in self._positions.items()]
        try:
            commit_offsets(options.bootstrap, options.group, offsets)
        except LostError as error:
            _log.warning("group %s is not told how far the archive is: %s", options.group, error)

    @property
    def is_stopped(self) -> bool:
        """Whether a partition was not read to its end, because of a damaged batch."""
        return bool(self._stopped)

    def _split_options(self) -> ReadOptions:
        """Over the wire a partition is one split unless a number is asked for; who may stop in it wants one."""
        if self._options.on_corrupt == "stop":
            return replace(self._options, min_partitions=None)
        if self._options.path is not None or self._options.min_partitions is not None:
            return self._options
        most = self._options.max_offsets_per_trigger or DEFAULT_BATCH_OFFSETS
        return replace(self._options, min_partitions=max(min(2 * self._parallelism, most // MIN_SPLIT_OFFSETS), 1))

    def _from_earliest(self, extents: Sequence[Extent]) -> ReadOptions:
        """The options with the start that is the next batch's."""
        if self._positions is None:
            return self._options
        each: dict[str, dict[int, int]] = {}
        for one in extents:
            each.setdefault(one.topic, {})[one.partition] = self._positions.get(_place(one), EARLIEST)
        return replace(self._options, start=Start(each=each))

    def _choose(self, extents: list[Extent]) -> dict[Place, Range]:
        options = self._from_earliest(extents)
        there = {_place(one): self._wanted(one, options) for one in extents if self._is_wanted(_place(one))}
        starts = {place: wanted.start for place, wanted in there.items()}
        ends = {place: self._end(place, wanted) for place, wanted in there.items()}
        most = options.max_offsets_per_trigger or DEFAULT_BATCH_OFFSETS
        return {place: Range(start=starts[place], end=end) for place, end in limited(starts, ends, most).items()}

    def _wanted(self, extent: Extent, options: ReadOptions) -> Range:
        """What is to be archived of a partition; an end before what is archived already does not take that back."""
        wanted = resolve(extent, options)
        archived = (self._positions or {}).get(_place(extent), 0)
        if wanted.start < archived <= last_of(extent, options):
            return Range(start=archived, end=archived)
        return wanted

    def _is_wanted(self, place: Place) -> bool:
        return place not in self._stopped and (self._until is None or place in self._until)

    def _end(self, place: Place, wanted: Range) -> int:
        return wanted.end if self._until is None else max(min(wanted.end, self._until[place]), wanted.start)

    def _commit(self, plan: JobPlan, before: Mapping[Place, int], written: Sequence[Written]) -> Commit:
        spans = {place: (end, end) for place, end in before.items()}
        spans |= {place: (wanted.start, wanted.end) for place, wanted in plan.ranges.items()}
        for part in written:
            if part.stopped_at is not None:
                place = part.topic, part.partition
                spans[place] = (spans[place][0], part.stopped_at)
                self._stopped.add(place)
        measured = added(part.measured for part in written)
        measured.skipped_bytes = plan.skipped_bytes
        files = [file for part in written for file in part.files]
        commit = Commit(
            number=self._number + 1,
            spans=_as_json(spans),
            partition_by=self._settings.partition_by,
            columns=self._options.columns,
            rows=measured.rows,
            lost_offsets=measured.lost_offsets + _lost_between(before, plan.ranges),
            damaged=tuple(one for part in written for one in part.damaged),
            files=tuple(file.name for file in files),
        )
        self._lake.commit(commit, files)
        self._number, self._positions = commit.number, commit.ends()
        self._count(commit, measured)
        return commit

    def _count(self, commit: Commit, measured: Measured) -> None:
        measured.lost_offsets = commit.lost_offsets
        self.reporter.add(measured)
        self.commits += 1
        self.reporter.tell(commits=self.commits, last_commit=commit.number)


def run_every(job: ArchiveJob, wait: Callable[[], Any]) -> Iterator[Commit]:
    """Archive what comes, for ever: whenever nothing is new, `wait`. A broker that is away is waited for, too."""
    job.tell_group()
    while True:
        try:
            commit = job.step()
        except LostError as error:
            _log.warning("%s; trying again", error)
            commit = None
        if commit is not None:
            yield commit
        wait()


def _check_same(lake: Lake, last: Commit, columns: tuple[str, ...], partition_by: str) -> None:
    for name, begun, asked in (
        ("partitioned by", last.partition_by, partition_by),
        ("of columns", ",".join(last.columns), ",".join(columns)),
    ):
        if begun != asked:
            raise PipelineError(f"{lake.directory} is {name} {begun}, and cannot go on by {asked}: take another one")


def _lost_between(before: Mapping[Place, int], ranges: Mapping[Place, Range]) -> int:
    """How many offsets lie between the last commit and what could be read."""
    return sum(max(wanted.start - before.get(place, wanted.start), 0) for place, wanted in ranges.items())


def _as_json(spans: Mapping[Place, tuple[int, int]]) -> dict[str, dict[str, tuple[int, int]]]:
    told: dict[str, dict[str, tuple[int, int]]] = {}
    for (topic, partition), span in sorted(spans.items()):
        told.setdefault(topic, {})[str(partition)] = span
    return told


def _place(extent: Extent) -> Place:
    return extent.topic, extent.partition
