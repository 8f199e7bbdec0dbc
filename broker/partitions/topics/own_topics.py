"""Carry out changes of topics on a standalone broker, many at a time, including those of their logs.

    create   commit to the store, in one write | create the directories in workers | publish
    delete   mark in the store, in one write | unpublish | rename the directories in workers | remove the mark

Invariants:
1. The store comes first: a topic is in it before its directories are created, and marked as deleted before they are
   renamed. Startup completes a change that a crash interrupted.
2. One change per name at a time, including names that collide: a topic cannot be created while its old data is being
   renamed. Changes of different topics do not wait for each other's disks.
3. A change that has begun is completed, even if its client has disconnected. Large requests may be answered before all
   directories are created or renamed, as in Kafka: once a change is in the store, it will be completed.
"""

import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from uuid import UUID

import trio

from warmlog.broker.cluster import admin
from warmlog.broker.cluster.local.lone_node import LoneNode
from warmlog.broker.cluster.values import TopicState, TopicStatus
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.metadata.topic import InvalidTopicError, Topic, check_collision, folded, uses_reserve
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.disks.storage import NewLog, Storage
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.topics.errors import TopicExistsError, unknown_topic
from warmlog.broker.partitions.topics.executor import Assignment, Executor, Placement
from warmlog.broker.partitions.topics.name_locks import NameLocks
from warmlog.broker.partitions.topics.partition_directories import Failures, PartitionDirectories
from warmlog.broker.partitions.topics.promotion import lead
from warmlog.broker.partitions.topics.topic_map import TopicMap
from warmlog.broker.settings.topics import LogConfigs

logger = logging.getLogger(__name__)

PARTITIONS_PER_BATCH = 512  # created, fsynced and published together


class _Request:
    """A request to create or delete topics, and its failures so far."""

    def __init__(self) -> None:
        self.failures: Failures = {}
        self.defect: Exception | None = None
        self.answered = trio.Event()


