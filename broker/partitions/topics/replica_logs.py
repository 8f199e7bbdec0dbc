"""Create and delete the logs of single replicas, as a cluster assigns them to this broker.

Replicas that are wanted at the same time are created together: each data directory is synced once for all of them.
"""

from collections.abc import Callable, Sequence

import trio

from broker.log.errors import NotReadyError, OfflineError
from broker.log.partition_log import PartitionLog
from broker.metadata.topic import Topic
from broker.partitions.appends.writer import Writer
from broker.partitions.disks.storage import NewLog, Storage
from broker.partitions.partition import Partition
from broker.partitions.topics.partition_directories import PartitionDirectories
from broker.partitions.topics.topic_map import TopicMap
from broker.settings.topics import LogConfigs


class _Wanted:
    """A replica to create, and the outcome."""

    __slots__ = ("done", "error", "index", "partition", "topic")

    def __init__(self, topic: str, index: int) -> None:
        self.topic = topic
        self.index = index
        self.done = trio.Event()
        self.partition: Partition | None = None
        self.error: Exception | None = None


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
        described: Callable[[str], Topic | None],
        opened: Callable[[PartitionLog], None],
    ) -> None:
        """`described` returns a topic, visible yet or not; `opened` is called with each new log."""
        self._map = topics
        self._storage = storage
        self._configs = configs
        self._directories = directories
        self._writer = writer
        self._described = described
        self._opened = opened
        self._wanted: list[_Wanted] = []
        self._is_making = False

    async def make(self, topic: str, index: int) -> Partition:
        """Create the log of a replica, or open what is there of it. Raises OSError, LogError."""
        wanted = _Wanted(topic, index)
        self._wanted.append(wanted)
        if not self._is_making:
            self._is_making = True
            self._writer.spawn(self._make_wanted)
        await wanted.done.wait()
        if wanted.error is not None:
            raise wanted.error
        assert wanted.partition is not None
        return wanted.partition

    async def _make_wanted(self) -> None:
        try:
            await trio.lowlevel.checkpoint()  # others of the same turn are created together with the first
            while self._wanted:
                batch, self._wanted = self._wanted, []
                try:
                    await self._make_all(batch)
                except Exception as error:  # noqa: BLE001  # each caller raises it
                    for one in batch:
                        one.error = one.error or error
                for one in batch:
                    one.done.set()
        finally:
            self._is_making = False

    async def _make_all(self, batch: Sequence[_Wanted]) -> None:
        new: list[NewLog] = []
        for one in batch:
            topic = self._described(one.topic)
            if topic is None:
                one.error = NotReadyError(f"topic {one.topic!r} does not exist any more")
                continue
            self._leave_offline(one.topic, one.index)
            new.append(NewLog(topic, one.index, self._configs.of(topic.configs)))
        made = await self._directories.make(new)
        logs = {(log.topic, log.partition): log for each in made.logs.values() for log in each}
        for one in batch:
            log = logs.get((one.topic, one.index))
            if log is not None:
                await self._publish(one, log)
            else:
                one.error = one.error or made.failures.get(one.topic)

    def _leave_offline(self, topic: str, index: int) -> None:
        """Forget the place of an earlier replica of this name, if its data directory is offline."""
        self._map.offline.pop((topic, index), None)
        directories = self._storage.directories
        if directories.holder(topic, index) is not None and directories.is_offline(topic, index):
            directories.release(topic, index)

    async def _publish(self, wanted: _Wanted, log: PartitionLog) -> None:
        key = log.topic, log.partition
        if self._storage.directories.is_offline(*key):  # its disk failed while it was opened
            await trio.to_thread.run_sync(lambda: log.close(clean=False))
            wanted.error = OfflineError(f"{log.topic}-{log.partition}: its data directory is offline")
            return
        self._opened(log)
        topic = self._described(log.topic)
        if topic is not None and log.config != (config := self._configs.of(topic.configs)):  # settings have changed
            log.reconfigure(config)
        wanted.partition = self._map.local[key] = Partition(log, self._writer)
        wanted.partition.appends.flushes.flush_recovered()

    async def drop(self, partition: Partition) -> None:
        """Remove the log of a replica that this broker does not lead; its files are deleted later. Raises OSError."""
        key = partition.topic, partition.index
        if self._map.local.get(key) is partition:
            del self._map.local[key]
        await partition.retire()
        topic = self._map.topics.get(partition.topic) or Topic(name=partition.topic, partitions=partition.index + 1)
        left = await self._directories.move_away([partition], {partition.topic: topic}, trio.lowlevel.checkpoint)
        if not left:
            self._storage.directories.forget(*key)
