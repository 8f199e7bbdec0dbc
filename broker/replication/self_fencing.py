"""Fence this broker when only it has lost the store and other brokers lead its partitions.

A broker without a connection to the store cannot distinguish a store that is down, in which case it has to continue to
serve, from a network partition. Once its lease must have expired, it queries other brokers. A later leader epoch of a
partition that it leads proves that another leader was elected: then the broker fences itself until it has registered
again. Its clients get NOT_LEADER_OR_FOLLOWER and switch to the others, instead of waiting for acknowledgements that
cannot come.

A later leader epoch is proof regardless of the other broker's image: epochs only grow.
"""

import logging
from random import Random

import trio

from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.node import ClusterNode
from warmlog.broker.log.io.directory_names import encode_topic_id
from warmlog.broker.replication.peers.brokers import ClusterBrokers
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.messages.topics.metadata import KafkaMetadataRequest
from warmlog.protocol.kafka.peer_apis import METADATA
from warmlog.protocol.partitions import TopicIdPartition
from warmlog.protocol.response import MetadataResponse

SAMPLE = 20  # partitions to query; some may have no other live replica
QUESTIONS_PER_LEASE = 3

logger = logging.getLogger(__name__)


class SelfFencing:
    """Queries other brokers for later leader epochs while the store does not answer."""

    def __init__(self, node: ClusterNode, brokers: ClusterBrokers, *, lease_s: float, random: Random) -> None:
        self._node = node
        self._brokers = brokers
        self._lease_s = lease_s
        self._random = random

    async def run(self) -> None:
        """Query periodically while the store has been silent for longer than a lease, until cancelled."""
        while True:
            await trio.sleep(self._lease_s / QUESTIONS_PER_LEASE)
            if not self._is_cut_off or not await self._is_replaced():
                continue
            if self._is_cut_off:  # the store is still silent after the others have answered
                logger.warning(
                    "broker %d cannot reach the cluster's store, and other brokers lead its partitions: fencing itself",
                    self._node.id,
                )
                self._node.fence()

    @property
    def _is_cut_off(self) -> bool:
        return not self._node.is_fenced and self._node.silence_s > self._lease_s

    async def _is_replaced(self) -> bool:
        """Return whether another broker knows a later leader epoch of a partition that this one leads."""
        image, me = self._node.image, self._node.id
        led = [key for key in image.held.get(me, ()) if image.partitions[key].leader_id == me]
        sampled = self._random.sample(led, min(SAMPLE, len(led)))
        names = sorted({image.names[key.topic_id] for key in sampled if key.topic_id in image.names})
        if not names:
            return False
        request = KafkaMetadataRequest(topics=tuple(names), topic_ids=(NO_TOPIC_ID,) * len(names), auto_create=False)
        for broker in sorted(image.brokers):
            if broker != me:
                response = await self._brokers.answer(broker, METADATA, request)
                if response is not None and _tells_later_epoch(response, image, sampled):
                    return True
        return False


def _tells_later_epoch(response: MetadataResponse, image: ClusterImage, sampled: list[TopicIdPartition]) -> bool:
    epochs = {
        (topic.topic_id, partition.partition): partition.leader_epoch
        for topic in response.topics
        for partition in topic.partitions
    }
    return any(
        epochs.get((encode_topic_id(key.topic_id), key.partition), -1) > image.partitions[key].leader_epoch
        for key in sampled
        if key in image.partitions
    )
