"""Carry out changes of topics in a cluster: each is one or several transactions of the store.

`Replicas` creates and removes logs, on the brokers that have them.
"""

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

import trio

from warmlog.broker.cluster import admin
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.node import ClusterNode
from warmlog.broker.cluster.rules import SHARED
from warmlog.broker.cluster.store import StoreError
from warmlog.broker.cluster.topics import PARTITIONS_PER_STEP
from warmlog.broker.cluster.values import TopicState, TopicStatus
from warmlog.broker.metadata.assignment import InvalidAssignmentError
from warmlog.broker.metadata.errors import MetadataError, MetadataTimeoutError
from warmlog.broker.metadata.topic import InvalidTopicError, RefusedError, Topic, folded
from warmlog.broker.partitions.topics.errors import TopicExistsError, unknown_topic
from warmlog.broker.partitions.topics.executor import Assignment, Executor, Placement
from warmlog.broker.partitions.topics.partition_directories import Failures
from warmlog.broker.partitions.topics.topic_map import TopicMap
from warmlog.broker.settings.live import LiveSettings
from warmlog.broker.settings.types import SettingError

RETRY_S = 1.0  # pause after a creation could not be finished
MAX_UNFINISHED = 1000  # creations that timed out for their clients, but may have begun

logger = logging.getLogger(__name__)


