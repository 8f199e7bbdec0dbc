"""Partitions of a cluster: their offsets, and splits of them.

A partition's splits are equal in offsets, because a broker does not report the bytes between two offsets.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias, TypeVar

from warmlog.client.groups.admin import GroupAdmin
from warmlog.pipeline.brokers import Brokers
from warmlog.pipeline.cluster import ClusterConnection, reply_error
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.offsets import Offsets, fetch_once
from warmlog.pipeline.retry import Retry
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.plan import Choice, Plan, RemoteSplit
from warmlog.pipeline.source.ranges import Extent, Ranges, check_named, cuts
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.batch import BatchHeader, headers
from warmlog.protocol.request import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    DescribeTopicsRequest,
    Isolation,
)
from warmlog.protocol.response import DescribeTopicsResponse

T = TypeVar("T")
TopicIds: TypeAlias = Mapping[str, str | None]

COMMIT_TIMEOUT_S = 5.0  # time limit for committing a group's offsets, which only report progress


@dataclass(frozen=True, kw_only=True)
class RemotePartition:
    """A partition of a cluster; its offsets are requested at their first use."""

    offsets: Offsets
    topic: str
    partition: int
    topic_id: str | None = None
    leader_epoch: int = -1

    @property
    def start_offset(self) -> int:
        """The log start offset."""
        return self.offsets.bound((self.topic, self.partition), EARLIEST_TIMESTAMP)

    def end_offset(self, *, flushed_only: bool = False, committed_only: bool = False) -> int:  # noqa: ARG002
        """Return the high watermark, or the last stable offset; brokers do not report recovery points."""
        isolation = Isolation.READ_COMMITTED if committed_only else Isolation.READ_UNCOMMITTED
        return self.offsets.bound((self.topic, self.partition), LATEST_TIMESTAMP, isolation)

    def offset_at_time(self, timestamp_ms: int) -> int | None:
        """Return the offset of the first record at or after a time, or None if all records are earlier."""
        offset = self.offsets.at_time((self.topic, self.partition), max(timestamp_ms, 0))
        return None if offset < 0 else offset

    def epoch_before(self, offset: int) -> int | None:
        """Return an upper bound of the leader epochs of records before an offset: the current epoch."""
        return None if self.leader_epoch < 0 or offset <= self.start_offset else self.leader_epoch

    def batch_at(self, offset: int) -> BatchHeader | None:
        """Return the header of the first batch that ends after an offset, by fetching it; None if there is none."""
        fetched = fetch_once(self.offsets.cluster, self.topic, self.partition, offset, max_bytes=1)
        return next((header for _, header in headers(fetched.records) if header.next_offset > offset), None)


def remote_partitions(
    cluster: ClusterConnection, options: ReadOptions, *, lenient: bool = False
) -> list[RemotePartition]:
    """Return the partitions that the options select.

    Raises PipelineError if a named topic or partition does not exist (unless `lenient`).
    """
    reply = cluster.call(lambda client: client.metadata(options.topics.named or None))
    for topic in reply.topics:
        if lenient and topic.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            continue
        if topic.error and topic.name in options.topics.named:
            raise reply_error(topic.error, topic.message, about=f"topic {topic.name}")
    offsets = Offsets(
        cluster,
        [
            (topic.name, partition.partition)
            for topic in reply.topics
            for partition in topic.partitions
            if options.topics.wants(topic.name, partition.partition)
        ],
    )
    partitions = [
        RemotePartition(
            offsets=offsets,
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
        return partitions
    for name, numbers in (options.topics.assigned or {}).items():
        missing = set(numbers) - {partition.partition for partition in partitions if partition.topic == name}
        if missing:
            raise PipelineError(f"topic {name} has no partition {min(missing)}")
    check_named(partitions, options)
    return partitions


def topic_ids_of(extents: Iterable[Extent]) -> TopicIds:
    """Return the topic ids of partitions by topic."""
    return {extent.topic: extent.topic_id for extent in extents}


class BrokerInput:
    """Partitions of a cluster; each call opens its own connections.

    `patient`: whether to wait for a broker even when connecting.
    """

    def __init__(self, options: ReadOptions, *, patient: bool = False) -> None:
        assert options.brokers is not None, "a broker input has an address"
        self._options = options
        self._brokers = options.brokers
        self._patient = patient

    def with_extents(self, see: Callable[[list[Extent]], T], *, lenient: bool = False) -> T:
        """Call a function with the extents; return its result. Raises PipelineError."""
        with self._connected() as cluster:
            return see(list(remote_partitions(cluster, self._options, lenient=lenient)))

    def _connected(self) -> ClusterConnection:
        cluster = ClusterConnection(self._brokers, Retry())
        if not self._patient:
            try:
                cluster.start()
            except BaseException:
                cluster.close()
                raise
        return cluster

    def with_brokers(self, see: Callable[[list[Extent]], T], *, lenient: bool = False) -> tuple[T, Brokers]:
        """Call a function as in `with_extents`; return its result, and all brokers. Raises PipelineError."""
        with self._connected() as cluster:
            return see(list(remote_partitions(cluster, self._options, lenient=lenient))), cluster.brokers

    def plan(self, choose: Choice, *, lenient: bool = False) -> Plan:
        """Return the splits of the chosen offsets. Raises PipelineError."""
        (topic_ids, ranges), brokers = self.with_brokers(
            lambda extents: (topic_ids_of(extents), choose(extents)), lenient=lenient
        )
        return Plan(splits=list(plan_remote(self._options, brokers, ranges, topic_ids)), ranges=ranges)

    def size(self, choose: Choice) -> int:
        """Return the size of the segments with the chosen offsets. Raises PipelineError."""
        with self._connected() as cluster:
            ranges = choose(list(remote_partitions(cluster, self._options)))
            request = DescribeTopicsRequest(topics=tuple({topic for topic, _ in ranges}))
            replies = cluster.call(lambda client: client.ask_each(request, DescribeTopicsResponse))
        sizes: dict[TopicPartition, int] = {}
        for topic in (topic for reply in replies for topic in reply.topics):
            for partition in topic.partitions:
                if (wanted := ranges.get((topic.name, partition.partition))) is not None:
                    size = sum(
                        segment.size
                        for segment in partition.segments
                        if segment.base_offset < wanted.end and segment.next_offset > wanted.start
                    )
                    key = topic.name, partition.partition
                    sizes[key] = max(sizes.get(key, 0), size)  # several brokers may have replicas
        return sum(sizes.values())


def plan_remote(options: ReadOptions, brokers: Brokers, ranges: Ranges, topic_ids: TopicIds) -> list[RemoteSplit]:
    """Return splits of these offsets: one for each partition, or about `min_partitions`."""
    total = sum(wanted.end - wanted.start for wanted in ranges.values())
    share = max(-(-total // (options.min_partitions or 1)), options.min_split_offsets)
    return [
        RemoteSplit(
            brokers=brokers,
            topic=topic,
            partition=partition,
            first_offset=first,
            end_offset=end,
            topic_id=topic_ids.get(topic),
        )
        for (topic, partition), wanted in ranges.items()
        for first, end in pairwise(cuts(wanted, round((wanted.end - wanted.start) / share), options))
    ]


def commit_offsets(brokers: Brokers, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit the next offset of partitions for a group. Raises PipelineError, after a short time without a broker."""
    with ClusterConnection(brokers, Retry(COMMIT_TIMEOUT_S)) as cluster:
        cluster.call(lambda client: GroupAdmin(client).commit(group, offsets))
