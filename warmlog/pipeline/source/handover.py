"""A stream's input from both: what existed when the query began from the directory, later records from the broker.

Invariants:
1. A partition's hand-over offset is where its directory ended when the query began, and does not change during the
   query: offsets below it are read from the directory, others from the broker. Both number records alike, so none is
   read twice or left out, wherever a query is restarted.
2. How far there is to read is the broker's word. What the directory does not have of it comes over the wire.
3. A directory of another topic of the same name (by its topic id) is refused.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from warmlog.inspect.errors import SegmentGoneError
from warmlog.inspect.partition import StoredPartition, find_partitions
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.source.input import TRIES, AnySplit, Choice, Plan
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.planning import plan_splits
from warmlog.pipeline.source.ranges import Extent, Range, Ranges, TopicPartition, last_of
from warmlog.pipeline.source.remote import BrokerInput, RemotePartition, plan_remote

T = TypeVar("T")
TopicIds = Mapping[str, str | None]


class HandoverInput:
    """The partitions of a broker, whose directory is read first. `offsets`: hand-over offsets, once the query began."""

    def __init__(self, options: ReadOptions) -> None:
        """`options` name a directory and a broker."""
        self._options = options
        self._broker = BrokerInput(options)
        self.offsets: dict[TopicPartition, int] | None = None

    def look(self, see: Callable[[list[Extent]], T]) -> T:
        """Call a function with the broker's extents; return its result. Raises PipelineError."""
        return self._broker.look(see)

    def plan(self, choose: Choice) -> Plan:
        """Return the splits of what `choose` wants. Raises PipelineError, InspectError, OSError."""

        def choose_with_ids(extents: list[Extent]) -> tuple[TopicIds, dict[TopicPartition, Range]]:
            ids = {one.topic: one.topic_id for one in extents if isinstance(one, RemotePartition)}
            return ids, choose(extents)

        topic_ids, ranges = self.look(choose_with_ids)
        return Plan(splits=self._splits(topic_ids, ranges), ranges=ranges)

    def _splits(self, topic_ids: TopicIds, ranges: Ranges) -> list[AnySplit]:
        if self.offsets is not None and all(wanted.start >= self.offsets.get(key, 0) for key, wanted in ranges.items()):
            return self._remote(ranges)  # everything is handed over: the directory is not needed any more
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
        splits = plan_splits([(stored[key], wanted) for key, wanted in local.items()], self._options)
        return [*self._remote(before), *splits, *self._remote(after)]

    def _stored(self, topic_ids: TopicIds) -> dict[TopicPartition, StoredPartition]:
        path, topics = self._options.path, self._options.topics
        assert path is not None, "a hand-over has a directory"
        found = [one for one in find_partitions(path) if topics.wants(one.topic, one.partition)]
        if missing := set(topics.named) - {one.topic for one in found}:
            raise PipelineError(f"{path}: no topic {', '.join(sorted(missing))} in it")
        for one in found:
            _check_topic_id(one, topic_ids.get(one.topic))
        return {(one.topic, one.partition): one for one in found}

    def _remote(self, ranges: Ranges) -> list[AnySplit]:
        assert self._options.bootstrap is not None, "a hand-over has a broker"
        return list(plan_remote(self._options.bootstrap, ranges, self._options.min_partitions))


def _overlap(wanted: Range, first: int, end: int) -> Range:
    return Range(start=max(wanted.start, first), end=min(wanted.end, end))


def _check_topic_id(partition: StoredPartition, topic_id: str | None) -> None:
    if partition.topic_id is not None and topic_id is not None and partition.topic_id != topic_id:
        raise PipelineError(
            f"{partition.directory} belongs to another topic named {partition.topic}: its topic id is "
            f"{partition.topic_id}, the broker's {topic_id}"
        )
