"""Creation, configuration and deletion of topics, many at a time.

    create   validate | store in the metadata, in one transaction | create the directories in workers | publish
    delete   mark in the metadata, in one transaction | unpublish | rename the directories in workers | remove the mark

Invariants:
1. Metadata first: a topic is in the store before its directories are created, and marked as deleted before they are
   renamed. Startup completes a change that a crash interrupted.
2. One change per name at a time, including names that collide: a topic cannot be created while its old data is being
   renamed. Changes of different topics do not wait for each other's disks.
3. A change that has begun is completed, even if its client has disconnected. Large requests may be answered before
   all directories are created or renamed, as in Kafka: once the metadata is written, the rest will be done.
"""

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import trio

from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.metadata.store import MetadataError
from warmlog.broker.metadata.topic import (
    InvalidPartitionsError,
    InvalidTopicError,
    Topic,
    check_collision,
    check_name,
    check_partitions,
    folded,
    is_internal,
    mirrored_error,
)
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.disks.storage import NewLog, Storage
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.topics.name_locks import NameLocks
from warmlog.broker.partitions.topics.partition_directories import Checkpoint, Failures, PartitionDirectories
from warmlog.broker.partitions.topics.promotion import lead
from warmlog.broker.partitions.topics.topic_map import TopicMap
from warmlog.broker.settings.live import LiveSettings, Overrides
from warmlog.broker.settings.topics import LogConfigs, check_topic_configs

logger = logging.getLogger(__name__)

PARTITIONS_PER_BATCH = 512  # created, fsynced and published together

Change: TypeAlias = Callable[[Mapping[str, str]], Mapping[str, str]]  # from old settings to new ones


class TopicExistsError(Exception):
    """A topic of this name already exists."""


class UnknownTopicError(Exception):
    """A topic or partition does not exist."""


class _Request:
    """A request to create or delete topics, with its failures until it is answered."""

    def __init__(self) -> None:
        self.failures: Failures = {}
        self.defect: Exception | None = None
        self.answered = trio.Event()