class OwnTopics(Executor):
    """Carries out changes on a standalone broker."""

    def __init__(
        self,
        node: LoneNode,
        topics: TopicMap,
        storage: Storage,
        *,
        configs: LogConfigs,
        directories: PartitionDirectories,
        writer: Writer,
        publish: Callable[[Topic, Sequence[PartitionLog]], Awaitable[None]],
    ) -> None:
        """`publish` makes a topic available with these logs."""
        super().__init__()
        self._node = node
        self._map = topics
        self._storage = storage
        self._configs = configs
        self._directories = directories
        self._writer = writer
        self._publish = publish
        self._names = NameLocks()
        self._taken_out: dict[str, tuple[list[Partition], bool]] = {}  # names of topics being deleted
        self._unforgotten: dict[str, bool] = {}  # deleted topics still in the store, and whether data is left

    def place(self, wanted: Placement, /) -> None:
        """Check that there is space; this broker has the only replica. Raises NoSpaceError."""
        if not uses_reserve(wanted.topic):
            self._storage.directories.check_space()

    def seen(self, _: str, state: TopicState, known: Topic | None, /) -> Topic | None:
        """Return the topic with its settings; partitions and new topics are published with their logs."""
        return None if known is None else replace(known, configs=dict(state.configs), mirror=state.mirror)

    def deleted(self, topic: Topic) -> None:
        """Remove a topic and its partitions from the map."""
        self._taken_out[topic.name] = self._map.take_out(topic)

    def changing(self, name: str, /) -> AbstractAsyncContextManager[None]:
        """Wait until no other change of this name, or of a colliding one, is in progress."""
        return self._changing([name])

    @asynccontextmanager
    async def _changing(self, names: Iterable[str]) -> AsyncIterator[None]:
        async with self._names.hold(map(folded, names)):
            with trio.CancelScope(shield=True):
                yield

    async def _answer(self, names: Iterable[str], work: Callable[[_Request], Awaitable[None]]) -> Failures:
        """Change topics in a separate task; return the failures once `work` has answered or ended."""
        request = _Request()
        self._writer.spawn(partial(self._work, names, work, request))
        await request.answered.wait()
        if request.defect is not None:
            raise request.defect
        return request.failures

    async def _work(self, names: Iterable[str], work: Callable[[_Request], Awaitable[None]], request: _Request) -> None:
        try:
            async with self._changing(names):
                await work(request)
        except Exception as error:
            request.defect = error
            if request.answered.is_set():
                logger.exception("a change of topics failed after its response was sent")
        finally:
            request.answered.set()

    # -- create --------------------------------------------------------------------------------------------------------

    async def create(self, topics: Sequence[Topic], answer_after_s: float, /) -> Failures:
        """Create planned topics; see `Topics.create`."""
        names = [topic.name for topic in topics]
        return await self._answer(names, partial(self._store_and_make, topics, answer_after_s))

    async def _store_and_make(self, topics: Sequence[Topic], answer_after_s: float, request: _Request) -> None:
        """Create topics. `answer_after_s` counts from the commit to the store."""
        wanted = self._without_taken(topics, request.failures)
        await self._forget_deleted([topic.name for topic in wanted])
        try:
            for topic in wanted:
                await self._directories.forget_stale(topic.name, range(topic.partitions))
        except OSError as error:
            request.failures |= dict.fromkeys([topic.name for topic in wanted], error)
            return
        failures = await admin.create_local(self._node, {topic.name: _state_of(topic) for topic in wanted})
        request.failures |= failures
        image = self._node.image  # the stored and the published topic share names, ids and settings
        wanted = [image.topics[topic.name].named(topic.name) for topic in wanted if topic.name not in failures]
        if not wanted:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._answer_early, wanted, answer_after_s, request)
            for batch in _batches(wanted):
                await self._make_topics(batch, request)
            nursery.cancel_scope.cancel()

    async def _answer_early(self, topics: Iterable[Topic], after_s: float, request: _Request) -> None:
        """Answer after a time, and announce topics that are not created yet."""
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

    def _check_free(self, name: str) -> None:
        if name in self._map.topics:
            raise TopicExistsError(f"topic {name!r} already exists")
        check_collision(name, self._map.colliding(name))

    def _without_taken(self, topics: Iterable[Topic], failures: Failures) -> list[Topic]:
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

    # -- grow and promote ----------------------------------------------------------------------------------------------

    async def grow(self, topic: Topic, count: int, _: Assignment, /) -> None:
        """Add partitions; if their directories cannot be created, leave the topic as it was."""
        grown, config = replace(self._map.topics[topic.name], partitions=count), self._configs.of(topic.configs)
        await self._directories.forget_stale(topic.name, range(topic.partitions, count))
        await admin.in_time(lambda: admin.grow_local(self._node, topic.name, count))
        made = await self._directories.make_topics(
            [NewLog(grown, index, config) for index in range(topic.partitions, count)]
        )
        if made.failures:
            await admin.in_time(lambda: admin.grow_local(self._node, topic.name, topic.partitions))
            raise made.failures[topic.name]
        await self._publish(grown, made.logs[topic.name])

    async def promote(self, topic: Topic, known_epochs: Mapping[int, int], /) -> None:
        """Make a mirrored topic writable; see `Topics.promote`."""
        if topic.mirror is None or topic.mirror.is_promoted:
            raise InvalidTopicError(f"topic {topic.name!r} is not a mirror" + (" any more" if topic.mirror else ""))
        partitions = self._map.partitions_of(topic)
        if len(partitions) != topic.partitions:
            raise InvalidTopicError(
                f"topic {topic.name!r} has partitions that are offline: promote it when all are served"
            )
        ends = tuple([partition.log.offsets.log_end_offset for partition in partitions])
        mirror = replace(topic.mirror, promoted_at=ends)
        await admin.in_time(lambda: admin.set_mirror(self._node, topic.name, mirror))
        await lead(partitions, known_epochs)

    # -- delete --------------------------------------------------------------------------------------------------------

    async def delete(self, topics: Mapping[str, UUID], answers_early: bool, /) -> Failures:
        """Delete topics; see `Topics.delete`."""
        return await self._answer(topics, partial(self._delete, topics, answers_early))

    async def _delete(self, wanted: Mapping[str, UUID], answers_early: bool, request: _Request) -> None:
        known = {name: self._map.topics.get(name) for name in wanted}
        topics = {name: topic for name, topic in known.items() if topic is not None and topic.id == wanted[name]}
        request.failures |= {name: unknown_topic(name) for name in wanted if name not in topics}
        failures = await admin.begin_local_deletion(self._node, topics)
        request.failures |= failures
        doomed: list[Partition] = []
        left: set[str] = set()  # topics with data that remains in place
        for name in [name for name in topics if name not in failures]:
            partitions, is_offline = self._taken_out.pop(name)
            doomed += partitions
            left |= {name} if is_offline else set()
            await trio.lowlevel.checkpoint()
        if answers_early:
            request.answered.set()
        await self._remove([topic for name, topic in topics.items() if name not in failures], doomed, left)

    async def _remove(self, topics: Sequence[Topic], doomed: list[Partition], left: set[str]) -> None:
        """Rename the directories of deleted topics, and remove the topics from the store."""
        checkpoint = trio.lowlevel.checkpoint
        for partition in doomed:
            await partition.retire()
            await checkpoint()
        left |= await self._directories.move_away(doomed, {topic.name: topic for topic in topics}, checkpoint)
        while doomed:
            doomed.pop()  # frees many objects
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
        leaving = set(names).intersection(left)
        failures = await admin.finish_local_deletion(self._node, names, leaving)
        for name in names:
            self._unforgotten.pop(name, None)
        if failures:
            self._unforgotten |= {name: name in leaving for name in failures}
            reason = next(iter(failures.values()))
            logger.warning(
                "cannot remove deleted topics from the metadata; retrying at startup, or with a new topic: %s: %s",
                ", ".join(failures),
                reason,
            )

    async def finish_interrupted(self) -> None:
        """Remove the data of topics whose deletion was interrupted. Raises MetadataError, OSError."""
        topics = self._node.image.topics
        deleting = [state.named(name) for name, state in topics.items() if state.status is TopicStatus.DELETING]
        if not deleting:
            return
        left = await trio.to_thread.run_sync(self._storage.remove_topics, deleting)
        failures = await admin.finish_local_deletion(self._node, [topic.name for topic in deleting], left)
        for error in failures.values():
            raise error
        for topic in deleting:
            self._map.note_deleted(topic.id.bytes)

    async def finished(self) -> None:
        """Wait until no change is in progress."""
        await self._names.all_released()


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


def _state_of(topic: Topic) -> TopicState:
    return TopicState(id=topic.id, partitions=topic.partitions, configs=topic.configs, mirror=topic.mirror)
