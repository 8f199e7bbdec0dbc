"""Create and delete the logs of single replicas, as a cluster assigns them to this broker.

Concurrent creations and deletions are combined: each data directory is synced once for all of them.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import trio

from warmlog.broker.log.errors import NotReadyError, OfflineError
from warmlog.broker.log.io.directory_names import partition_directory
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.metadata.topic import Topic
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.disks.storage import NewLog, Storage
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.topics.partition_directories import PartitionDirectories
from warmlog.broker.partitions.topics.topic_map import TopicMap
from warmlog.broker.settings.topics import LogConfigs
from warmlog.protocol.partitions import TopicPartition

T = TypeVar("T")


class _Wish(Generic[T]):
    """A caller's request, and its outcome."""

    __slots__ = ("done", "error", "made", "what")

    def __init__(self, what: T) -> None:
        self.what = what
        self.done = trio.Event()
        self.made: Partition | None = None
        self.error: Exception | None = None


class _Together(Generic[T]):
    """Collects requests while earlier ones are carried out, and carries them out together."""

    def __init__(self, fulfill: Callable[[Sequence[_Wish[T]]], Awaitable[None]], writer: Writer) -> None:
        self._fulfill = fulfill
        self._writer = writer
        self._waiting: list[_Wish[T]] = []
        self._is_running = False

    async def wish(self, what: T) -> _Wish[T]:
        """Return a request once it is carried out. Raises its error."""
        wish = _Wish(what)
        self._waiting.append(wish)
        if not self._is_running:
            self._is_running = True
            self._writer.spawn(self._run)
        await wish.done.wait()
        if wish.error is not None:
            raise wish.error
        return wish

    async def _run(self) -> None:
        try:
            await trio.lowlevel.checkpoint()  # combines requests of the same turn
            while self._waiting:
                wishes, self._waiting = self._waiting, []
                try:
                    await self._fulfill(wishes)
                except Exception as error:  # noqa: BLE001  # each caller raises it
                    for wish in wishes:
                        wish.error = wish.error or error
                for wish in wishes:
                    wish.done.set()
        finally:
            self._is_running = False


class ReplicaLogs:
    """The logs of replicas. Belongs to the event loop."""

    def __init__(
        self,
        topics: TopicMap,
        storage: Storage,
        configs: LogConfigs,
        directories: PartitionDirectories,
        writer: Writer,
        *,
        find_topic: Callable[[str], Topic | None],
        opened: Callable[[PartitionLog], None],
    ) -> None:
        """`find_topic` returns a topic, visible yet or not; `opened` is called with each new log."""
        self._map = topics
        self._storage = storage
        self._configs = configs
        self._directories = directories
        self._writer = writer
        self._find_topic = find_topic
        self._opened = opened
        self._making = _Together(self._make_all, writer)
        self._dropping = _Together(self._drop_all, writer)

    async def make(self, topic: str, index: int) -> Partition:
        """Create or open the log of a replica. Raises OSError, LogError."""
        made = (await self._making.wish((topic, index))).made
        assert made is not None
        return made

    async def drop(self, partition: Partition) -> None:
        """Remove the log of a replica that this broker does not lead; its files are deleted later. Raises OSError."""
        await self._dropping.wish(partition)

    # -- creating ------------------------------------------------------------------------------------------------------

    async def _make_all(self, wishes: Sequence[_Wish[TopicPartition]]) -> None:
        new: list[NewLog] = []
        for wish in wishes:
            name, index = wish.what
            topic = self._find_topic(name)
            if topic is None:
                wish.error = NotReadyError(f"topic {name!r} no longer exists")
                continue
            self._leave_offline(name, index)
            new.append(NewLog(topic, index, self._configs.of(topic.configs)))
        made = await self._directories.make(new)
        for wish in wishes:
            log = made.logs.get(wish.what)
            if log is not None:
                await self._publish(wish, log)
            else:
                wish.error = wish.error or made.failures.get(wish.what)

    def _leave_offline(self, topic: str, index: int) -> None:
        """Drop the placement of an earlier replica of this name, if its data directory is offline."""
        self._map.offline.pop((topic, index), None)
        directories = self._storage.directories
        if directories.holder(topic, index) is not None and directories.is_offline(topic, index):
            directories.release(topic, index)

    async def _publish(self, wish: _Wish[TopicPartition], log: PartitionLog) -> None:
        if self._storage.directories.is_offline(*wish.what):  # its disk failed while it was opened
            await trio.to_thread.run_sync(lambda: log.close(clean=False))
            wish.error = OfflineError(f"{log.topic}-{log.partition}: its data directory is offline")
            return
        self._opened(log)
        topic = self._find_topic(log.topic)
        if topic is not None and log.config != (config := self._configs.of(topic.configs)):  # settings have changed
            log.reconfigure(config)
        wish.made = self._map.local[wish.what] = Partition(log, self._writer)
        wish.made.appends.flushes.flush_recovered()

    # -- deleting ------------------------------------------------------------------------------------------------------

    async def _drop_all(self, wishes: Sequence[_Wish[Partition]]) -> None:
        topics: dict[str, Topic] = {}
        doomed = [wish.what for wish in wishes]
        for partition in doomed:
            name, key = partition.topic, (partition.topic, partition.index)
            if self._map.local.get(key) is partition:
                del self._map.local[key]
            topics[name] = self._map.topics.get(name) or Topic(name=name, partitions=1)  # deleted ones have defaults
        async with trio.open_nursery() as retiring:
            for partition in doomed:
                retiring.start_soon(partition.retire)
        left = await self._directories.move_away(doomed, topics, trio.lowlevel.checkpoint)
        for wish in wishes:
            name, index = wish.what.topic, wish.what.index
            if name in left and await self._is_left(name, index):
                wish.error = OSError(f"cannot remove {wish.what.log.directory}")
            elif not self._storage.directories.is_offline(name, index):
                self._storage.directories.forget(name, index)

    async def _is_left(self, topic: str, index: int) -> bool:
        """Return whether the directory of a dropped replica still has its name, if its disk can be read."""
        directories = self._storage.directories
        holder = directories.holder(topic, index)
        if holder is None or directories.is_offline(topic, index):
            return False
        return await trio.to_thread.run_sync(holder.has, partition_directory(topic, index))
