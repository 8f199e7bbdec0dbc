"""From directories to the wire: a stream reads what is there from the files, and what comes then from the broker.

Owns: at which offset of a partition the one ends and the other begins. Must not know: micro-batches, Spark.

1. A partition's hand-over offset is where its directory ended when the query began, and stays there for the query:
   records below it come from the directory, from it on from the broker. Offsets are the same on both sides, so none is
   read twice or left out, wherever a query is started again.
2. How far there is to read, the broker alone says. What of it a directory does not have comes over the wire.
3. A directory of another topic that had the same name (its id tells) is refused.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from broker.log.checkpoint import PARTITION_METADATA, read_topic_id
from broker.log.directory_names import encode_topic_id
from broker.log.disk import Disk
from broker.log.errors import CheckpointError
from warmlog.pipeline.directory import StoredPartition, find_partitions
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.options import ReadOptions
from warmlog.pipeline.planning import Split, plan_splits
from warmlog.pipeline.positions import Range, last_of
from warmlog.pipeline.remote import RemotePartition, RemoteSplit, plan_remote
from warmlog.pipeline.segments import SegmentGoneError
from warmlog.pipeline.selection import TRIES

if TYPE_CHECKING:
    from collections.abc import Iterable

Place: TypeAlias = tuple[str, int]
Ranges: TypeAlias = Mapping[Place, Range]


class Handover:
    """Plans what of a partition is read where. `offsets`: by topic and partition, once the query has begun."""

    def __init__(self, options: ReadOptions) -> None:
        """`options` name both, a directory and a broker."""
        self._options = options
        self.offsets: dict[Place, int] | None = None

    def plan(self, partitions: "Iterable[RemotePartition]", ranges: Ranges) -> list[Split | RemoteSplit]:
        """The splits of these offsets. Raises PipelineError, OSError."""
        if self.offsets is not None and all(
            wanted.start >= self.offsets.get(place, 0) for place, wanted in ranges.items()
        ):
            return self._remote(ranges)  # all is handed over: nobody looks at the directory any more
        topic_ids = {one.topic: one.topic_id for one in partitions}
        for _ in range(TRIES):
            with suppress(SegmentGoneError):
                return self._both(topic_ids, ranges)
        return self._both(topic_ids, ranges)

    def _both(self, topic_ids: Mapping[str, str | None], ranges: Ranges) -> list[Split | RemoteSplit]:
        stored = self._stored(topic_ids)
        ends = {place: last_of(partition, self._options) for place, partition in stored.items()}
        if self.offsets is None:
            self.offsets = ends
        local = {
            place: _overlap(wanted, stored[place].start_offset, min(self.offsets.get(place, 0), ends[place]))
            for place, wanted in ranges.items()
            if place in stored
        }
        local = {place: wanted for place, wanted in local.items() if wanted.start < wanted.end}
        before = {place: Range(start=ranges[place].start, end=wanted.start) for place, wanted in local.items()}
        after = {
            place: Range(start=local[place].end, end=wanted.end) if place in local else wanted
            for place, wanted in ranges.items()
        }
        splits = plan_splits([(stored[place], wanted) for place, wanted in local.items()], self._options)
        return [*self._remote(before), *splits, *self._remote(after)]

    def _stored(self, topic_ids: Mapping[str, str | None]) -> dict[Place, StoredPartition]:
        path, topics = self._options.path, self._options.topics
        assert path is not None, "else there is nothing to hand over"
        found = [one for one in find_partitions(path) if topics.wants(one.topic, one.partition)]
        if missing := set(topics.named) - {one.topic for one in found}:
            raise PipelineError(f"{path}: no topic {', '.join(sorted(missing))} in it")
        for one in found:
            _check_topic_id(one, topic_ids.get(one.topic))
        return {(one.topic, one.partition): one for one in found}

    def _remote(self, ranges: Ranges) -> list[Split | RemoteSplit]:
        assert self._options.bootstrap is not None, "else there is nobody to hand over to"
        return list(plan_remote(self._options.bootstrap, ranges, self._options.min_partitions))


def _overlap(wanted: Range, first: int, end: int) -> Range:
    return Range(start=max(wanted.start, first), end=min(wanted.end, end))


def _check_topic_id(partition: StoredPartition, topic_id: str | None) -> None:
    try:
        own = read_topic_id(Disk(), f"{partition.directory}/{PARTITION_METADATA}")
    except CheckpointError:
        return  # it does not tell
    if own is not None and topic_id is not None and encode_topic_id(own) != topic_id:
        raise PipelineError(
            f"{partition.directory} is of another topic that was called {partition.topic}: its id is "
            f"{encode_topic_id(own)}, the broker's {topic_id}"
        )
