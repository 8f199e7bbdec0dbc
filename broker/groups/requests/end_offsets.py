"""Query the high watermarks of partitions, here and on other brokers.

Source: org.apache.kafka.coordinator.group.PartitionMetadataClient (listLatestOffsets), NetworkPartitionMetadataClient.
"""

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import trio

from warmlog.broker.coordinator.peer_queue import Peers
from warmlog.broker.groups.registry import Checkpoint
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.records.offsets import KafkaListOffsetsRequest, KafkaOffsetQuery
from warmlog.protocol.kafka.peer_apis import LIST_OFFSETS
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.request import LATEST_TIMESTAMP

CONNECTION: Final = -5  # a separate connection: brokers answer in order
MAX_QUERIES: Final = 1_000  # per request

EndOffset: TypeAlias = int | ErrorCode


class EndOffsets:
    """Queries high watermarks. `peers` are the other brokers of a cluster."""

    def __init__(self, partitions: Partitions, peers: Peers | None) -> None:
        self._partitions = partitions
        self._peers = peers

    async def of(self, keys: Iterable[TopicPartition], checkpoint: Checkpoint) -> dict[TopicPartition, EndOffset]:
        """Return each partition's high watermark, or an error if its leader does not answer."""
        offsets: dict[TopicPartition, EndOffset] = {}
        elsewhere: dict[int, list[TopicPartition]] = {}
        for key in keys:
            leader = None if self._peers is None else self._peers.leader_id(*key)
            local = self._partitions.local(*key)
            if leader is not None:
                elsewhere.setdefault(leader, []).append(key)
            elif local is not None:
                offsets[key] = local.log.offsets.high_watermark
            else:
                offsets[key] = ErrorCode.LEADER_NOT_AVAILABLE
            await checkpoint()
        async with trio.open_nursery() as nursery:  # a leader that does not answer must not delay the others
            for leader, there in elsewhere.items():
                nursery.start_soon(self._query, leader, there, offsets)
        return offsets

    async def _query(
        self, leader: int, keys: Sequence[TopicPartition], offsets: dict[TopicPartition, EndOffset]
    ) -> None:
        """Put the high watermarks of a leader's partitions into `offsets`."""
        assert self._peers is not None, "another broker leads a partition"
        offsets |= dict.fromkeys(keys, ErrorCode.NETWORK_EXCEPTION)
        for start in range(0, len(keys), MAX_QUERIES):
            queries = [
                KafkaOffsetQuery(topic=topic, partition=index, timestamp=LATEST_TIMESTAMP)
                for topic, index in keys[start : start + MAX_QUERIES]
            ]
            request = KafkaListOffsetsRequest(partitions=tuple(queries))
            response = await self._peers.answer(leader, LIST_OFFSETS, request, CONNECTION)
            for each in () if response is None else response.partitions:
                offsets[each.topic, each.partition] = each.error or each.offset
