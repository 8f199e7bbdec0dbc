"""Topics of a cluster: changes go to its store, and what comes back from there is what this broker knows.

    create, alter, delete   validate | commit | wait until the own image has it
    the image               topics into the map, settings into force; logs are created and removed by `Replicas`

The same interface as `TopicChanges`, which keeps topics of a broker by itself.
"""

import logging
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

import trio

from warmlog.broker.cluster import admin
from warmlog.broker.cluster.image import BROKER_DEFAULTS, ClusterImage, ImageDelta
from warmlog.broker.cluster.node import ClusterNode
from warmlog.broker.cluster.rules import SHARED
from warmlog.broker.cluster.store import StoreError
from warmlog.broker.cluster.topics import PARTITIONS_PER_STEP
from warmlog.broker.cluster.values import TopicState, TopicStatus
from warmlog.broker.metadata.assignment import InvalidAssignmentError
from warmlog.broker.metadata.store import MetadataError, MetadataTimeoutError
from warmlog.broker.metadata.topic import (
    InvalidPartitionsError,
    InvalidTopicError,
    RefusedError,
    Topic,
    check_collision,
    check_name,
    check_partitions,
    folded,
)
from warmlog.broker.partitions.topics.partition_directories import Checkpoint, Failures
from warmlog.broker.partitions.topics.topic_changes import Change, TopicExistsError, grown, unknown_topic
from warmlog.broker.partitions.topics.topic_map import TopicMap
from warmlog.broker.settings.live import LiveSettings, Overrides
from warmlog.broker.settings.topics import LogConfigs, check_topic_configs
from warmlog.broker.settings.types import SettingError

LOGS_PER_STEP = 200  # whose settings change at once: a millisecond
RETRY_S = 1.0  # after a creation could not be finished
MAX_UNFINISHED = 1000  # creations that took too long for their clients, and may have begun

logger = logging.getLogger(__name__)