class SharedTopics(Executor):
    """Carries out changes in a cluster."""

    def __init__(self, node: ClusterNode, topics: TopicMap, settings: LiveSettings) -> None:
        super().__init__()  # deletions do not wait; see `TopicMap.note_deleted`
        self._node = node
        self._map = topics
        self._live_settings = settings
        self._unfinished: OrderedDict[UUID, Topic] = OrderedDict()
        node.on_change.append(lambda image, _: self._finish_begun(image))

    def is_taken(self, name: str, /) -> bool:
        """Return whether the image has a topic, including one that is being created or deleted."""
        return name in self._node.image.topics

    def check_settings(self, changed: Mapping[str, str]) -> None:
        """Raise SettingError if a setting that all brokers must agree on is changed for one of them."""
        for name in changed:
            if name in SHARED:
                raise SettingError(f"{name} cannot be set for one broker of a cluster: set it for all, or for a topic")

    def seen(self, name: str, state: TopicState, _: Topic | None, /) -> Topic:
        """Return the topic as it is in the image."""
        return state.named(name)

    def deleted(self, topic: Topic) -> None:
        """Remove a topic from the map; `Replicas` removes its partitions."""
        self._map.forget(topic)

    # -- create --------------------------------------------------------------------------------------------------------

    def place(self, wanted: Placement, /) -> Assignment:
        """Return the replicas of a new topic. Raises RefusedError."""
        if wanted.assignment is not None:
            admin.check_assignment(self._node.image, wanted.assignment)
            return wanted.assignment
        factor = wanted.replication_factor
        if factor == -1:
            factor = self._live_settings.current.default_replication_factor
        return admin.place(self._node.image, wanted.partitions, factor, self._node.random)

    async def create(self, topics: Sequence[Topic], _: float, /) -> Failures:
        """Create planned topics of distinct names; return the failures. Brokers then create logs of their replicas."""
        failures: Failures = {}
        taken: dict[str, str] = {}
        async with trio.open_nursery() as nursery:
            for topic in topics:
                other = taken.setdefault(folded(topic.name), topic.name)
                if other != topic.name:
                    failures[topic.name] = InvalidTopicError(f"topic {topic.name!r} collides with {other!r}")
                else:
                    nursery.start_soon(self._place_and_create, topic, failures)
                await trio.lowlevel.checkpoint()
        return failures

    async def _place_and_create(self, topic: Topic, failures: Failures) -> None:
        """Create a topic; place its replicas first if it was not planned here, as for a mirrored topic."""
        if topic.assignment is None:
            try:
                placed = self.place(Placement(topic.name, topic.partitions, -1, None))
            except RefusedError as error:
                failures[topic.name] = error
                return
            topic = replace(topic, assignment=tuple([tuple(each) for each in placed]))
        await self._create(topic, failures)

    async def _create(self, topic: Topic, failures: Failures) -> None:
        try:
            await admin.in_time(lambda: self._create_whole(topic))
        except RefusedError as error:
            is_there = topic.name in self._node.image.topics
            failures[topic.name] = TopicExistsError(str(error)) if is_there else error
        except MetadataTimeoutError as error:
            failures[topic.name] = error
            if topic.partitions > PARTITIONS_PER_STEP:  # smaller topics are created in one transaction
                self._unfinished[topic.id] = topic
            while len(self._unfinished) > MAX_UNFINISHED:
                self._unfinished.popitem(last=False)
            self._finish_begun(self._node.image)
        except MetadataError as error:
            failures[topic.name] = error

    async def _create_whole(self, topic: Topic) -> None:
        """Create a topic, or its missing partitions. Raises RefusedError, StoreError."""
        assert topic.assignment is not None, "placed before"
        state = TopicState(id=topic.id, partitions=topic.partitions, configs=topic.configs, mirror=topic.mirror)
        await admin.create_topic(self._node, topic.name, state, topic.assignment)

    def _finish_begun(self, image: ClusterImage) -> None:
        """Finish creations that timed out for their clients; until then, their names cannot be used."""
        for topic in [each for each in self._unfinished.values() if each.name in image.topics]:
            del self._unfinished[topic.id]
            if _is_begun(image, topic):
                self._node.spawn(partial(self._finish_creation, topic))

    async def _finish_creation(self, topic: Topic) -> None:
        while _is_begun(self._node.image, topic):
            try:
                await self._create_whole(topic)
            except RefusedError:
                return  # it was deleted in the meantime
            except StoreError as error:
                logger.warning("topic %s: cannot complete its creation, retrying: %s", topic.name, error)
                await trio.sleep(RETRY_S)

    async def grow(self, topic: Topic, _: int, added: Assignment, /) -> None:
        """Add partitions. Raises RefusedError, MetadataError."""
        await admin.in_time(lambda: admin.grow_topic(self._node, topic.name, topic.id, added, topic.partitions))

    def place_more(self, topic: Topic, count: int, assignment: Assignment | None, /) -> Assignment:
        """Return the replicas of the partitions that are added. Raises RefusedError."""
        image = self._node.image
        first = image.partition(topic.name, 0)
        factor = 1 if first is None else len(first.replicas) - len(first.adding)
        if assignment is not None:
            admin.check_assignment(image, assignment)
            if len(assignment[0]) != factor:
                raise InvalidAssignmentError(
                    f"a new partition is assigned to {len(assignment[0])} brokers, but those that exist have {factor}"
                )
            return assignment
        return admin.place(image, count - topic.partitions, factor, self._node.random, first_partition=topic.partitions)

    # -- promote -------------------------------------------------------------------------------------------------------

    async def promote(self, topic: Topic, _: Mapping[int, int], /) -> None:
        """Make a mirrored topic writable; see `Topics.promote`. Each leader does it for its partitions.

        A promotion that has begun is completed even if this broker, or a leader, fails. Raises InvalidTopicError,
        MetadataError.
        """
        without = [index for index in range(topic.partitions) if not self._has_leader(topic, index)]
        is_begun = topic.mirror is not None and topic.mirror.is_promoting
        if without and not is_begun:
            raise InvalidTopicError(
                f"topic {topic.name!r} has partitions without a leader, the first is {without[0]}: promote it when "
                "all are served"
            )
        try:
            await admin.in_time(lambda: self._promote(topic))
        except RefusedError as error:
            raise InvalidTopicError(str(error)) from None
        except MetadataTimeoutError:
            raise MetadataTimeoutError(
                f"topic {topic.name!r} is not writable yet: its partitions become so when their leaders are there and "
                "all in-sync replicas, at least min.insync.replicas, have their records; see `warmlog mirror status`"
            ) from None

    async def _promote(self, topic: Topic) -> None:
        await admin.begin_promotion(self._node, topic.name)
        while self._is_promoting(topic):
            await self._node.advanced()

    def _is_promoting(self, topic: Topic) -> bool:
        state = self._node.image.topics.get(topic.name)
        return state is not None and state.id == topic.id and state.mirror is not None and state.mirror.is_promoting

    def _has_leader(self, topic: Topic, index: int) -> bool:
        state = self._node.image.partition(topic.name, index)
        return state is not None and state.leader is not None and self._node.image.is_good(state.leader)

    # -- delete --------------------------------------------------------------------------------------------------------

    async def delete(self, topics: Mapping[str, UUID], _: bool, /) -> Failures:
        """Delete topics, and return the failures: UnknownTopicError, MetadataError."""
        failures: Failures = {}
        async with trio.open_nursery() as nursery:
            for name, topic_id in topics.items():
                nursery.start_soon(self._delete, name, topic_id, failures)
                await trio.lowlevel.checkpoint()
        return failures

    async def _delete(self, name: str, topic_id: UUID, failures: Failures) -> None:
        try:
            await admin.in_time(lambda: admin.delete_topic(self._node, name, topic_id))
        except RefusedError:
            failures[name] = unknown_topic(name)
        except MetadataError as error:
            failures[name] = error


def _is_begun(image: ClusterImage, topic: Topic) -> bool:
    """Return whether this creation of a topic has begun and lacks partitions."""
    state = image.topics.get(topic.name)
    return state is not None and state.id == topic.id and state.status is TopicStatus.CREATING
