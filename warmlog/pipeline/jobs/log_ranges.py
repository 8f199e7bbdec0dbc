"""Splits of a log for ranges of offsets that were chosen elsewhere, several of one partition."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from warmlog.pipeline.source.input import choose_input, wanted_partitions
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.plan import AnySplit
from warmlog.pipeline.source.planning import plan_splits
from warmlog.pipeline.source.ranges import Range, key_of, last_of
from warmlog.protocol.partitions import TopicPartition

WHOLE = 1 << 62  # bytes: no range is cut


@dataclass(frozen=True, slots=True, kw_only=True)
class LogExtent:
    """What a log has of a partition: offsets from `start` to `end` (excluded), and the topic id if it is known."""

    start: int
    end: int
    topic_id: str | None


def log_extents(options: ReadOptions) -> dict[TopicPartition, LogExtent]:
    """Return what the log has of each partition; a topic that does not exist has none.

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
    """Return the splits of each range: none for an empty one. Raises PipelineError, InspectError, OSError."""
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
