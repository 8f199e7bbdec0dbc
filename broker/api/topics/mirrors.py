"""Describe and promote the mirrored topics (native protocol)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import EXPECTED, describe
from warmlog.broker.api.handler import Handler
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
    from warmlog.broker.mirror.service import Mirror  # most brokers never need it


class MirrorsApi:
    """Answers requests about mirrored topics. `mirror` is None if nothing is followed; there may still be copies."""

    def __init__(self, partitions: Partitions, mirror: "Mirror | None") -> None:
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
                topics[topic.name] = await self._topic(topic, context)
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
            partitions.append(self._partition(topic, index))
            await context.checkpoint()
        problem = None if self._mirror is None else self._mirror.refused.get(topic.name)
        if topic.mirror.is_promoted:
            state, problem = MirrorState.PROMOTED, None
        elif problem is not None:
            state = MirrorState.REFUSED
        else:
            state = MirrorState.STOPPED if self._mirror is None else MirrorState.FOLLOWING
            if self._mirror is not None and not self._mirror.follows(topic):
                state, problem = MirrorState.STOPPED, self._mirror.problem
        return MirroredTopic(
            name=topic.name,
            state=state,
            cluster_id=topic.mirror.cluster_id,
            problem=problem,
            partitions=tuple(partitions),
        )

    def _partition(self, topic: Topic, index: int) -> MirroredPartition:
        assert topic.mirror is not None
        partition = self._partitions.get(topic.name, index)
        if partition is None:
            return MirroredPartition(partition=index, end=-1, problem="the partition is offline")
        promoted_at = topic.mirror.promoted_at
        if promoted_at is not None:
            at = promoted_at[index] if index < len(promoted_at) else -1  # partitions may have been added since
            return MirroredPartition(partition=index, end=partition.log.offsets.log_end_offset, promoted_at=at)
        if self._mirror is None:
            return MirroredPartition(partition=index, end=partition.log.offsets.log_end_offset)
        return self._mirror.describe(partition)

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
