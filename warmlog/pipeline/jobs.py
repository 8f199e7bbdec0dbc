"""What the jobs of `warmlog pipeline` have in common, and the smallest of them.

Owns: what runs tasks, as jobs see it. Must not know: the command line, or how Spark is started (`session`).
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from warmlog.pipeline.count import Counted, by_partition, counter, grouped
from warmlog.pipeline.measured import Reporter
from warmlog.pipeline.options import ReadOptions
from warmlog.pipeline.origin import plan_job, rules_of
from warmlog.pipeline.planning import Split
from warmlog.pipeline.positions import resolve

S = TypeVar("S")
T = TypeVar("T")


class Runner(Protocol):
    """Runs a function over splits and gives the results in order: `session.SparkRunner`, or a loop."""

    def __call__(self, splits: Sequence[S], work: Callable[[S], T], /) -> list[T]:
        """All results. Raises PipelineError as the function does."""


def count_records(run: Runner, options: ReadOptions, reporter: Reporter) -> list[Counted]:
    """What each partition of a directory holds of what is asked for. Raises PipelineError, OSError."""
    assert options.path is not None, "a broker does not give headers alone"
    plan = plan_job(options, lambda extents: {(one.topic, one.partition): resolve(one, options) for one in extents})
    splits = [split for split in plan.splits if isinstance(split, Split)]
    parts = run(list(grouped(splits)), counter(rules_of(options)))
    for _, measured in parts:
        reporter.add(measured)
    reporter.skipped(plan.skipped_bytes)
    empty = [Counted(topic=topic, partition=partition) for topic, partition in plan.ranges]
    return by_partition([*empty, *(one for counted, _ in parts for one in counted)])


def in_this_process(splits: Sequence[Any], work: Callable[[Any], Any], /) -> list[Any]:
    """A Runner without Spark: one split after the other."""
    return [work(split) for split in splits]
