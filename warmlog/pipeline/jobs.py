"""The jobs of `warmlog pipeline`: planned here, run by Spark's workers.

Owns: what a job does from its plan to its result. Must not know: the command line, or how Spark is started.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from warmlog.pipeline.archive import Archive, ArchiveRules, Commit, Written, archiver
from warmlog.pipeline.count import Counted, by_partition, counter
from warmlog.pipeline.errors import DataLossError
from warmlog.pipeline.options import EARLIEST, Place, ReadOptions
from warmlog.pipeline.planning import Split
from warmlog.pipeline.reading import ReadRules
from warmlog.pipeline.selection import Bounds, Plan, plan_read, wanted_partitions

T = TypeVar("T")


class Runner(Protocol):
    """Runs a function over splits and gives the results in order: `session.run_over`, or a loop."""

    def __call__(self, splits: Sequence[Split], work: Callable[[Split], T], /) -> list[T]:
        """All results. Raises what the function raises, or what Spark makes of it."""


def count_records(run: Runner, options: ReadOptions) -> list[Counted]:
    """What each partition holds of what is asked for. Raises PipelineError, OSError."""
    plan = plan_read(options, Bounds())
    parts = run(plan.splits, counter(_rules(options)))
    empty = [Counted(topic=topic, partition=partition) for topic, partition in plan.ranges]
    return by_partition([*empty, *parts])


def archive_new(run: Runner, options: ReadOptions, archive: Archive, rules: ArchiveRules) -> Commit | None:
    """Archive what is new since the last commit; None if nothing is. The archive must be locked.

    `options.start` is where the first run begins. Raises PipelineError, OSError.
    """
    last = archive.last_commit()
    if last is not None:
        options = replace(options, start=_after(last, options))
    plan = plan_read(options, Bounds())
    before = last.offsets if last is not None else {}
    lost = _lost_before(plan, before)
    if lost and options.fail_on_data_loss:  # the log has gone back: it was made anew, or offsets are gone
        raise DataLossError(f"{rules.directory}: {lost} offsets after its last commit are gone")
    number = last.number + 1 if last is not None else 1
    written = run(plan.splits, archiver(rules, _rules(options), number))
    if not any(part.rows or part.lost_offsets for part in written) and not lost:
        return None
    commit = _commit(number, plan, before, written, lost)
    archive.commit(commit)
    return commit


def _rules(options: ReadOptions) -> ReadRules:
    return ReadRules(on_corrupt=options.on_corrupt, fail_on_data_loss=options.fail_on_data_loss)


def _after(last: Commit, options: ReadOptions) -> Place:
    """Where a run begins after a commit; what is new since then from its beginning."""
    each: dict[str, dict[int, int]] = {}
    for partition in wanted_partitions(replace(options, start=Place(number=EARLIEST))):
        committed = last.offsets.get(partition.topic, {}).get(str(partition.partition), EARLIEST)
        each.setdefault(partition.topic, {})[partition.partition] = committed
    return Place(each=each)


def _lost_before(plan: Plan, before: Mapping[str, Mapping[str, int]]) -> int:
    """How many offsets lie between a commit and what can be read."""
    return sum(
        max(wanted.start - before.get(topic, {}).get(str(partition), wanted.start), 0)
        for (topic, partition), wanted in plan.ranges.items()
    )


def _commit(
    number: int, plan: Plan, before: Mapping[str, Mapping[str, int]], written: Sequence[Written], lost: int
) -> Commit:
    offsets: dict[str, dict[str, int]] = {topic: dict(listed) for topic, listed in before.items()}
    for (topic, partition), wanted in plan.ranges.items():
        offsets.setdefault(topic, {})[str(partition)] = wanted.end
    return Commit(
        number=number,
        offsets=offsets,
        rows=sum(part.rows for part in written),
        lost_offsets=lost + sum(part.lost_offsets for part in written),
        damaged=tuple(one for part in written for one in part.damaged),
        files=tuple(name for part in written for name in part.files),
    )


def in_this_process(splits: Sequence[Split], work: Callable[[Split], Any], /) -> list[Any]:
    """A Runner without Spark: one split after the other."""
    return [work(split) for split in splits]
