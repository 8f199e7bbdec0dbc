"""Partitions behind a broker: their offsets, and splits of them.

A partition's splits are equal in offsets, because a broker does not report how many bytes lie between two offsets.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias, TypeVar

from warmlog.pipeline.broker import BrokerConnection, reply_error
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.source.input import Choice, Plan
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.ranges import Extent, Ranges, check_named, cuts
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import OffsetCommitRequest, OffsetCommitResponse, OffsetToCommit
from warmlog.protocol.native.messages import ReceivedFetch
from warmlog.protocol.records.batch import BatchHeader, headers
from warmlog.protocol.request import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    DescribeTopicsRequest,
    FetchPartition,
    FetchRequest,
    Isolation,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetQuery,
)
from warmlog.protocol.response import DescribeTopicsResponse, ListOffsetsResponse, MetadataResponse

T = TypeVar("T")
TopicIds: TypeAlias = Mapping[str, str | None]


@dataclass(frozen=True, kw_only=True)
class RemotePartition:
    """A partition behind a broker; each property is requested at its first use."""

    broker: BrokerConnection
    topic: str
    partition: int
    topic_id: str | None = None
    leader_epoch: int = -1

    @cached_property
    def start_offset(self) -> int:
        """The log start offset."""
        return self._ask(EARLIEST_TIMESTAMP)

    @cached_property
    def _end_offset(self) -> int:
        return self._ask(LATEST_TIMESTAMP)

    @cached_property
    def _stable_offset(self) -> int:
        return self._ask(LATEST_TIMESTAMP, Isolation.READ_COMMITTED)

    def end_offset(self, *, flushed_only: bool = False, committed_only: bool = False) -> int:  # noqa: ARG002
        """Return the high watermark, or the last stable offset; brokers do not report what is flushed."""
        return self._stable_offset if committed_only else self._end_offset

    def offset_at_time(self, timestamp_ms: int) -> int | None:
        """Return the offset of the first record at or past a time; None if all are earlier."""
        found = self._ask(max(timestamp_ms, 0))
        return None if found < 0 else found

    def epoch_before(self, offset: int) -> int | None:
        """Return a leader epoch that no record before an offset exceeds: the current one."""
        return None if self.leader_epoch < 0 or offset <= self.start_offset else self.leader_epoch

    def batch_at(self, offset: int) -> BatchHeader | None:
        """Return the header of the first batch that ends after an offset, by fetching it; None if there is none."""
        wanted = FetchPartition(topic=self.topic, partition=self.partition, offset=offset, max_bytes=1)
        request = FetchRequest(partitions=(wanted,), max_wait_ms=0, max_bytes=1)
        (found,) = self.broker.ask(request, ReceivedFetch).partitions
        if found.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        if found.error:
            raise reply_error(found.error, found.message, about=f"{self.topic}-{self.partition}")
        return next((header for _, header in headers(found.records) if header.next_offset > offset), None)

    def _ask(self, timestamp: int, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> int:
        query = OffsetQuery(topic=self.topic, partition=self.partition, timestamp=timestamp)
        request = ListOffsetsRequest(partitions=(query,), isolation=isolation)
        (found,) = self.broker.ask(request, ListOffsetsResponse).partitions
        if found.error:
            raise reply_error(found.error, found.message, about=f"{self.topic}-{self.partition}")
        return found.offset


def remote_partitions(
    broker: BrokerConnection, options: ReadOptions, *, lenient: bool = False
) -> list[RemotePartition]:
    """Return the partitions that the options select.

    Raises PipelineError if a named topic or partition does not exist (unless `lenient`).
    """
    reply = broker.ask(MetadataRequest(topics=options.topics.named or None), MetadataResponse)
    for topic in reply.topics:
        if lenient and topic.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            continue
        if topic.error and topic.name in options.topics.named:
            raise reply_error(topic.error, topic.message, about=f"topic {topic.name}")
    found = [
        RemotePartition(
            broker=broker,
            topic=topic.name,
            partition=partition.partition,
            topic_id=topic.topic_id,
            leader_epoch=partition.leader_epoch,
        )
        for topic in reply.topics
        for partition in topic.partitions
        if options.topics.wants(topic.name, partition.partition)
    ]
    if lenient:
        return found
    for name, numbers in (options.topics.assigned or {}).items():
        missing = set(numbers) - {partition.partition for partition in found if partition.topic == name}
        if missing:
            raise PipelineError(f"topic {name} has no partition {min(missing)}")
    check_named(found, options)
    return found


def topic_ids_of(extents: Iterable[Extent]) -> TopicIds:
    """Return the topic ids of partitions by topic."""
    return {one.topic: one.topic_id for one in extents}


class BrokerInput:
    """Partitions behind a broker; each call opens a connection."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.bootstrap is not None, "a broker input has an address"
        self._options = options
        self._bootstrap = options.bootstrap

    def look(self, see: Callable[[list[Extent]], T], *, lenient: bool = False) -> T:
        """Call a function with the extents; return its result. Raises PipelineError."""
        with BrokerConnection(self._bootstrap) as broker:
            return see(list(remote_partitions(broker, self._options, lenient=lenient)))

    def plan(self, choose: Choice, *, lenient: bool = False) -> Plan:
        """Return the splits of the chosen offsets. Raises PipelineError."""
        topic_ids, ranges = self.look(lambda extents: (topic_ids_of(extents), choose(extents)), lenient=lenient)
        return Plan(splits=list(plan_remote(self._options, ranges, topic_ids)), ranges=ranges)

    def size(self, choose: Choice) -> int:
        """Return the size of the segments with the chosen offsets. Raises PipelineError."""
        with BrokerConnection(self._bootstrap) as broker:
            ranges = choose(list(remote_partitions(broker, self._options)))
            topics = tuple({topic for topic, _ in ranges})
            reply = broker.ask(DescribeTopicsRequest(topics=topics), DescribeTopicsResponse)
        return sum(
            segment.size
            for topic in reply.topics
            for partition in topic.partitions
            if (wanted := ranges.get((topic.name, partition.partition))) is not None
            for segment in partition.segments
            if segment.base_offset < wanted.end and segment.next_offset > wanted.start
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSplit:
    """Offsets of a partition behind a broker that one task reads; `end_offset` is excluded."""

    bootstrap: str
    topic: str
    partition: int
    first_offset: int
    end_offset: int
    topic_id: str | None = None


def plan_remote(options: ReadOptions, ranges: Ranges, topic_ids: TopicIds) -> list[RemoteSplit]:
    """Return splits of these offsets: one for each partition, or about `min_partitions`."""
    assert options.bootstrap is not None, "a broker input has an address"
    bootstrap = options.bootstrap
    total = sum(wanted.end - wanted.start for wanted in ranges.values())
    share = max(-(-total // (options.min_partitions or 1)), options.min_split_offsets)
    return [
        RemoteSplit(
            bootstrap=bootstrap,
            topic=topic,
            partition=partition,
            first_offset=first,
            end_offset=end,
            topic_id=topic_ids.get(topic),
        )
        for (topic, partition), wanted in ranges.items()
        for first, end in pairwise(cuts(wanted, round((wanted.end - wanted.start) / share), options))
    ]


def commit_offsets(bootstrap: str, group: str, offsets: Iterable[tuple[str, int, int]]) -> None:
    """Commit (topic, partition, next offset) for a group. Raises PipelineError."""
    partitions = tuple(
        OffsetToCommit(topic=topic, partition=partition, offset=offset) for topic, partition, offset in offsets
    )
    with BrokerConnection(bootstrap) as broker:
        reply = broker.ask(OffsetCommitRequest(group=group, partitions=partitions), OffsetCommitResponse)
    for one in reply.partitions:
        if one.error is ErrorCode.UNKNOWN_MEMBER_ID:
            raise PipelineError(f"group {group} has members: a job can commit only for a group without members")
        if one.error:
            raise reply_error(one.error, one.message, about=f"group {group}, {one.topic}-{one.partition}")
