"""DescribeLogDirs and AlterReplicaLogDirs: contents of the data directories, and moves between them.

Source: kafka.server.ReplicaManager.describeLogDirs, alterReplicaLogDirs.
"""

from collections.abc import Iterable, Mapping
from functools import partial

import trio

from warmlog.broker.api.context import Context
from warmlog.broker.api.errors import EXPECTED, RequestError, describe
from warmlog.broker.api.handler import Handler
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.io.directory_names import MAX_NAME_SIZE, future_directory
from warmlog.broker.maintenance.log_moves import LogMoves, MoveStatus
from warmlog.broker.metadata.topic import InvalidTopicError
from warmlog.broker.partitions.appends.errors import NotLeaderError
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import PartitionEntry
from warmlog.protocol.kafka.messages.topics.log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    BegunMove,
    DescribedLogDir,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogDirPartition,
)


class LogDirsApi:
    """Answers the requests about data directories."""

    def __init__(self, partitions: Partitions, directories: DataDirectories, moves: LogMoves) -> None:
        self._partitions = partitions
        self._directories = directories
        self._moves = moves

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers by API."""
        return {
            DescribeLogDirsRequest.api: self.describe,
            AlterReplicaLogDirsRequest.api: self.alter,
        }

    # -- describe --

    async def describe(self, request: DescribeLogDirsRequest, context: Context) -> DescribeLogDirsResponse:
        """Describe every data directory; online ones with the requested partitions they hold."""
        directories = list(self._directories.live)
        requested = await self._selected(request, context)
        held: dict[DataDirectory, list[LogDirPartition]] = {directory: [] for directory in directories}
        for partition in requested:
            holder = self._directories.holder(partition.topic, partition.index)
            if holder in held:
                held[holder].append(_describe_partition(partition))
            await context.checkpoint()
        for directory in directories:
            moving = [move for move in self._moves.to(directory) if move.partition in requested]
            held[directory] += map(_describe_move, moving)
        described = [await self._describe(directory, held[directory]) for directory in directories]
        offline = [
            DescribedLogDir(
                path=path, error=ErrorCode.KAFKA_STORAGE_ERROR, message=f"the directory is offline: {reason}"
            )
            for path, reason in self._directories.offline.items()
        ]
        return DescribeLogDirsResponse(log_dirs=(*described, *offline))

    async def _describe(self, directory: DataDirectory, held: Iterable[LogDirPartition]) -> DescribedLogDir:
        path = directory.absolute_path
        try:
            space = await trio.to_thread.run_sync(directory.space)
        except EXPECTED as error:
            code, message = describe(error)
            return DescribedLogDir(path=path, error=code, message=message)
        return DescribedLogDir(
            path=path,
            partitions=tuple(held),
            total_bytes=space.total_bytes,
            usable_bytes=space.usable_bytes,
        )

    async def _selected(self, request: DescribeLogDirsRequest, context: Context) -> Mapping[Partition, None]:
        """Return the requested partitions without duplicates and unknown ones."""
        if request.partitions is None:
            return dict.fromkeys(self._partitions)
        selected: dict[Partition, None] = {}
        for requested in request.partitions:
            partition = self._partitions.local(requested.topic, requested.partition)
            if partition is not None:
                selected[partition] = None
            await context.checkpoint()
        return selected

    # -- alter --

    async def alter(self, request: AlterReplicaLogDirsRequest, context: Context) -> AlterReplicaLogDirsResponse:
        """Start moving partitions; DescribeLogDirs reports their progress."""
        begun: list[BegunMove] = []
        for target in request.targets:
            begun += await context.map(partial(self._begin, target.path), target.partitions)
        return AlterReplicaLogDirsResponse(partitions=tuple(begun))

    def _begin(self, path: str, requested: PartitionEntry) -> BegunMove:
        begun = partial(BegunMove, topic=requested.topic, partition=requested.partition)
        try:
            self._moves.begin(*self._checked(path, requested))
        except EXPECTED as error:
            return begun(error=describe(error)[0])
        return begun()

    def _checked(self, path: str, requested: PartitionEntry) -> tuple[Partition, DataDirectory]:
        """Return the partition and its target directory.

        Raises RequestError, InvalidTopicError, and what `Partitions.missing` returns.
        """
        target = self._directories.find(path)
        if target is None and path in self._directories.offline:
            raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} is offline")
        if target is None:
            raise RequestError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not a data directory")
        if len(future_directory(requested.topic, requested.partition)) > MAX_NAME_SIZE:
            raise InvalidTopicError(
                f"{requested.topic}-{requested.partition} cannot be moved: its copy's directory name would be too long"
            )
        partition = self._partitions.local(requested.topic, requested.partition)
        if partition is None:
            missing = self._partitions.missing(requested.topic, requested.partition)
            if isinstance(missing, NotLeaderError):
                raise RequestError(ErrorCode.REPLICA_NOT_AVAILABLE, "this broker has no replica of the partition")
            raise missing
        return partition, target


def _describe_partition(partition: Partition) -> LogDirPartition:
    return LogDirPartition(topic=partition.topic, partition=partition.index, size=partition.log.size)


def _describe_move(move: MoveStatus) -> LogDirPartition:
    return LogDirPartition(
        topic=move.partition.topic,
        partition=move.partition.index,
        size=move.copied_bytes,
        offset_lag=move.lag,
        is_future=True,
    )
