"""The cluster of a mirroring broker: the partitions that it leads, and the broker that changes mirrored topics.

Each broker copies the partitions that it leads, and the offsets of groups that it coordinates. One of them, the keeper,
creates and changes topics; it holds a key of the store, attached to its lease. Transactions protect its changes from
another broker that considers itself the keeper.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from warmlog.broker.cluster.node import ClusterNode
from warmlog.broker.cluster.store import StoreError
from warmlog.broker.cluster.topics import resign_mirroring, take_mirroring
from warmlog.broker.cluster.values import NO_LEADER, Member
from warmlog.broker.metadata.topic import Topic
from warmlog.broker.replication.local_replica import LocalReplica
from warmlog.broker.replication.peers.brokers import ClusterBrokers
from warmlog.broker.replication.peers.errors import PeerError
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.records.offsets import KafkaListOffsetsRequest, KafkaOffsetQuery
from warmlog.protocol.kafka.peer_apis import LIST_OFFSETS
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.request import LATEST_TIMESTAMP


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCluster:
    """The cluster that this broker is a member of. `find`: returns a replica on this broker, None without one."""

    node: ClusterNode
    brokers: ClusterBrokers
    find: Callable[[str, int], LocalReplica | None]

    def copied(self, topic: Topic, index: int) -> LocalReplica | None:
        """Return the replica of a partition if this broker leads it, and it follows its source."""
        local = self.find(topic.name, index)
        state = self.node.image.partition(topic.name, index)
        if local is None or state is None or not local.leads or not local.is_in_role(state):
            return None
        is_followed = local.source_in(state) is not None and not local.is_to_be_promoted(state)
        return local if is_followed and local.renewal is None else None

    def leader_epoch(self, topic: str, index: int) -> int:
        """Return the leader epoch of a partition for clients; -1 if there is none."""
        state = self.node.image.partition(topic, index)
        return -1 if state is None else state.leader_epoch

    @property
    def is_keeper(self) -> bool:
        """Whether this broker changes mirrored topics, according to the image."""
        keeper = self.node.image.mirror_keeper
        return keeper is not None and Member(keeper.broker, keeper.epoch) == self.node.me

    async def keeps(self) -> bool:
        """Become the keeper if there is none; return whether this broker is the keeper."""
        node = self.node
        if not self.is_keeper and node.image.may_join(node.me):
            try:
                await node.attempt(take_mirroring(node.image, node.me, node.lease))
            except StoreError:
                return False
        return self.is_keeper

    async def resign(self) -> None:
        """Leave the role of the keeper to another broker, because this one cannot reach the source."""
        if self.is_keeper:
            try:
                await self.node.attempt(resign_mirroring(self.node.image, self.node.me))
            except StoreError:
                return  # the key ends with the lease

    async def high_watermarks(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Query the leaders for high watermarks; partitions whose leaders do not answer are omitted."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for key in keys:
            state = self.node.image.partition(*key)
            if state is not None and state.leader_id not in {NO_LEADER, self.node.id}:
                by_leader.setdefault(state.leader_id, []).append(key)
        high_watermarks: dict[TopicPartition, int] = {}
        for leader, there in by_leader.items():
            queries = [
                KafkaOffsetQuery(topic=topic, partition=index, timestamp=LATEST_TIMESTAMP) for topic, index in there
            ]
            try:
                response = await self.brokers.ask(
                    leader, LIST_OFFSETS, KafkaListOffsetsRequest(partitions=tuple(queries))
                )
            except PeerError:
                continue
            for partition in response.partitions:
                if partition.error is ErrorCode.NONE:
                    high_watermarks[partition.topic, partition.partition] = partition.offset
        return high_watermarks
