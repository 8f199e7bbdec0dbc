"""DescribeLogDirs: what lies in the data directory, and how much room there is.

Source: kafka.server.ReplicaManager.describeLogDirs.
"""

from collections.abc import Mapping

import trio

from broker.api.errors import EXPECTED, describe
from broker.api.handler import Handler
from broker.api.session import Session
from broker.log.data_directory import DataDirectory
from broker.partition import Partition
from broker.partitions import Partitions
from protocol.kafka.admin_values import (
    DescribedLogDir,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogDirPartition,
)


class LogDirsApi:
    """Answers DescribeLogDirs."""

    def __init__(self, partitions: Partitions, directory: DataDirectory) -> None:
        self._partitions = partitions
        self._directory = directory

    def handlers(self) -> Mapping[str, Handler]:
        """By API."""
        return {DescribeLogDirsRequest.api: self.describe}

    async def describe(self, request: DescribeLogDirsRequest, _: Session) -> DescribeLogDirsResponse:
        """The data directory with those of its partitions that were asked for."""
        return DescribeLogDirsResponse(log_dirs=(await self._describe(request),))

    async def _describe(self, request: DescribeLogDirsRequest) -> DescribedLogDir:
        path = self._directory.absolute_path
        try:
            space = await trio.to_thread.run_sync(self._directory.space)
        except EXPECTED as error:
            code, message = describe(error)
            return DescribedLogDir(path=path, error=code, message=message)
        partitions = tuple(_describe_partition(partition) for partition in self._asked(request))
        return DescribedLogDir(
            path=path, partitions=partitions, total_bytes=space.total_bytes, usable_bytes=space.usable_bytes
        )

    def _asked(self, request: DescribeLogDirsRequest) -> list[Partition]:
        """The partitions asked for, each once; what is not here is left out."""
        if request.partitions is None:
            return list(self._partitions)
        found = [self._partitions.get(asked.topic, asked.partition) for asked in dict.fromkeys(request.partitions)]
        return [partition for partition in found if partition is not None]


def _describe_partition(partition: Partition) -> LogDirPartition:
    return LogDirPartition(topic=partition.topic, partition=partition.index, size=partition.log.size)
