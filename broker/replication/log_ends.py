"""Query the log end offsets of replicas: the longest log is elected when none is known to be complete."""

import logging
from collections.abc import Mapping, Sequence

import trio

from warmlog.broker.cluster.node import ClusterNode
from warmlog.broker.cluster.rules import LogEnd
from warmlog.broker.cluster.values import Member
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.replication.peers.errors import PeerError
from warmlog.broker.replication.peers.leaders import Leaders
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.records.fetch import DEBUGGER
from warmlog.protocol.kafka.messages.records.offsets import KafkaListOffsetsRequest, KafkaOffsetQuery
from warmlog.protocol.kafka.peer_apis import LIST_OFFSETS
from warmlog.protocol.partitions import TopicIdPartition
from warmlog.protocol.request import LATEST_TIMESTAMP

TIMEOUT_S = 5.0
OTHERS_TIMEOUT_S = 0.5  # wait for replicas outside the ISR and the ELR, once all members of these have answered

logger = logging.getLogger(__name__)


class LogEnds:
    """Queries the log end offsets of replicas."""

    def __init__(self, node: ClusterNode, partitions: Partitions, leaders: Leaders) -> None:
        self._node = node
        self._partitions = partitions
        self._leaders = leaders
        self._silent: set[Member] = set()  # outside of ISR and ELR; not queried again in the same registration

    async def ask(self, key: TopicIdPartition, members: Sequence[Member]) -> Mapping[Member, LogEnd]:
        """Return the log end offsets of these brokers.

        Brokers that do not answer, whose log has failed, or that have registered again since, are omitted.
        """
        log_ends: dict[Member, LogEnd] = {}
        name, state = self._node.image.names.get(key.topic_id), self._node.image.partitions.get(key)
        if name is None or state is None:
            return log_ends
        known = {member.broker for member in (*state.isr, *state.elr)}
        needed = {member for member in members if member.broker in known}
        queried = [member for member in members if member in needed or member not in self._silent]
        waiting = set(queried)

        async def ask(member: Member) -> None:
            await self._query(name, key.partition, member, log_ends)
            waiting.discard(member)
            if needed <= log_ends.keys():
                scope.deadline = min(scope.deadline, trio.current_time() + OTHERS_TIMEOUT_S)

        with trio.move_on_after(TIMEOUT_S) as scope:
            async with trio.open_nursery() as nursery:
                for member in queried:
                    nursery.start_soon(ask, member)
        self._silent |= waiting - needed
        return {member: end for member, end in log_ends.items() if self._node.image.current(member.broker) == member}

    async def _query(self, topic: str, index: int, member: Member, log_ends: dict[Member, LogEnd]) -> None:
        if member.broker == self._node.id:
            here = self._partitions.local(topic, index)
            if here is not None and not here.log.failed and not here.is_of_deleted_topic:
                log_ends[member] = LogEnd(here.log.last_epoch, here.log.offsets.log_end_offset)
            return
        query = KafkaOffsetQuery(topic=topic, partition=index, timestamp=LATEST_TIMESTAMP)
        request = KafkaListOffsetsRequest(partitions=(query,), replica_id=DEBUGGER)
        try:
            answer = await self._leaders.ask(member.broker, LIST_OFFSETS, request)
        except PeerError as error:
            logger.debug("%s-%d: broker %d did not report its log end offset: %s", topic, index, member.broker, error)
            return
        for partition in answer.partitions:
            if partition.error is ErrorCode.NONE:
                log_ends[member] = LogEnd(partition.leader_epoch, partition.offset)
