"""Change topics and settings: changes go to the store, and take effect when they come back in the image.

create, alter, delete   validate | commit | wait until this broker's image has it (`Executor`)
the image               topics into the map, settings into force
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias
from uuid import UUID

import trio

from warmlog.broker.cluster import admin
from warmlog.broker.cluster.image import BROKER_DEFAULTS, ClusterImage, ImageDelta
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.cluster.values import TopicState, TopicStatus
from warmlog.broker.metadata.topic import (
    InvalidPartitionsError,
    RefusedError,
    Topic,
    check_collision,
    check_name,
    check_partitions,
    mirrored_error,
)
from warmlog.broker.partitions.topics.errors import TopicExistsError, unknown_topic
from warmlog.broker.partitions.topics.executor import Assignment, Executor, Placement
from warmlog.broker.partitions.topics.partition_directories import Checkpoint, Failures
from warmlog.broker.partitions.topics.topic_map import TopicMap
from warmlog.broker.settings.live import LiveSettings, Overrides
from warmlog.broker.settings.topics import LogConfigs, check_topic_configs

LOGS_PER_STEP = 200  # partitions reconfigured in one step: a millisecond

Change: TypeAlias = Callable[[Mapping[str, str]], Mapping[str, str]]  # maps old settings to new ones


class Topics:
    """Changes topics and settings, and follows their changes. Belongs to the event loop."""

    def __init__(
        self, node: StoreNode, topics: TopicMap, settings: LiveSettings, configs: LogConfigs, executor: Executor
    ) -> None:
        self.on_deleted: list[Callable[[str], None]] = []  # each is called with the name of a deleted topic
        self._node = node
        self._map = topics
        self._live_settings = settings
        self._configs = configs
        self._executor = executor
        node.on_change.append(self._follow)
        self._note_deleted(node.image, node.image.gone)

    # -- create --------------------------------------------------------------------------------------------------------

    def plan(
        self,
        name: str,
        partitions: int,
        configs: Mapping[str, str],
        *,
        replication_factor: int = -1,
        assignment: Assignment | None = None,
    ) -> Topic:
        """Return the topic that `create` would create, after all checks. Uses only memory.

        A replication factor of -1 means `default.replication.factor`. A standalone broker has the only replica,
        regardless of the request.

        Raises TopicExistsError, InvalidTopicError, InvalidPartitionsError, SettingError, NoSpaceError, and RefusedError
        for impossible replicas.
        """
        check_name(name)
        if name in self._map.topics or self._executor.is_taken(name):
            raise TopicExistsError(f"topic {name!r} already exists")
        check_collision(name, self._map.colliding(name))
        checked = check_topic_configs(configs, self._live_settings.current)
        if assignment is None:
            check_partitions(partitions)
        placed = self._executor.place(Placement(name, partitions, replication_factor, assignment))
        count = partitions if placed is None else len(placed)
        check_partitions(count)
        replicas = None if placed is None else tuple([tuple(each) for each in placed])
        return Topic(name=name, partitions=count, configs=checked, assignment=replicas)

    async def create(self, topics: Sequence[Topic], *, answer_after_s: float = math.inf) -> Failures:
        """Create planned topics of distinct names, and return the failures.

        The other topics are durable. A failure is one that `plan` raises, a MetadataError, or on a standalone broker
        the LogError or OSError of a directory that could not be created. A standalone broker serves the topics on
        return, except those whose directories were not created within `answer_after_s` (they stay in `TopicMap.pending`
        until they are created).
        """
        return await self._executor.create(topics, answer_after_s)

    # -- alter ---------------------------------------------------------------------------------------------------------

    async def alter(
        self,
        name: str,
        change: Change | None = None,
        partitions: int | None = None,
        *,
        validate_only: bool = False,
        for_mirror: bool = False,
        assignment: Assignment | None = None,
    ) -> Topic:
        """Change a topic's settings, and increase its partition count. `change` maps old settings to new ones.

        Everything is validated before anything is changed.

        Raises UnknownTopicError, MirroredTopicError, InvalidPartitionsError, SettingError, MetadataError, OSError,
        LogError, RefusedError for impossible replicas, and what `change` raises.
        """
        async with self._executor.changing(name):
            topic, settings = self._known(name), self._live_settings.current
            if topic.mirror_of is not None and not for_mirror:
                raise mirrored_error(name, topic.mirror_of)
            configs = topic.configs if change is None else check_topic_configs(change(topic.configs), settings)
            count = grown(topic, partitions)
            added = self._executor.place_more(topic, count, assignment) if count != topic.partitions else ()
            if validate_only:
                return topic
            try:
                if change is not None and configs != topic.configs:
                    await self._set_configs(name, lambda old: check_topic_configs(change(old), settings))
                if count != topic.partitions:
                    await self._executor.grow(topic, count, added)
            except RefusedError as error:  # another broker was faster
                raise InvalidPartitionsError(str(error)) if name in self._map.topics else unknown_topic(name) from None
            return self._map.topics.get(name, topic)

    async def _set_configs(self, name: str, change: Change) -> None:
        await admin.in_time(lambda: admin.set_topic_configs(self._node, name, change))

    def _known(self, name: str) -> Topic:
        topic = self._map.topics.get(name)
        if topic is None:
            raise unknown_topic(name)
        return topic

    async def promote(self, name: str, known_epochs: Mapping[int, int]) -> Topic:
        """Make a mirrored topic writable at the end of its logs. Copying must have stopped.

        A new leader epoch begins in each log, above the source's known epochs by partition. Open transactions are
        aborted, as their coordinator is at the source. Raises UnknownTopicError, MetadataError, OSError;
        InvalidTopicError if the topic is not mirrored or is offline.
        """
        async with self._executor.changing(name):
            await self._executor.promote(self._known(name), known_epochs)
            return self._known(name)

    async def alter_broker(
        self, change: Callable[[Overrides], Overrides], checkpoint: Checkpoint, *, validate_only: bool = False
    ) -> None:
        """Change and store settings of this broker, or of all. `change` maps old overrides to new ones.

        Raises SettingError, MetadataError, and what `change` raises. Settings that the brokers of a cluster must agree
        on cannot be changed for one of them (KIP-966).
        """
        live = self._live_settings
        overrides = change(live.overrides)
        live.combined(overrides)
        self._executor.check_settings(dict(set(overrides.broker.items()) - set(live.overrides.broker.items())))
        if validate_only:
            return
        before = live.overrides
        if overrides.cluster != before.cluster:
            await self._set(BROKER_DEFAULTS, lambda old: change(replace(before, cluster=old)).cluster)
        if overrides.broker != before.broker:
            await self._set(str(self._node.id), lambda old: change(replace(before, broker=old)).broker)
        for name in overrides.resources.keys() | before.resources.keys():
            if overrides.resources.get(name) != before.resources.get(name):
                await self._set(name, partial(_changed_resource, name, before, change))
        await checkpoint()

    async def _set(self, scope: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        await admin.in_time(lambda: admin.set_configs(self._node, scope, change))

    # -- delete --------------------------------------------------------------------------------------------------------

    async def delete(
        self,
        names: Sequence[str],
        checkpoint: Checkpoint,
        *,
        answers_early: bool = False,
        ids: Mapping[str, bytes] | None = None,
    ) -> Failures:
        """Delete topics, and return the failures: UnknownTopicError, MetadataError.

        The topics become unavailable immediately; their files are removed after `file.delete.delay.ms`.
        `answers_early`: return before their directories are renamed. `ids`: of topics that were requested by id; a
        topic that has another one by now stays, as does one that is created while its predecessor is deleted.
        """
        failures: Failures = {}
        existing: dict[str, UUID] = {}
        wanted = ids or {}
        for name in names:
            topic = self._map.topics.get(name)
            if topic is not None and topic.id.bytes == wanted.get(name, topic.id.bytes):
                existing[name] = topic.id
            else:
                failures[name] = unknown_topic(name)
            await checkpoint()
        if existing:
            failures |= await self._executor.delete(existing, answers_early)
        return failures

    # -- startup and shutdown ------------------------------------------------------------------------------------------

    @property
    def before_forgetting(self) -> list[Callable[[], Awaitable[None]]]:
        """Functions that are awaited before a deletion is completed."""
        return self._executor.before_forgetting

    async def finish_interrupted(self) -> None:
        """Finish deletions that were interrupted when the process ended. Raises MetadataError, OSError."""
        await self._executor.finish_interrupted()

    async def finished(self) -> None:
        """Wait until no change is in progress."""
        await self._executor.finished()

    async def until_ready(self, name: str) -> None:
        """Wait until the partitions of a topic that is being created exist."""
        event = self._map.pending.get(name)
        if event is not None:
            await event.wait()

    # -- the image -----------------------------------------------------------------------------------------------------

    def _follow(self, image: ClusterImage, delta: ImageDelta) -> None:
        for name, former_id in delta.topics.items():
            state = image.topics.get(name)
            known = self._map.topics.get(name)
            if former_id is not None and _is_deleted(former_id, state) and not self._map.was_deleted(former_id.bytes):
                if known is None:  # it was being created, or was deleted when this broker started
                    self._map.note_deleted(former_id.bytes)
                else:
                    self._executor.deleted(known)
                for deleted in self.on_deleted:
                    deleted(name)
                known = None
            if state is not None and state.is_live:
                self._enter(name, state, known)
        self._note_deleted(image, delta.gone)
        if delta.configs:
            self.take_settings()

    def _note_deleted(self, image: ClusterImage, gone: Iterable[UUID]) -> None:
        """Record deleted topics whose data still exists, or did so until now: there may also be committed offsets."""
        for topic_id in gone:
            if topic_id not in image.names:  # otherwise it is being deleted, or was recreated
                self._map.note_deleted(topic_id.bytes)

    def _enter(self, name: str, state: TopicState, known: Topic | None) -> None:
        topic = self._executor.seen(name, state, known)
        if topic is None or topic == known:
            return
        self._map.enter(topic)
        if known is not None and known.configs != topic.configs:
            self._reconfigure([name])

    def take_settings(self) -> None:
        """Apply the settings of the store to this broker and its logs."""
        self._live_settings.take_kept(kept_settings(self._node.image, self._node.id))
        self._reconfigure(list(self._map.topics))

    def _reconfigure(self, topics: Sequence[str]) -> None:
        """Apply settings to the logs of topics: to some immediately, to the others in the background."""
        steps = self._reconfigured(topics)
        if next(steps, None) is not None:
            self._node.spawn(partial(_finish, steps))

    def _reconfigured(self, topics: Sequence[str]) -> Iterator[int]:
        """Apply the current settings step by step; yield the number of partitions done so far after each step."""
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


def kept_settings(image: ClusterImage, broker: int) -> Mapping[str, str]:
    """Return a broker's dynamic settings in the store, in the form of `Overrides.kept`."""

    def values(scope: str) -> Mapping[str, str]:
        config = image.configs.get(scope)
        return {} if config is None else config.values

    resources = {name: resource.values for name, resource in image.configs.items() if ":" in name and resource.values}
    overrides = Overrides(cluster=values(BROKER_DEFAULTS), broker=values(str(broker)), resources=resources)
    return overrides.kept(broker)


def grown(topic: Topic, partitions: int | None) -> int:
    """Return the new partition count. Raises InvalidPartitionsError unless it is larger."""
    if partitions is None:
        return topic.partitions
    if partitions <= topic.partitions:
        raise InvalidPartitionsError(
            f"topic {topic.name!r} has {topic.partitions} partitions; the number can only grow, not be {partitions}"
        )
    check_partitions(partitions)
    return partitions


async def _finish(steps: Iterator[int]) -> None:
    for _ in steps:
        await trio.lowlevel.checkpoint()


def _changed_resource(
    name: str, before: Overrides, change: Callable[[Overrides], Overrides], old: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the result of `change` for the settings of a resource."""
    return change(before.with_resource(name, old)).resources.get(name, {})


def _is_deleted(topic_id: UUID, state: TopicState | None) -> bool:
    """Return whether the topic with this id is (being) deleted, given the topic that has its name now."""
    return state is None or state.id != topic_id or state.status is TopicStatus.DELETING
