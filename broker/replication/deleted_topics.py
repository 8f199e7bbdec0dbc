"""Clean up after deleted topics and moved replicas on this broker: their directories, and the marks in the image.

A deleted topic stays in `ClusterImage.gone` with each broker that may have directories of it. A broker removes its mark
when it has deleted them.
"""

from collections.abc import Callable
from functools import partial
from uuid import UUID

from warmlog.broker.cluster.decisions import Decision, Refusal
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.cluster.topics import removed
from warmlog.broker.log.directory.data_directories import Verdict
from warmlog.protocol.partitions import TopicIdPartition


class DeletedTopics:
    """Removes the marks of this broker from deleted topics. Belongs to the event loop."""

    def __init__(self, node: StoreNode, replicas_of: Callable[[UUID], int]) -> None:
        """`replicas_of` returns how many replicas of a topic are on this broker."""
        self._node = node
        self._replicas_of = replicas_of
        self._unmarking: set[UUID] = set()

    def unmark(self) -> None:
        """Remove the marks of topics without a replica here. All data directories must be online."""
        for topic, brokers in self._node.image.gone.items():
            if self._node.id in brokers and not self._replicas_of(topic) and topic not in self._unmarking:
                self._unmarking.add(topic)
                self._node.spawn(partial(self._unmark, topic))

    async def _unmark(self, topic: UUID) -> None:
        def make(image: ClusterImage) -> Decision | None:
            decision = removed(image, topic, self._node.id)
            return None if isinstance(decision, Refusal) else decision

        try:
            await self._node.commit(make)
        finally:
            self._unmarking.discard(topic)


def judge(image: ClusterImage, broker: int, topic: str, index: int, topic_id: UUID) -> Verdict:
    """Decide what to do with a partition directory: delete it if its topic was deleted or its replica moved away.

    A directory of a topic that the cluster does not know is kept: its deletion was never requested.
    """
    if broker in image.gone.get(topic_id, ()):
        return Verdict.DELETED
    known = image.topics.get(topic)
    if known is None:
        return Verdict.KEPT
    if known.id != topic_id:
        return Verdict.STRAY
    state = image.partitions.get(TopicIdPartition(known.id, index))
    return Verdict.DELETED if state is not None and broker not in state.replicas else Verdict.KEPT
