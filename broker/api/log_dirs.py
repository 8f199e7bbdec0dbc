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

    async def describe(self, request: DescribeLogDirsRequest, _: Context) -> DescribeLogDirsResponse:
        """Every data directory: those in service with those of its partitions that were asked for."""
        asked = self._asked(request)
        described = [await self._describe(directory, asked) for directory in list(self._directories.live)]
        offline = [
            DescribedLogDir(path=path, error=ErrorCode.KAFKA_STORAGE_ERROR, message=f"it is offline: {reason}")
            for path, reason in self._directories.offline.items()
        ]
        return DescribeLogDirsResponse(log_dirs=(*described, *offline))

    async def _describe(self, directory: DataDirectory, asked: Iterable[Partition]) -> DescribedLogDir:
        path = directory.absolute_path
        try:
            space = await trio.to_thread.run_sync(directory.space)
        except EXPECTED as error:
            code, message = describe(error)
            return DescribedLogDir(path=path, error=code, message=message)
        holder = self._directories.holder
        held = [partition for partition in asked if holder(partition.topic, partition.index) is directory]
        return DescribedLogDir(
            path=path,
            partitions=tuple(map(_describe_partition, held)),
            total_bytes=space.total_bytes,
            usable_bytes=space.usable_bytes,
        )

    def _asked(self, request: DescribeLogDirsRequest) -> list[Partition]:
        """The partitions asked for, each once; what is not here is left out."""
        if request.partitions is None:
            return list(self._partitions)
        found = [self._partitions.get(asked.topic, asked.partition) for asked in dict.fromkeys(request.partitions)]
        return [partition for partition in found if partition is not None]


def _describe_partition(partition: Partition) -> LogDirPartition:
    return LogDirPartition(topic=partition.topic, partition=partition.index, size=partition.log.size)
