"""Plan splits of a log for given ranges of offsets, of which a partition may have several."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from warmlog.pipeline.source.input import choose_input, wanted_partitions
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.plan import AnySplit
from warmlog.pipeline.source.planning import plan_splits
from warmlog.pipeline.source.ranges import Range, key_of, last_of
from warmlog.protocol.partitions import TopicPartition

WHOLE = 1 << 62  # bytes; so large that no range is split


@dataclass(frozen=True, slots=True, kw_only=True)
class LogExtent:
    """The extent of a partition's log: offsets from `start` to `end` (excluded), and the topic id if known."""

    start: int
    end: int
    topic_id: str | None


def log_extents(options: ReadOptions) -> dict[TopicPartition, LogExtent]:
    """Return the extent of each partition's log, omitting topics that do not exist.

    Raises PipelineError, InspectError, OSError.
    """
    return choose_input(options).with_extents(
        lambda extents: {
            key_of(extent): LogExtent(start=extent.start_offset, end=last_of(extent, options), topic_id=extent.topic_id)
            for extent in extents
        },
        lenient=True,
    )


def splits_of(options: ReadOptions, ranges: Sequence[tuple[TopicPartition, Range]]) -> list[tuple[AnySplit, ...]]:
    """Return the splits of each range; an empty range has none. Raises PipelineError, InspectError, OSError."""
    if options.path is not None:
        exact = replace(options, max_split_bytes=WHOLE, min_partitions=None)
        partitions = {key_of(partition): partition for partition in wanted_partitions(options, lenient=True)}
        return [
            tuple(plan_splits([(partitions[key], wanted)], exact)) if wanted.end > wanted.start else ()
            for key, wanted in ranges
        ]
    from warmlog.pipeline.source.remote import BrokerInput, plan_remote, topic_ids_of  # imports the client

    topic_ids, brokers = BrokerInput(options).with_brokers(topic_ids_of, lenient=True)
    return [
        tuple(plan_remote(replace(options, min_partitions=None), brokers, {key: wanted}, topic_ids))
        if wanted.end > wanted.start
        else ()
        for key, wanted in ranges
    ]
