"""Describe and promote the mirrored topics (native protocol)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import EXPECTED, describe
from warmlog.broker.api.handler import Handler
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.cluster.values import NO_LEADER
from warmlog.broker.metadata.topic import Topic
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.native.mirrors import (
    DescribeMirrorRequest,
    DescribeMirrorResponse,
    MirroredPartition,
    MirroredTopic,
    MirrorState,
    PromotedTopic,
    PromoteTopicsRequest,
    PromoteTopicsResponse,
)

if TYPE_CHECKING:
    from warmlog.broker.mirror.service import MirrorService  # most brokers do not need it


class MirrorsApi:
    """Answers requests about mirrored topics. Such topics may exist even if `mirror` is None and nothing is copied.

    A broker of a cluster describes the partitions that it leads and every partition without a leader, so that a client
    that queries all brokers gets every partition.
    """

    def __init__(self, partitions: Partitions, mirror: "MirrorService | None", node: StoreNode) -> None:
        self._node = node
        self._partitions = partitions
        self._mirror = mirror

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {DescribeMirrorRequest.api: self._describe, PromoteTopicsRequest.api: self._promote}

    # -- describe --

    async def _describe(self, _: DescribeMirrorRequest, context: Context) -> DescribeMirrorResponse:
        mirror = self._mirror
        topics: dict[str, MirroredTopic] = {}
        if mirror is not None:
            refused = [
                MirroredTopic(name=name, state=MirrorState.REFUSED, problem=why) for name, why in mirror.refused.items()
            ]
            topics = {topic.name: topic for topic in refused}
        for topic in list(self._partitions.topics()):
            if topic.mirror is not None:
                described = await self._topic(topic, context)
                if described.partitions or described.problem:
                    topics[topic.name] = described
            await context.checkpoint()
        return DescribeMirrorResponse(
            source="" if mirror is None else mirror.source,
            problem=None if mirror is None else mirror.problem,
            topics=tuple([topics[name] for name in sorted(topics)]),
        )

    async def _topic(self, topic: Topic, context: Context) -> MirroredTopic:
        assert topic.mirror is not None
        partitions = []
        for index in range(topic.partitions):
            partition = self._partition(topic, index)
            if partition is not None:
                partitions.append(partition)
            await context.checkpoint()
        problem = None if self._mirror is None else self._mirror.refused.get(topic.name)
        if topic.mirror.is_promoted:
            state, problem = MirrorState.PROMOTED, None
        elif topic.mirror.is_promoting:
            state, problem = MirrorState.STOPPED, "it is being promoted"
        elif problem is not None:
            state = MirrorState.REFUSED
        else:
            state = MirrorState.STOPPED if self._mirror is None else MirrorState.FOLLOWING
            if self._mirror is not None and not self._mirror.copies.follows(topic):
                state, problem = MirrorState.STOPPED, self._mirror.problem
        return MirroredTopic(
            name=topic.name,
            state=state,
            cluster_id=topic.mirror.cluster_id,
            problem=problem,
            partitions=tuple(partitions),
        )

    def _partition(self, topic: Topic, index: int) -> MirroredPartition | None:
        """Describe a partition; None if another broker does."""
        assert topic.mirror is not None
        partition = self._partitions.get(topic.name, index)
        if partition is None:
            leader = self._partitions.catalog.partition(topic, index).leader
            if leader not in {NO_LEADER, self._node.id}:
                return None
            problem = "the partition is offline" if self._node.is_alone else "the partition has no leader"
            return MirroredPartition(partition=index, end=-1, problem=problem)
        promoted_at = topic.mirror.promoted_at
        if promoted_at is not None:
            at = promoted_at[index] if index < len(promoted_at) else -1  # partitions may have been added since
            return MirroredPartition(partition=index, end=partition.log.offsets.log_end_offset, promoted_at=at)
        if self._mirror is None:
            missing = f"broker {self._node.id}, which leads it, has no warmlog.mirror.from"
            why = None if self._node.is_alone else missing
            return MirroredPartition(partition=index, end=partition.log.offsets.log_end_offset, problem=why)
        return self._mirror.copies.describe(partition)

    # -- promote --

    async def _promote(self, request: PromoteTopicsRequest, context: Context) -> PromoteTopicsResponse:
        results = []
        for name in request.topics:
            results.append(await self._promoted(name))
            await context.checkpoint()
        return PromoteTopicsResponse(topics=tuple(results))

    async def _promoted(self, name: str) -> PromotedTopic:
        try:
            if self._mirror is None:
                topic = await self._partitions.changes.promote(name, {})
            else:
                topic = await self._mirror.promote(name)
        except EXPECTED as error:
            code, message = describe(error)
            return PromotedTopic(name=name, error=code, message=message)
        assert topic.mirror is not None
        return PromotedTopic(name=name, offsets=topic.mirror.promoted_at or ())
