"""Offsets and batches of partitions, requested from their leaders."""

from collections.abc import Sequence

from warmlog.pipeline.cluster import ClusterConnection, reply_error
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.native.messages import ReceivedFetch, ReceivedPartition
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.request import FetchPartition, FetchRequest, Isolation, ListOffsetsRequest, OffsetQuery
from warmlog.protocol.response import ListedOffset, ListOffsetsResponse


class Offsets:
    """Offsets of partitions, requested at their first use; the bounds of all partitions in one request."""

    def __init__(self, cluster: ClusterConnection, partitions: Sequence[TopicPartition]) -> None:
        self.cluster = cluster
        self._partitions = partitions
        self._bounds: dict[tuple[int, Isolation], dict[TopicPartition, ListedOffset]] = {}

    def bound(self, key: TopicPartition, timestamp: int, isolation: Isolation = Isolation.READ_UNCOMMITTED) -> int:
        """Return the start or the end of a partition. Raises PipelineError."""
        cached = self._bounds.get((timestamp, isolation))
        if cached is None:
            cached = dict(zip(self._partitions, self._find(self._partitions, timestamp, isolation), strict=True))
            self._bounds[timestamp, isolation] = cached
        return _offset(key, cached[key])

    def at_time(self, key: TopicPartition, timestamp: int) -> int:
        """Return the offset of the first record at or after a time, or a negative number if all records are earlier."""
        return _offset(key, self._find([key], timestamp, Isolation.READ_UNCOMMITTED)[0])

    def _find(self, keys: Sequence[TopicPartition], timestamp: int, isolation: Isolation) -> list[ListedOffset]:
        def request(some: Sequence[TopicPartition]) -> ListOffsetsRequest:
            queries = (OffsetQuery(topic=topic, partition=at, timestamp=timestamp) for topic, at in some)
            return ListOffsetsRequest(partitions=tuple(queries), isolation=isolation)

        return self.cluster.ask_leaders(keys, request, lambda reply: reply.partitions, ListOffsetsResponse)


def _offset(key: TopicPartition, listed: ListedOffset) -> int:
    if listed.error:
        raise reply_error(listed.error, listed.message, about=f"{key[0]}-{key[1]}")
    return listed.offset


def fetch_once(
    cluster: ClusterConnection, topic: str, partition: int, offset: int, *, max_bytes: int
) -> ReceivedPartition:
    """Fetch a partition, starting at an offset. The result has no records if the offset is out of range.

    Raises PipelineError.
    """

    def request(_: Sequence[TopicPartition]) -> FetchRequest:
        wanted = FetchPartition(topic=topic, partition=partition, offset=offset, max_bytes=max_bytes)
        return FetchRequest(partitions=(wanted,), max_wait_ms=0, max_bytes=max_bytes)

    received: ReceivedPartition
    (received,) = cluster.ask_leaders([(topic, partition)], request, lambda reply: reply.partitions, ReceivedFetch)
    if received.error and received.error is not ErrorCode.OFFSET_OUT_OF_RANGE:
        raise reply_error(received.error, received.message, about=f"{topic}-{partition}")
    return received
