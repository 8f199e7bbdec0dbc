"""Open the logs of a broker when it starts, and close them when it stops."""

import logging
from collections.abc import Sequence
from functools import partial

import trio

from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.log.errors import DataDirectoryError, DirectoryFailedError
from warmlog.broker.metadata.topic import Topic
from warmlog.broker.partitions.availability import OUT_OF_SERVICE, Availability
from warmlog.broker.partitions.disks.checkpoints import Checkpoints
from warmlog.broker.partitions.disks.startup import Start
from warmlog.broker.partitions.disks.storage import Storage
from warmlog.broker.partitions.topics.catalog import Catalog
from warmlog.broker.partitions.topics.topic_map import TopicMap
from warmlog.broker.partitions.topics.topics import Topics
from warmlog.broker.settings.live import LiveSettings
from warmlog.broker.settings.topics import LogConfigs

logger = logging.getLogger(__name__)


class Opening:
    """Opens and closes all logs. Belongs to the event loop; blocking work runs in worker threads."""

    def __init__(
        self,
        topic_map: TopicMap,
        storage: Storage,
        configs: LogConfigs,
        *,
        catalog: Catalog,
        availability: Availability,
        checkpoints: Checkpoints,
        settings: LiveSettings,
        node: StoreNode,
        topics: Topics,
    ) -> None:
        self._map = topic_map
        self._storage = storage
        self._configs = configs
        self._catalog = catalog
        self._availability = availability
        self._checkpoints = checkpoints
        self._settings = settings
        self._node = node
        self._topics = topics
        self._all_open = False

    async def open_all(self) -> None:
        """Open every topic of the image, and finish interrupted deletions.

        After a clean shutdown logs are opened from the checkpoints; otherwise they are recovered, and a receipt is
        written. To stop early, call `progress.cancel` and cancel this. Raises MetadataError, and DataDirectoryError for
        logs that cannot be opened.
        """
        started_ms = self._storage.clock()
        try:
            await trio.to_thread.run_sync(self._storage.directories.unmark_clean)
            await self._topics.finish_interrupted()
            await trio.to_thread.run_sync(self._storage.remove_deleted)
            await self._open_topics(self._held_topics())
            topic_map = self._map
            await trio.to_thread.run_sync(
                self._storage.warn_of_unserved, topic_map.local, topic_map.offline, topic_map.topics.__contains__
            )
            self._all_open = True
            was_unclean = any(partition.log.recovery is not None for partition in self._map)
            if self._storage.directories.forget_unknown() or was_unclean:
                await self._renew_checkpoints()  # before the first append: the old ones may exceed truncated logs
        except OSError as error:
            path = error.filename or self._storage.directories.first.path
            raise DataDirectoryError(f"{path}: {error.strerror}") from error
        finally:
            with trio.CancelScope(shield=True):
                await self._end_opening(started_ms)

    def _held_topics(self) -> list[tuple[Topic, Sequence[int]]]:
        """Return the topics of the image, with the partitions to open here.

        In a cluster these are the replicas with a log here; missing logs are created later.
        """
        image, directories = self._node.image, self._storage.directories
        if self._node.is_alone:
            topics = [state.named(name) for name, state in sorted(image.topics.items()) if state.is_live]
            return [(topic, range(topic.partitions)) for topic in topics]
        held: dict[str, list[int]] = {}
        for key in sorted(image.held.get(self._node.id, ()), key=lambda key: key.partition):
            name = image.names.get(key.topic_id)
            if name is not None and directories.holder(name, key.partition) is not None:
                held.setdefault(name, []).append(key.partition)
        described = [(self._catalog.find_topic(name), indexes) for name, indexes in sorted(held.items())]
        return [(topic, indexes) for topic, indexes in described if topic is not None]

    async def _open_topics(self, held: Sequence[tuple[Topic, Sequence[int]]]) -> None:
        self._storage.progress.begin(sum(len(indexes) for _, indexes in held))
        configured = [(topic, indexes, self._configs.of(topic.configs)) for topic, indexes in held]
        threads = self._settings.current.num_recovery_threads_per_data_dir
        await trio.to_thread.run_sync(partial(self._storage.recover_logs, configured, threads_each=threads))
        for topic, indexes in held:
            await self._open_known(topic, indexes)
        await trio.to_thread.run_sync(self._storage.sync_names)

    async def _renew_checkpoints(self) -> None:
        try:
            await self._checkpoints.write()
        except OSError as error:
            logger.warning(
                "cannot write checkpoints after recovery; the old ones may have offsets past the ends of logs: %s",
                error,
            )

    async def _end_opening(self, started_ms: int) -> None:
        logs = [partition.log for partition in self._map]
        threads = self._settings.current.num_recovery_threads_per_data_dir
        start = Start(started_ms, threads, complete=self._all_open)
        await trio.to_thread.run_sync(self._storage.end_opening, logs, start)

    async def _open_known(self, topic: Topic, held: Sequence[int]) -> None:
        """Open logs of a topic; those that cannot be served are marked offline. Raises OSError, LogError."""
        directories, config = self._storage.directories, self._configs.of(topic.configs)
        while True:
            offline = {index for index in held if directories.is_offline(topic.name, index)}
            indexes = [index for index in held if index not in offline]
            try:
                logs, failures = await trio.to_thread.run_sync(self._storage.open_logs, topic, indexes, config)
            except DirectoryFailedError as error:
                self._availability.take_offline(error.path, error.reason)
                continue
            await self._availability.publish(topic, logs)
            for index, reason in failures.items():
                logger.error("%s-%d is offline until the next startup: %s", topic.name, index, reason)
            lost = directories.lost
            reasons = failures | {index: lost.get((topic.name, index), OUT_OF_SERVICE) for index in offline}
            self._map.offline |= {(topic.name, index): reason for index, reason in reasons.items()}
            return

    async def close_all(self) -> None:
        """Finish queued work, flush and close every log, and write the checkpoints and the clean shutdown marker.

        The marker is not written if a log could not be closed cleanly or a checkpoint could not be written; the next
        startup then recovers. After a failed startup neither is written: those of the previous run stay valid.
        """
        for partition in self._map:
            await partition.retire()
        logs = [partition.log for partition in self._map]
        await trio.to_thread.run_sync(partial(self._storage.close_logs, logs, all_open=self._all_open))
