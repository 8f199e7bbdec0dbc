"""High watermarks of partitions that other brokers lead."""

from typing import Any, cast

import trio

from warmlog.broker.coordinator.peer_queue import Peers
from warmlog.broker.groups.requests.end_offsets import MAX_QUERIES, EndOffsets
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.records.offsets import KafkaListOffsetsRequest
from warmlog.protocol.response import ListedOffset, ListOffsetsResponse


class Nothing:
    """The partitions of a broker that has none."""

    def local(self, topic: str, partition: int) -> None: ...


class Leaders:
    """Broker 0 leads the even partitions and answers only after broker 1 has; broker 2 leads number 5, and is down."""

    def __init__(self) -> None:
        self.has_answered = trio.Event()
        self.sizes: list[int] = []

    def leader_id(self, topic: str, partition: int) -> int:
        return 2 if partition == 5 else partition % 2

    async def answer(self, broker: int, api: Any, request: KafkaListOffsetsRequest, number: int) -> Any:
        self.sizes.append(len(request.partitions))
        if broker == 0:
            await self.has_answered.wait()
        if broker == 1:
            self.has_answered.set()
        if broker == 2:
            return None
        listed = [ListedOffset(topic=each.topic, partition=each.partition, offset=7) for each in request.partitions]
        return ListOffsetsResponse(partitions=tuple(listed))


async def test_all_leaders_are_queried_at_once_in_requests_of_limited_size() -> None:
    leaders = Leaders()
    offsets = EndOffsets(cast(Partitions, Nothing()), cast(Peers, leaders))
    keys = [("t", partition) for partition in range(2 * MAX_QUERIES + 2)]
    actual = await offsets.of(keys, trio.lowlevel.checkpoint)
    assert actual == dict.fromkeys(keys, 7) | {("t", 5): ErrorCode.NETWORK_EXCEPTION}
    assert sorted(leaders.sizes) == [1, 1, MAX_QUERIES, MAX_QUERIES]
