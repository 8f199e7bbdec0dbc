"""The steps of leaders of mirrored partitions: begin another leader epoch, or become writable.

Both are transactions of the store, started by the leader; its role in the new epoch follows from the image.

A promotion: stop copying -> wait until the high watermark is the log end, so that every member of the ISR has all
records -> commit the end of the log together with the next leader epoch. If the leader fails before that, the next one
does the same with its own log end. The controller records the promotion when all partitions are promoted.
"""

import logging
from collections.abc import Iterator
from functools import partial

import trio

from warmlog.broker.cluster import admin
from warmlog.broker.cluster.image import ClusterImage, ImageDelta
from warmlog.broker.cluster.node import ClusterNode
from warmlog.broker.cluster.rules import Change, promote, renew, transaction
from warmlog.broker.cluster.values import PartitionState
from warmlog.broker.replication.local_replica import LocalReplica
from warmlog.protocol.partitions import TopicPartition

PAUSE_S = 0.2  # pause for replicas to catch up

logger = logging.getLogger(__name__)


def to_be_promoted(image: ClusterImage, delta: ImageDelta) -> Iterator[TopicPartition]:
    """Iterate over partitions of changed topics that are being promoted."""
    for name in delta.topics:
        topic = image.topics.get(name)
        if topic is not None and topic.mirror is not None and topic.mirror.is_promoting:
            yield from ((name, index) for index in range(topic.partitions))


class MirroredLeaders:
    """The steps of mirrored partitions that this broker leads. Belongs to the event loop."""

    def __init__(self, node: ClusterNode, commits: trio.CapacityLimiter) -> None:
        """Begin without steps. `commits` limits concurrent transactions."""
        self._node = node
        self._commits = commits
        self._paused: set[LocalReplica] = set()

    async def step(self, local: LocalReplica, state: PartitionState) -> bool | None:
        """Take the next step of a replica; return whether there may be another one, None if there was none.

        Raises StoreError.
        """
        is_to_be_promoted = local.is_to_be_promoted(state)
        if not is_to_be_promoted and not local.needs_renewal(state):
            return None
        if local.is_in_role(state):
            local.update(state)
        if is_to_be_promoted:
            return await self._promote(local, state)
        return await self._renew(local)

    async def _renew(self, local: LocalReplica) -> bool:
        async with self._commits:
            at_least = max(local.partition.log.epochs.latest, 0 if local.renewal is None else local.renewal.at_least)
            change = renew(self._node.image, local.key, self._node.me, at_least)
            if isinstance(change, Change) and await self._node.attempt(transaction([change])):
                return True
        self._pause(local)
        return False

    async def _promote(self, local: LocalReplica, state: PartitionState) -> bool:
        local.end_source()
        local.renewal = None
        await local.quiet()
        log, node = local.partition.log, self._node
        end = log.offsets.log_end_offset
        if log.offsets.high_watermark == end and local.is_to_be_promoted(state):
            await self._raise_producer_ids(local)
            change = promote(
                node.image,
                local.key,
                node.me,
                revision=state.revision,
                end=end,
                log_epoch=max(log.epochs.latest, local.source_epoch),
            )
            async with self._commits:
                if isinstance(change, Change) and await node.attempt(transaction([change])):
                    logger.info("%s-%d: promoted at offset %d", local.partition.topic, local.partition.index, end)
                    return True
        self._pause(local)
        return False

    async def _raise_producer_ids(self, local: LocalReplica) -> None:
        """Keep the store from allocating producer ids of the source, whose producers are in the log."""
        needed = local.partition.log.producers.largest_id + 1
        if needed > self._node.image.producer_ids.next_id:
            await admin.take_producer_ids(self._node, 0, at_least=needed)

    def _pause(self, local: LocalReplica) -> None:
        """Schedule the next step after a pause."""
        if local not in self._paused:
            self._paused.add(local)
            self._node.spawn(partial(self._again, local))

    async def _again(self, local: LocalReplica) -> None:
        await trio.sleep(PAUSE_S)
        self._paused.discard(local)
        local.want_step()