class ClusterTopics:
    """Change the topics of a cluster, and follow their changes. Belongs to the event loop."""

    def __init__(self, node: ClusterNode, topics: TopicMap, settings: LiveSettings, configs: LogConfigs) -> None:
        self.on_deleted: list[Callable[[str], None]] = []  # each is called with a deleted topic's name
        self.before_forgetting: list[Callable[[], Awaitable[None]]] = []  # not needed: see `TopicMap.note_deleted`
        self._node = node
        self._map = topics
        self._live_settings = settings
        self._configs = configs
        self._unfinished: OrderedDict[UUID, Topic] = OrderedDict()
        node.on_change.append(self._follow)
        node.on_change.append(lambda image, _: self._finish_begun(image))
        self._note_deleted(node.image, node.image.gone)

    # -- create --------------------------------------------------------------------------------------------------------

    def plan(
        self,
        name: str,
        partitions: int,
        configs: Mapping[str, str],
        *,
        replication_factor: int = -1,
        assignment: Sequence[Sequence[int]] | None = None,
    ) -> Topic:
        """Return the topic that `create` would create, after all checks. Uses memory only.

        A replication factor of -1 means `default.replication.factor`. Raises what `TopicChanges.plan` does, and
        RefusedError for replicas that are not possible.
        """
        check_name(name)
        if name in self._node.image.topics:
            raise TopicExistsError(f"topic {name!r} already exists")
        check_collision(name, self._map.colliding(name))
        checked = check_topic_configs(configs, self._live_settings.current)
        if assignment is not None:
            admin.check_assignment(self._node.image, assignment)
            partitions = len(assignment)
        check_partitions(partitions)
        if assignment is None:
            settings = self._live_settings.current
            factor = settings.default_replication_factor if replication_factor == -1 else replication_factor
            assignment = admin.place(self._node.image, partitions, factor, self._node.random)
        return Topic(
            name=name, partitions=partitions, configs=checked, assignment=tuple([tuple(each) for each in assignment])
        )

    async def create(self, topics: Sequence[Topic], *, answer_after_s: float = math.inf) -> Failures:
        """Create planned topics of distinct names, and return the failures."""
        del answer_after_s  # the answer comes with the metadata; logs are created by the brokers that have them
        failures: Failures = {}
        taken: dict[str, str] = {}
        async with trio.open_nursery() as nursery:
            for topic in topics:
                other = taken.setdefault(folded(topic.name), topic.name)
                if other != topic.name:
                    failures[topic.name] = InvalidTopicError(f"topic {topic.name!r} collides with {other!r}")
                else:
                    nursery.start_soon(self._create, topic, failures)
                await trio.lowlevel.checkpoint()
        return failures

    async def _create(self, topic: Topic, failures: Failures) -> None:
        try:
            await admin.in_time(lambda: self._create_whole(topic))
        except RefusedError as error:
            is_there = topic.name in self._node.image.topics
            failures[topic.name] = TopicExistsError(str(error)) if is_there else error
        except MetadataTimeoutError as error:
            failures[topic.name] = error
            if topic.partitions > PARTITIONS_PER_STEP:  # others are created in one transaction
                self._unfinished[topic.id] = topic
            while len(self._unfinished) > MAX_UNFINISHED:
                self._unfinished.popitem(last=False)
            self._finish_begun(self._node.image)
        except MetadataError as error:
            failures[topic.name] = error

    async def _create_whole(self, topic: Topic) -> None:
        """Create a topic, or what is left of it. Raises RefusedError, StoreError."""
        assert topic.assignment is not None, "planned here"
        state = TopicState(id=topic.id, partitions=topic.partitions, configs=topic.configs)
        await admin.create_topic(self._node, topic.name, state, topic.assignment)

    def _finish_begun(self, image: ClusterImage) -> None:
        """Finish creations that have begun and timed out for their clients: their names cannot be used until then."""
        for topic in [each for each in self._unfinished.values() if each.name in image.topics]:
            del self._unfinished[topic.id]
            if _is_begun(image, topic):
                self._node.spawn(partial(self._finish_creation, topic))

    async def _finish_creation(self, topic: Topic) -> None:
        while _is_begun(self._node.image, topic):
            try:
                await self._create_whole(topic)
            except RefusedError:
                return  # it was deleted meanwhile
            except StoreError as error:
                logger.warning("topic %s: its creation is not finished, trying again: %s", topic.name, error)
                await trio.sleep(RETRY_S)

    # -- alter ---------------------------------------------------------------------------------------------------------

    async def alter(
        self,
        name: str,
        change: Change | None = None,
        partitions: int | None = None,
        *,
        validate_only: bool = False,
        for_mirror: bool = False,
        assignment: Sequence[Sequence[int]] | None = None,
    ) -> Topic:
        """Change a topic's settings, and increase its partition count. `change` maps old settings to new ones.

        Raises UnknownTopicError, InvalidPartitionsError, SettingError, MetadataError, RefusedError for impossible
        replicas, and what `change` raises.
        """
        del for_mirror  # a broker of a cluster mirrors nothing
        topic = self._map.topics.get(name)
        if topic is None:
            raise unknown_topic(name)
        settings = self._live_settings.current
        configs = topic.configs if change is None else check_topic_configs(change(topic.configs), settings)
        count = grown(topic, partitions)
        added = self._placed(topic, count, assignment)
        if validate_only:
            return topic
        try:
            if change is not None and configs != topic.configs:
                await self._set_configs(name, lambda old: check_topic_configs(change(old), settings))
            if added:
                await admin.in_time(lambda: admin.grow_topic(self._node, name, topic.id, added, topic.partitions))
        except RefusedError as error:  # another broker was first
            raise InvalidPartitionsError(str(error)) if name in self._map.topics else unknown_topic(name) from None
        return self._map.topics.get(name, topic)

    async def _set_configs(self, name: str, change: Change) -> None:
        await admin.in_time(lambda: admin.set_topic_configs(self._node, name, change))

    def _placed(self, topic: Topic, count: int, assignment: Sequence[Sequence[int]] | None) -> Sequence[Sequence[int]]:
        """Return the replicas of the partitions that are added. Raises RefusedError."""
        if count == topic.partitions:
            return ()
        first = self._node.image.partition(topic.name, 0)
        factor = 1 if first is None else len(first.replicas) - len(first.adding)
        if assignment is not None:
            admin.check_assignment(self._node.image, assignment)
            if len(assignment[0]) != factor:
                raise InvalidAssignmentError(
                    f"a new partition is assigned to {len(assignment[0])} brokers, but those that exist have {factor}"
                )
            return assignment
        return admin.place(
            self._node.image,
            count - topic.partitions,
            factor,
            self._node.random,
            first_partition=topic.partitions,
        )

    async def alter_broker(
        self, change: Callable[[Overrides], Overrides], checkpoint: Checkpoint, *, validate_only: bool = False
    ) -> None:
        """Change settings of this broker, or of all. Raises SettingError, MetadataError, and what `change` raises.

        Those that the brokers of a cluster must agree on cannot be changed for one of them (KIP-966).
        """
        live = self._live_settings
        overrides = change(live.overrides)
        live.combined(overrides)
        _check_not_shared(set(overrides.broker.items()) - set(live.overrides.broker.items()))
        if validate_only:
            return
        before = live.overrides
        if overrides.cluster != before.cluster:
            await self._set(BROKER_DEFAULTS, lambda old: change(replace(before, cluster=old)).cluster)
        if overrides.broker != before.broker:
            await self._set(str(self._node.id), lambda old: change(replace(before, broker=old)).broker)
        for name in overrides.resources.keys() | before.resources.keys():
            if overrides.resources.get(name) != before.resources.get(name):
                make = partial(_changed_resource, name, before, change)
                await self._set(name, make)
        await checkpoint()

    async def _set(self, scope: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        await admin.in_time(lambda: admin.set_configs(self._node, scope, change))

    # -- delete --------------------------------------------------------------------------------------------------------

    async def delete(self, names: Sequence[str], checkpoint: Checkpoint, *, answers_early: bool = False) -> Failures:
        """Delete topics, and return the failures: UnknownTopicError, MetadataError."""
        del answers_early
        failures: Failures = {}
        async with trio.open_nursery() as nursery:
            for name in names:
                if name in self._map.topics:
                    nursery.start_soon(self._delete, name, failures)
                else:
                    failures[name] = unknown_topic(name)
                await checkpoint()
        return failures

    async def _delete(self, name: str, failures: Failures) -> None:
        try:
            await admin.in_time(lambda: admin.delete_topic(self._node, name))
        except RefusedError:
            failures[name] = unknown_topic(name)
        except MetadataError as error:
            failures[name] = error

    async def promote(self, name: str, known_epochs: Mapping[int, int]) -> Topic:
        """Refuse: no topic of a cluster is a mirror."""
        del known_epochs
        raise InvalidTopicError(f"topic {name!r} is not a mirror")

    async def finished(self) -> None:
        """Return at once: changes are in the store, or not."""
        await trio.lowlevel.checkpoint()

    async def until_ready(self, name: str) -> None:
        """Return at once: clients find out from errors whether a partition has a leader yet."""
        del name
        await trio.lowlevel.checkpoint()

    # -- the image -----------------------------------------------------------------------------------------------------

    def _follow(self, image: ClusterImage, delta: ImageDelta) -> None:
        for name, former_id in delta.topics.items():
            state = image.topics.get(name)
            known = self._map.topics.get(name)
            if former_id is not None and _is_deleted(former_id, state) and not self._map.was_deleted(former_id.bytes):
                if known is None:  # it was being created, or deleted when this broker started
                    self._map.note_deleted(former_id.bytes)
                else:
                    self._map.forget(known)
                for deleted in self.on_deleted:
                    deleted(name)
                known = None
            if state is not None and _is_visible(state):
                self._enter(name, state, known)
        self._note_deleted(image, delta.gone)
        if delta.configs:
            self._take_settings(image)

    def _note_deleted(self, image: ClusterImage, gone: Iterable[UUID]) -> None:
        """Remember deleted topics of which data is left, or was until now: there may be offsets of them, too."""
        for topic_id in gone:
            if topic_id not in image.names:  # else it is being deleted, or was created again
                self._map.note_deleted(topic_id.bytes)

    def _enter(self, name: str, state: TopicState, known: Topic | None) -> None:
        topic = Topic(name=name, partitions=state.partitions, configs=dict(state.configs), id=state.id)
        if known is not None and known == topic:
            return
        self._map.enter(topic)
        if known is not None and known.configs != topic.configs:
            self._reconfigure([name])

    def _take_settings(self, image: ClusterImage) -> None:
        """Put the settings of the store into force, for this broker and for its logs."""

        def values(broker: str) -> Mapping[str, str]:
            found = image.configs.get(broker)
            return {} if found is None else found.values

        resources = {name: found.values for name, found in image.configs.items() if ":" in name and found.values}
        overrides = Overrides(cluster=values(BROKER_DEFAULTS), broker=values(str(self._node.id)), resources=resources)
        self._live_settings.take_kept(overrides.kept(self._node.id))
        self._reconfigure(list(self._map.topics))

    def _reconfigure(self, topics: Sequence[str]) -> None:
        """Put settings into force for the logs of topics: for some at once, and for the others soon."""
        steps = self._reconfigured(topics)
        if next(steps, None) is not None:
            self._node.spawn(partial(_finish, steps))

    def _reconfigured(self, topics: Sequence[str]) -> Iterator[int]:
        """Apply the settings that are in force at each step. Yields the number of partitions done so far after each."""
        number = 0
        for name in topics:
            index = 0
            while (topic := self._map.topics.get(name)) is not None and index < topic.partitions:
                partition = self._map.local.get((name, index))
                if partition is not None:
                    partition.reconfigure(self._configs.of(topic.configs))
                index += 1
                number += 1
                if number % LOGS_PER_STEP == 0:
                    yield number


async def _finish(steps: Iterator[int]) -> None:
    for _ in steps:
        await trio.lowlevel.checkpoint()


def _changed_resource(
    name: str, before: Overrides, change: Callable[[Overrides], Overrides], old: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the settings of a resource that `change` makes of its old ones."""
    return change(before.with_resource(name, old)).resources.get(name, {})


def _check_not_shared(changes: Iterable[tuple[str, str]]) -> None:
    """Raise SettingError if a setting that all brokers must agree on is changed for one of them."""
    for name, _ in changes:
        if name in SHARED:
            raise SettingError(f"{name} cannot be set for one broker of a cluster: set it for all, or for a topic")


def _is_deleted(topic_id: UUID, state: TopicState | None) -> bool:
    """Whether the topic that had this id is deleted, or begins to be, given what its name stands for now."""
    return state is None or state.id != topic_id or state.status is TopicStatus.DELETING


def _is_begun(image: ClusterImage, topic: Topic) -> bool:
    """Whether this creation of a topic has begun, and lacks some of its partitions."""
    state = image.topics.get(topic.name)
    return state is not None and state.id == topic.id and state.status is TopicStatus.CREATING


def _is_visible(state: TopicState) -> bool:
    return state.status is TopicStatus.LIVE
