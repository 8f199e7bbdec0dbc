"""DescribeLogDirs: what lies in the data directories, and how much room there is.

Source: kafka.server.ReplicaManager.describeLogDirs.
"""

from collections.abc import Iterable, Mapping

import trio

from broker.api.context import Context
from broker.api.errors import EXPECTED, describe
from broker.api.handler import Handler
from broker.log.data_directories import DataDirectories
from broker.log.data_directory import DataDirectory
from broker.partition import Partition
from broker.partitions import Partitions
from protocol.errors import ErrorCode
from protocol.kafka.admin_values import (
    DescribedLogDir,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogDirPartition,
)


class LogDirsApi:
    """Answers DescribeLogDirs."""

    def __init__(self, partitions: Partitions, directories: DataDirectories) -> None:
        self._partitions = partitions
        self._directories = directories

    def handlers(self) -> Mapping[str, Handler]:
        """By API."""
        return {DescribeLogDirsRequest.api: self.describe}

    async def describe(self, request: DescribeLogDirsRequest, context: Context) -> DescribeLogDirsResponse:
        """Every data directory: those in service with those of its partitions that were asked for."""
        asked = await self._asked(request, context)
        described = [await self._describe(directory, asked, context) for directory in list(self._directories.live)]
        offline = [
            DescribedLogDir(path=path, error=ErrorCode.KAFKA_STORAGE_ERROR, message=f"it is offline: {reason}")
            for path, reason in self._directories.offline.items()
        ]
        return DescribeLogDirsResponse(log_dirs=(*described, *offline))

    async def _describe(
        self, directory: DataDirectory, asked: Iterable[Partition], context: Context
    ) -> DescribedLogDir:
        path = directory.absolute_path
        try:
            space = await trio.to_thread.run_sync(directory.space)
        except EXPECTED as error:
            code, message = describe(error)
            return DescribedLogDir(path=path, error=code, message=message)
        holder = self._directories.holder
        held: list[LogDirPartition] = []
        for partition in asked:
            if holder(partition.topic, partition.index) is directory:
                held.append(_describe_partition(partition))
            await context.checkpoint()
        return DescribedLogDir(
            path=path,
            partitions=tuple(held),
            total_bytes=space.total_bytes,
            usable_bytes=space.usable_bytes,
        )

    async def _asked(self, request: DescribeLogDirsRequest, context: Context) -> Iterable[Partition]:
        """List the partitions asked for, each once; unknown ones are left out."""
        if request.partitions is None:
            return list(self._partitions)
        found: dict[Partition, None] = {}
        for asked in request.partitions:
            partition = self._partitions.get(asked.topic, asked.partition)
            if partition is not None:
                found[partition] = None
            await context.checkpoint()
        return found


def _describe_partition(partition: Partition) -> LogDirPartition:
    return LogDirPartition(topic=partition.topic, partition=partition.index, size=partition.log.size)
