"""Ask replicas where their logs end, whoever leads: the longest is elected when none is known to be complete."""

import logging
from collections.abc import Mapping, Sequence

import trio

from broker.cluster.image import PartitionKey
from broker.cluster.node import ClusterNode
from broker.cluster.rules import LogEnd
from broker.cluster.values import Member
from broker.partitions.partitions import Partitions
from broker.replication.peers.errors import PeerError
from broker.replication.peers.leaders import Leaders
from protocol.errors import ErrorCode
from protocol.kafka.peer_apis import LIST_OFFSETS
from protocol.kafka.values import DEBUGGER, KafkaListOffsetsRequest
from protocol.request import LATEST_TIMESTAMP, OffsetQuery

TIMEOUT_S = 5.0

logger = logging.getLogger(__name__)


class LogEnds:
    """Asks for the ends of logs."""

    def __init__(self, node: ClusterNode, partitions: Partitions, leaders: Leaders) -> None:
        self._node = node
        self._partitions = partitions
        self._leaders = leaders

    async def ask(self, key: PartitionKey, members: Sequence[Member]) -> Mapping[Member, LogEnd]:
        """Return where the logs of these brokers end.

        Those are missing that do not answer, whose log has failed, or that have registered again meanwhile.
        """
        found: dict[Member, LogEnd] = {}
        name = self._node.image.names.get(key.topic)
        if name is not None:
            with trio.move_on_after(TIMEOUT_S):
                async with trio.open_nursery() as nursery:
                    for member in members:
                        nursery.start_soon(self._ask_one, name, key.partition, member, found)
        return {member: end for member, end in found.items() if self._node.image.current(member.broker) == member}

    async def _ask_one(self, topic: str, index: int, member: Member, found: dict[Member, LogEnd]) -> None:
        if member.broker == self._node.id:
            here = self._partitions.local(topic, index)
            if here is not None and not here.log.failed:
                found[member] = LogEnd(here.log.last_epoch, here.log.log_end_offset)
            return
        query = OffsetQuery(topic=topic, partition=index, timestamp=LATEST_TIMESTAMP)
        request = KafkaListOffsetsRequest(partitions=(query,), replica_id=DEBUGGER)
        try:
            answer = await self._leaders.ask(member.broker, LIST_OFFSETS, request)
        except PeerError as error:
            logger.debug("broker %d does not tell where its log ends: %s", member.broker, error)
            return
        for one in answer.partitions:
            if one.error is ErrorCode.NONE:
                found[member] = LogEnd(one.leader_epoch, one.offset)
