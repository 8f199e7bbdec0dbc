"""Input of a stream with a directory and a broker: old records come from the directory, new ones from the broker.

Invariants:
1. A partition's hand-over offset is the end of its directory when the query began, and does not change during the
query: offsets below it are read from the directory, others from the broker. Offsets are the same in both, so no
record is read twice or skipped, regardless of the offset at which a query is restarted.
2. The broker's log end determines how far to read. Records that the directory lacks are read from the broker, even if
only a worker detects this because its directory is not mounted, or because retention removed a segment.
3. A directory of another topic of the same name (by its topic id) is rejected.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from warmlog.inspect.errors import MissingDirectoryError, SegmentGoneError
from warmlog.inspect.partition import StoredPartition
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.plan import TRIES, AnySplit, Choice, Plan
from warmlog.pipeline.source.planning import plan_splits
from warmlog.pipeline.source.ranges import Extent, Range, Ranges, last_of
from warmlog.pipeline.source.remote import BrokerInput, TopicIds, plan_remote, topic_ids_of
from warmlog.pipeline.source.stored import selected_partitions
from warmlog.protocol.partitions import TopicPartition

_log = logging.getLogger(__name__)

T = TypeVar("T")


class HandoverInput:
    """Partitions of a broker whose directory is read first. `offsets`: the hand-over offsets, None before the query."""

    def __init__(self, options: ReadOptions, *, patient: bool = False) -> None:
        """`options` name a directory and a broker. `patient`: see `BrokerInput`."""
        assert options.brokers is not None, "a hand-over has a broker"
        self._options = options
        self._broker = BrokerInput(options, patient=patient)
        self._brokers = options.brokers
        self.offsets: dict[TopicPartition, int] | None = None

    def with_extents(self, see: Callable[[list[Extent]], T], *, lenient: bool = False) -> T:
        """Call a function with the broker's extents; return its result. Raises PipelineError."""
        return self._broker.with_extents(see, lenient=lenient)

    def plan(self, choose: Choice, *, lenient: bool = False) -> Plan:
        """Return the splits of the chosen offsets. Raises PipelineError, InspectError, OSError."""
        (topic_ids, ranges), self._brokers = self._broker.with_brokers(
            lambda extents: (topic_ids_of(extents), choose(extents)), lenient=lenient
        )
        return Plan(splits=self._splits(topic_ids, ranges), ranges=ranges)

    def size(self, choose: Choice) -> int:
        """Return the approximate size of the chosen offsets, as the broker reports it. Raises PipelineError."""
        return self._broker.size(choose)

    def _splits(self, topic_ids: TopicIds, ranges: Ranges) -> list[AnySplit]:
        if self.offsets is not None and all(wanted.start >= self.offsets.get(key, 0) for key, wanted in ranges.items()):
            return self._remote(ranges, topic_ids)  # all partitions are handed over: the directory is not needed
        for _ in range(TRIES):
            with suppress(SegmentGoneError):
                return self._both(topic_ids, ranges)
        return self._both(topic_ids, ranges)

    def _both(self, topic_ids: TopicIds, ranges: Ranges) -> list[AnySplit]:
        stored = self._stored(topic_ids)
        ends = {key: last_of(partition, self._options) for key, partition in stored.items()}
        if self.offsets is None:
            self.offsets = ends
        local = {
            key: _overlap(wanted, stored[key].start_offset, min(self.offsets.get(key, 0), ends[key]))
            for key, wanted in ranges.items()
            if key in stored
        }
        local = {key: wanted for key, wanted in local.items() if wanted.start < wanted.end}
        before = {key: Range(start=ranges[key].start, end=wanted.start) for key, wanted in local.items()}
        after = {
            key: Range(start=local[key].end, end=wanted.end) if key in local else wanted
            for key, wanted in ranges.items()
        }
        planned = plan_splits([(stored[key], wanted) for key, wanted in local.items()], self._options)
        splits = [replace(split, brokers=self._brokers) for split in planned]
        return [*self._remote(before, topic_ids), *splits, *self._remote(after, topic_ids)]

    def _stored(self, topic_ids: TopicIds) -> dict[TopicPartition, StoredPartition]:
        path, topics = self._options.path, self._options.topics
        assert path is not None, "a hand-over has a directory"
        try:
            partitions = selected_partitions(self._options, is_part_allowed=True)
        except MissingDirectoryError as error:
            _log.warning("%s; reading from the broker instead", error)
            return {}
        missing = set(topics.named) - {partition.topic for partition in partitions}
        if missing and self.offsets is None:
            raise PipelineError(f"{path} has no topic {', '.join(sorted(missing))}")
        for partition in partitions:
            _check_topic_id(partition, topic_ids.get(partition.topic))
        return {(partition.topic, partition.partition): partition for partition in partitions}

    def _remote(self, ranges: Ranges, topic_ids: TopicIds) -> list[AnySplit]:
        return list(plan_remote(self._options, self._brokers, ranges, topic_ids))


def _overlap(wanted: Range, first: int, end: int) -> Range:
    return Range(start=max(wanted.start, first), end=min(wanted.end, end))


def _check_topic_id(partition: StoredPartition, topic_id: str | None) -> None:
    if partition.topic_id is not None and topic_id is not None and partition.topic_id != topic_id:
        raise PipelineError(
            f"{partition.directory} belongs to another topic named {partition.topic}: its topic id is "
            f"{partition.topic_id}, the broker's {topic_id}"
        )
