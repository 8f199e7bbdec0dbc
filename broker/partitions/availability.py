"""Track which partitions of the broker can be used: published, led, resigned, or lost with their disk.

Dependents register functions: group and transaction coordinators need partitions that are led here.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

import trio

from warmlog.broker.log.errors import DirectoryFailedError
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.metadata.topic import Topic
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.disks.storage import Storage
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.topics.topic_map import TopicMap
from warmlog.broker.settings.topics import LogConfigs

logger = logging.getLogger(__name__)

PARTITIONS_PER_TURN = 64  # published per turn of the event loop: about 1 ms
OUT_OF_SERVICE = "its data directory is offline"


class Availability:
    """Makes partitions available, and unavailable. Belongs to the event loop."""

    def __init__(
        self, topic_map: TopicMap, storage: Storage, configs: LogConfigs, writer: Writer, metrics: Metrics
    ) -> None:
        self.on_offline: list[Callable[[str, int], None]] = []  # each is called with a lost partition
        self.on_lead: list[
            Callable[[Partition], None]
        ] = []  # each is called with a partition that this broker leads now
        self.on_resign: list[
            Callable[[Partition], None]
        ] = []  # each is called with a partition that it no longer leads, unless it is offline
        self._map = topic_map
        self._storage = storage
        self._configs = configs
        self._writer = writer
        self._metrics = metrics

    async def publish(self, topic: Topic, logs: Sequence[PartitionLog]) -> None:
        """Make a new or extended topic available, with all of these logs in one step; other tasks run before it."""
        partitions = []
        for number, log in enumerate(logs, 1):
            self.count_recovery(log)
            partitions.append(Partition(log, self._writer))
            partitions[-1].mirror_of = topic.mirror_of
            if number % PARTITIONS_PER_TURN == 0:
                await trio.lowlevel.cancel_shielded_checkpoint()
        config = self._configs.of(topic.configs)
        for log in logs:
            if log.config is not config and log.config != config:  # the broker's settings have changed
                log.reconfigure(config)
        self._map.publish(topic, partitions)
        for log in logs:
            if self._storage.directories.is_offline(log.topic, log.partition):  # its disk failed while it was opened
                self._lose(self._map.local[log.topic, log.partition], OUT_OF_SERVICE)
        for partition in partitions:
            partition.appends.flushes.flush_recovered()
            led = self._map.partitions.get((partition.topic, partition.index))
            if led is partition:  # in a cluster, the image decides who leads it
                self._report_led(partition)

    def lead(self, partition: Partition) -> None:
        """Make a partition, which this broker leads from now on, visible to clients."""
        self._map.lead(partition)
        self._report_led(partition)

    def _report_led(self, partition: Partition) -> None:
        for led in self.on_lead:
            led(partition)

    def resign(self, partition: Partition) -> None:
        """Hide a partition from clients, because this broker no longer leads it."""
        if self._map.resign(partition):
            for resigned in self.on_resign:
                resigned(partition)

    def take_offline(self, path: str, reason: str) -> None:
        """Take a data directory offline, with its partitions.

        Raises DirectoryFailedError if the broker cannot run without it.
        """
        directories = self._storage.directories
        failed = next((directory for directory in directories.live if directory.path == path), None)
        if failed is None:
            return
        if failed is directories.first:
            raise DirectoryFailedError(path, f"{reason}; it has the metadata, without which nothing can be served")
        directories.take_offline(failed, reason)
        lost = [partition for partition in self._map if directories.holder(partition.topic, partition.index) is failed]
        logger.error("data directory %s is offline until the next startup: %s", path, reason)
        for partition in lost:
            self._lose(partition, f"data directory {path}: {reason}")

    def _lose(self, partition: Partition, reason: str) -> None:
        """Mark a partition offline, and close its log in the background."""
        self._map.local.pop((partition.topic, partition.index), None)
        self._map.resign(partition)
        self._map.offline[partition.topic, partition.index] = reason
        partition.log.fail(reason)
        partition.wake_all()
        for lost in self.on_offline:
            lost(partition.topic, partition.index)
        self._writer.spawn(partial(_abandon, partition))

    def count_recovery(self, log: PartitionLog) -> None:
        """Count and log the repairs of a log's recovery, if it was recovered."""
        report = log.recovery
        if report is None:
            return
        self._metrics.truncated_bytes.add(report.truncated_bytes)
        if report.lost_records:
            logger.warning(
                "%s-%d: records that were not flushed may be lost; look for them in a replica or a backup, the receipt"
                " (warmlog log receipts) has the details: %s",
                log.topic,
                log.partition,
                report.summary(),
            )
        else:
            level = logging.INFO if report.repairs else logging.DEBUG  # of possibly thousands; the receipt lists all
            logger.log(level, "%s-%d: recovered: %s", log.topic, log.partition, report.summary())


async def _abandon(partition: Partition) -> None:
    """Close a log whose disk has failed, once no task uses it."""
    await partition.retire()
    try:
        await trio.to_thread.run_sync(partial(partition.log.close, clean=False))
    except OSError as error:
        logger.debug("%s-%d: %s", partition.topic, partition.index, error)
