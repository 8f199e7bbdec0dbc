"""Where a job's records come from: a directory or a broker, planned and read by the same words.

Owns: the choice between the two. Must not know: how either is read, or what the job does with the records.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from warmlog.pipeline.directory import StoredPartition
from warmlog.pipeline.options import ReadOptions
from warmlog.pipeline.planning import Split, plan_splits
from warmlog.pipeline.positions import Extent, Range
from warmlog.pipeline.reading import BatchHandler, ReadRules, SplitReader, Tally, checked
from warmlog.pipeline.segments import SegmentGoneError
from warmlog.pipeline.selection import TRIES, wanted_partitions

if TYPE_CHECKING:
    from warmlog.pipeline.remote import RemoteSplit

AnySplit: TypeAlias = "Split | RemoteSplit"
Place: TypeAlias = tuple[str, int]
# Called with the extents of all partitions that are asked for; gives the offsets to be read of each.
Choice: TypeAlias = Callable[[list[Extent]], dict[Place, Range]]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """What is read: splits, the offsets of each partition that they hold together, and what indexes let be left out."""

    splits: list[AnySplit]
    ranges: dict[Place, Range]
    skipped_bytes: int = 0


def rules_of(options: ReadOptions) -> ReadRules:
    """How splits are read by these options."""
    return ReadRules(
        on_corrupt=options.on_corrupt,
        fail_on_data_loss=options.fail_on_data_loss,
        committed_only=options.committed_only,
    )


def plan_job(options: ReadOptions, choose: Choice) -> JobPlan:
    """The splits of what `choose` wants. Raises PipelineError, OSError.

    A broker that puts segments in each other's place meanwhile makes it be done anew.
    """
    if options.path is None:
        return _plan_remote(options, choose)
    for _ in range(TRIES):
        with suppress(SegmentGoneError):
            return _plan_directory(options, choose)
    return _plan_directory(options, choose)


def _plan_directory(options: ReadOptions, choose: Choice) -> JobPlan:
    partitions = wanted_partitions(options)
    ranges = choose(list(partitions))
    chosen = [(one, ranges[_place(one)]) for one in partitions if _place(one) in ranges]
    splits = plan_splits(chosen, options)
    stored = sum(_readable_bytes(one) for one, _ in chosen)
    return JobPlan(
        splits=list(splits), ranges=ranges, skipped_bytes=max(stored - sum(split.size for split in splits), 0)
    )


def _readable_bytes(partition: StoredPartition) -> int:
    return sum(partition.readable_size(segment) for segment in partition.segments)


def _plan_remote(options: ReadOptions, choose: Choice) -> JobPlan:
    from warmlog.pipeline.remote import plan_remote  # who reads directories does without

    assert options.bootstrap is not None, "the options see to it"
    with extents_of(options) as extents:
        ranges = choose(extents)
    return JobPlan(splits=list(plan_remote(options.bootstrap, ranges, options.min_partitions)), ranges=ranges)


@contextmanager
def extents_of(options: ReadOptions) -> Iterator[list[Extent]]:
    """The partitions that are asked for, as long as they may be asked of themselves. Raises PipelineError, OSError."""
    if options.path is not None:
        yield list(wanted_partitions(options))
        return
    from warmlog.pipeline.remote import remote_partitions  # as above
    from warmlog.pipeline.wire import BrokerConnection

    assert options.bootstrap is not None, "the options see to it"
    with BrokerConnection(options.bootstrap) as broker:
        yield list(remote_partitions(broker, options))


def read_batches(split: AnySplit, rules: ReadRules, handler: BatchHandler) -> tuple[Iterator[None], Tally]:
    """Steps that each hand over a batch with a good CRC, and what is counted meanwhile. In a worker."""
    if isinstance(split, Split):
        reader = SplitReader(split, rules, checked(handler))
        return reader.run(), reader.tally
    from warmlog.pipeline.remote import RemoteReader  # as above

    remote = RemoteReader(split, rules, handler)
    return remote.run(), remote.tally


def first_offset_of(split: AnySplit) -> int:
    """Where a split begins."""
    return split.pieces[0].first_offset if isinstance(split, Split) else split.first_offset


def _place(extent: Extent) -> Place:
    return extent.topic, extent.partition