class TopicChanges:
    """Change the topics of a map, and their data and metadata. Belongs to the event loop."""

    def __init__(
        self,
        topics: TopicMap,
        storage: Storage,
        *,
        settings: LiveSettings,
        configs: LogConfigs,
        directories: PartitionDirectories,
        writer: Writer,
        publish: Callable[[Topic, Sequence[PartitionLog]], Awaitable[None]],
    ) -> None:
        """`publish` makes a topic available with these logs."""
        self._map = topics
        self._storage = storage
        self._live_settings = settings
        self._configs = configs
        self._directories = directories
        self._writer = writer
        self._publish = publish
        self._names = NameLocks()
        self._broker_settings = trio.Lock()
        self._unforgotten: dict[str, bool] = {}  # deleted topics still in the store, and whether data of them is left
        self.on_deleted: list[Callable[[str], None]] = []  # each is called with a deleted topic's name
        self.before_forgetting: list[Callable[[], Awaitable[None]]] = []  # awaited before a deletion is forgotten

    @asynccontextmanager
    async def _change(self, names: Iterable[str]) -> AsyncIterator[None]:
        async with self._names.hold(map(folded, names)):
            with trio.CancelScope(shield=True):
                yield

    async def _answer(self, names: Iterable[str], work: Callable[[_Request], Awaitable[None]]) -> Failures:
        """Change topics in a task of its own; return the failures once `work` has answered or is done."""
        request = _Request()
        self._writer.spawn(partial(self._work, names, work, request))
        await request.answered.wait()
        if request.defect is not None:
            raise request.defect
        return request.failures

    async def _work(self, names: Iterable[str], work: Callable[[_Request], Awaitable[None]], request: _Request) -> None:
        try:
            async with self._change(names):
                await work(request)
        except Exception as error:
            request.defect = error
            if request.answered.is_set():
                logger.exception("cannot complete a change of topics that was answered")
        finally:
            request.answered.set()

    def _known(self, name: str) -> Topic:
        topic = self._map.topics.get(name)
        if topic is None:
            raise unknown_topic(name)
        return topic

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

        Whatever replicas are asked for, this broker has the only one.

        Raises TopicExistsError, InvalidTopicError, InvalidPartitionsError, SettingError, NoRoomError.
        """
        del replication_factor, assignment
        check_name(name)
        self._check_free(name)
        checked = check_topic_configs(configs, self._live_settings.current)
        check_partitions(partitions)
        if not is_internal(name):
            self._storage.directories.check_room()
        return Topic(name=name, partitions=partitions, configs=checked)

    def _check_free(self, name: str) -> None:
        if name in self._map.topics:
            raise TopicExistsError(f"topic {name!r} already exists")
        check_collision(name, self._map.colliding(name))

    async def create(self, topics: Sequence[Topic], *, answer_after_s: float = math.inf) -> Failures:
        """Create planned topics of distinct names, and return the failures.

        The other topics are durable, and served: at once, or soon if their directories could not be created within
        `answer_after_s` (until then they are in `TopicMap.pending`). A failure is one that `plan` raises, a
        MetadataError, or the LogError or OSError of a directory that could not be created.
        """
        names = [topic.name for topic in topics]
        return await self._answer(names, partial(self._store_and_make, topics, answer_after_s))

    async def _store_and_make(self, topics: Sequence[Topic], answer_after_s: float, request: _Request) -> None:
        """Create topics. `answer_after_s` is counted from the metadata transaction."""
        wanted = self._free_ones(topics, request.failures)
        names = [topic.name for topic in wanted]
        if not wanted:
            return
        try:
            await self._forget_deleted(names)
            for topic in wanted:
                await self._directories.forget_stale(topic.name, range(topic.partitions))
            await trio.to_thread.run_sync(self._storage.store.create_topics, wanted)
        except (MetadataError, OSError) as error:
            request.failures |= dict.fromkeys(names, error)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._answer_early, wanted, answer_after_s, request)
            for batch in _batches(wanted):
                await self._make_topics(batch, request)
            nursery.cancel_scope.cancel()

    async def _answer_early(self, topics: Iterable[Topic], after_s: float, request: _Request) -> None:
        """Answer when the time is up, and announce the topics that are not created yet."""
        await trio.sleep(after_s)
        for topic in topics:
            if topic.name not in self._map.topics and topic.name not in request.failures:
                self._map.announce(topic)
                await trio.lowlevel.checkpoint()
        request.answered.set()

    async def _make_topics(self, topics: Sequence[Topic], request: _Request) -> None:
        """Create the directories of topics, and publish the topics."""
        new = []
        for topic in topics:
            config = self._configs.of(topic.configs)
            new += [NewLog(topic, index, config) for index in range(topic.partitions)]
        made = await self._directories.make_topics(new)
        for topic in topics:
            if topic.name in made.logs:
                await self._publish(topic, made.logs[topic.name])
                await trio.lowlevel.checkpoint()
        announced = [topic for topic in topics if topic.name in made.failures and topic.name in self._map.pending]
        for topic in announced:
            error = made.failures.pop(topic.name)
            logger.error(
                "topic %s is offline until the next startup, cannot create its directories: %s", topic.name, error
            )
            self._map.lose(topic, f"its directory could not be created: {error}")
        request.failures |= made.failures
        await self._forget(list(made.failures))

    def _free_ones(self, topics: Iterable[Topic], failures: Failures) -> list[Topic]:
        """Return the topics whose names are neither in use nor taken by an earlier one of them."""
        wanted, taken = list[Topic](), dict[str, str]()
        for topic in topics:
            try:
                self._check_free(topic.name)
                check_collision(topic.name, taken.get(folded(topic.name)))
            except (TopicExistsError, InvalidTopicError) as error:
                failures[topic.name] = error
            else:
                wanted.append(topic)
                taken[folded(topic.name)] = topic.name
        return wanted

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

        Everything is validated before anything is changed.

        Raises UnknownTopicError, InvalidPartitionsError, SettingError, MetadataError, OSError, LogError, and what
        `change` raises.
        """
        del assignment  # this broker has the only replica
        async with self._change([name]):
            topic, settings = self._known(name), self._live_settings.current
            if topic.mirror_of is not None and not for_mirror:
                raise mirrored_error(name, topic.mirror_of)
            configs = topic.configs if change is None else check_topic_configs(change(topic.configs), settings)
            count = grown(topic, partitions)
            if validate_only:
                return topic
            if configs != topic.configs:
                await trio.to_thread.run_sync(self._storage.store.set_configs, name, configs)
                topic = self._map.topics[name] = replace(topic, configs=configs)
                self._reconfigure(topic)
            if count != topic.partitions:
                await self._grow(topic, count)
            return self._map.topics[name]

    async def promote(self, name: str, known_epochs: Mapping[int, int]) -> Topic:
        """Make a mirrored topic writable, at the end of its logs. What follows it must have stopped.

        A new leader epoch begins in each, above those that the source is known to have, by partition. Transactions
        that are open are aborted: their coordinator is elsewhere. Raises UnknownTopicError, MetadataError, OSError;
        InvalidTopicError if the topic is not mirrored or is offline.
        """
        async with self._change([name]):
            topic = self._known(name)
            if topic.mirror is None or topic.mirror.is_promoted:
                raise InvalidTopicError(f"topic {name!r} is not a mirror" + (" any more" if topic.mirror else ""))
            partitions = self._map.partitions_of(topic)
            if len(partitions) != topic.partitions:
                raise InvalidTopicError(
                    f"topic {name!r} has partitions that are offline: promote it when all are served"
                )
            ends = tuple([partition.log.log_end_offset for partition in partitions])
            mirror = replace(topic.mirror, promoted_at=ends)
            await trio.to_thread.run_sync(self._storage.store.set_mirror, name, mirror)
            topic = self._map.topics[name] = replace(topic, mirror=mirror)
            await lead(partitions, known_epochs, self._writer)
            return topic

    async def _grow(self, topic: Topic, count: int) -> None:
        """Add partitions; if their directories cannot be created, leave the topic as it was."""
        store, config = self._storage.store, self._configs.of(topic.configs)
        grown = replace(topic, partitions=count)
        await self._directories.forget_stale(topic.name, range(topic.partitions, count))
        await trio.to_thread.run_sync(store.set_partitions, topic.name, count)
        new = [NewLog(grown, index, config) for index in range(topic.partitions, count)]
        made = await self._directories.make_topics(new)
        if made.failures:
            await trio.to_thread.run_sync(store.set_partitions, topic.name, topic.partitions)
            raise made.failures[topic.name]
        await self._publish(grown, made.logs[topic.name])

    async def alter_broker(
        self, change: Callable[[Overrides], Overrides], checkpoint: Checkpoint, *, validate_only: bool = False
    ) -> None:
        """Change settings of the broker, which are the defaults of all topics, and persist them.

        `change` maps old overrides to new ones. Raises SettingError, MetadataError, and what `change` raises.
        """
        async with self._broker_settings:
            with trio.CancelScope(shield=True):
                live = self._live_settings
                overrides = change(live.overrides)
                live.combined(overrides)
                if validate_only:
                    return
                kept = overrides.kept(live.static.node_id)
                await trio.to_thread.run_sync(self._storage.store.set_broker_configs, kept)
                live.take(overrides)
                for name in list(self._map.topics):
                    topic = self._map.topics.get(name)
                    if topic is not None:
                        self._reconfigure(topic)
                    await checkpoint()

    def _reconfigure(self, topic: Topic) -> None:
        config = self._configs.of(topic.configs)
        for partition in self._map.partitions_of(topic):
            partition.reconfigure(config)

    # -- delete --------------------------------------------------------------------------------------------------------

    async def delete(self, names: Sequence[str], checkpoint: Checkpoint, *, answers_early: bool = False) -> Failures:
        """Delete topics, and return the failures: UnknownTopicError, MetadataError.

        The topics are unavailable at once; their files are removed after `file.delete.delay.ms`. `answers_early`:
        return before their directories are renamed.
        """
        failures: Failures = {}
        found: list[str] = []
        for name in names:
            if name in self._map.topics or name in self._map.pending:
                found.append(name)
            else:
                failures[name] = unknown_topic(name)
            await checkpoint()
        if found:
            failures |= await self._answer(found, partial(self._delete, found, answers_early))
        return failures

    async def _delete(self, names: Sequence[str], answers_early: bool, request: _Request) -> None:
        topics = [self._map.topics[name] for name in names if name in self._map.topics]
        request.failures |= {name: unknown_topic(name) for name in names if name not in self._map.topics}
        if not topics:
            return
        try:
            await trio.to_thread.run_sync(self._storage.store.begin_delete, [topic.name for topic in topics])
        except MetadataError as error:
            request.failures |= {topic.name: error for topic in topics}
            return
        doomed: list[Partition] = []
        left: set[str] = set()  # topics with data that remains in place
        for topic in topics:
            partitions, is_offline = self._map.take_out(topic)
            doomed += partitions
            left |= {topic.name} if is_offline else set()
            for deleted in self.on_deleted:
                deleted(topic.name)
            await trio.lowlevel.checkpoint()
        if answers_early:
            request.answered.set()
        await self._remove(topics, doomed, left)

    async def _remove(self, topics: Sequence[Topic], doomed: list[Partition], left: set[str]) -> None:
        """Rename the directories of deleted topics, and forget the topics."""
        checkpoint = trio.lowlevel.checkpoint
        for partition in doomed:
            await partition.retire()
            await checkpoint()
        left |= await self._directories.move_away(doomed, {topic.name: topic for topic in topics}, checkpoint)
        while doomed:
            doomed.pop()  # many objects, which are freed here
            await checkpoint()
        await self._directories.forget(topics, left, checkpoint)
        for done in self.before_forgetting:
            await done()
        await self._forget([topic.name for topic in topics], left)

    async def _forget_deleted(self, names: Iterable[str]) -> None:
        unforgotten = [name for name in names if name in self._unforgotten]
        await self._forget(unforgotten, [name for name in unforgotten if self._unforgotten[name]])

    async def _forget(self, names: Sequence[str], left: Iterable[str] = ()) -> None:
        """Remove deleted topics from the store.

        If that fails (the disk is full), it is retried before the name is used again, or by the next startup.
        """
        if not names:
            return
        leaving = set(names).intersection(left)
        try:
            finish = partial(self._storage.store.finish_delete, names, leaving_data=leaving)
            await trio.to_thread.run_sync(finish)
        except MetadataError as error:
            self._unforgotten |= {name: name in leaving for name in names}
            logger.warning("deleted topics remain in the metadata for now: %s: %s", ", ".join(names), error)
        else:
            for name in names:
                self._unforgotten.pop(name, None)

    async def finished(self) -> None:
        """Wait until no change is in progress."""
        await self._names.all_released()

    async def until_ready(self, name: str) -> None:
        """Wait until the partitions of a topic exist, if they are being created."""
        event = self._map.pending.get(name)
        if event is not None:
            await event.wait()


def _batches(topics: Iterable[Topic]) -> Iterator[list[Topic]]:
    """Split topics into batches with a bounded number of partitions, or one topic."""
    batch: list[Topic] = []
    partitions = 0
    for topic in topics:
        if batch and partitions + topic.partitions > PARTITIONS_PER_BATCH:
            yield batch
            batch, partitions = [], 0
        batch.append(topic)
        partitions += topic.partitions
    if batch:
        yield batch


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


def unknown_topic(name: str) -> UnknownTopicError:
    """Return the error for a topic that does not exist."""
    return UnknownTopicError(f"no topic {name!r}")
