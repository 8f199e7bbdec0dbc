"""The partitions of a broker without its listeners: for tests of what goes on behind them."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import trio

from tests.broker.stored_topics import NODE_ID, lone_node
from warmlog.broker.cluster.local.lone_node import LoneNode
from warmlog.broker.cluster.local.metadata_file import MetadataFile
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.maintenance.file_removal import FileRemoval
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.disks.storage import Storage
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.security.quotas.client_quotas import ClientQuotas
from warmlog.broker.security.quotas.entities import QuotaIndex
from warmlog.broker.security.quotas.rates import Windows
from warmlog.broker.settings.live import LiveSettings
from warmlog.broker.settings.loading import load_settings
from warmlog.protocol.records.builder import build_batch

START_MS = 1_700_000_000_000
NO_QUOTAS = ClientQuotas(QuotaIndex(), Windows(), trio.current_time)


class FailingDisk(Disk):
    """Cannot rename what has `refused` in its path, unlink what has `kept` in it, read while it is unreadable.

    Calls `at_unlink` at each unlink.
    """

    def __init__(self) -> None:
        self.refused: str | None = None
        self.kept: str | None = None
        self.at_unlink: Callable[[], None] = lambda: None
        self.is_unreadable = False

    def read_into(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        if self.is_unreadable:
            raise OSError(5, "Input/output error")
        return super().read_into(fd, buffer, position)

    def rename(self, source: str, target: str) -> None:
        if self.refused is not None and self.refused in source:
            raise PermissionError(13, "not today")
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        if self.kept is not None and self.kept in path:
            raise PermissionError(13, "not today")
        self.at_unlink()
        super().unlink(path)


@dataclass
class Rig:
    """The partitions of a broker without its listeners."""

    partitions: Partitions
    writer: Writer
    metrics: Metrics
    disk: Any
    directory: Path
    node: LoneNode
    now_ms: int = START_MS
    unlinking: FileRemoval = field(default_factory=FileRemoval)

    async def create(self, name: str, **configs: str) -> Partition:
        await self.partitions.create(name, 1, {key.replace("_", "."): value for key, value in configs.items()})
        partition = self.partitions.get(name, 0)
        assert partition is not None
        return partition

    async def append(self, partition: Partition, count: int = 1, *, keys: int = 1, size: int = 98) -> None:
        """Append batches of one record each; the keys take turns."""
        for _ in range(count):
            await self.append_one(partition, keys=keys, size=size)
        await partition.appends.settled()

    async def append_one(self, partition: Partition, *, keys: int = 1, size: int = 98) -> None:
        """Append one; what it may have begun in the background goes on."""
        key = b"k%d" % (partition.log.offsets.log_end_offset % keys)
        append = partition.append(build_batch([(START_MS, key, b"v" * size, ())]))
        self.writer.write_queued()
        await append.wait()

    def files(self, topic: str, pattern: str) -> list[str]:
        return sorted(path.name for path in (self.directory / f"{topic}-0").glob(pattern))


@asynccontextmanager
async def rig(
    directory: Path, *assignments: str, others: Sequence[Path] = (), disk: Disk | None = None
) -> AsyncIterator[Rig]:
    """Over `directory`, which has the metadata, and further ones."""
    settings, metrics, disk = load_settings(assignments=assignments), Metrics(), disk or FailingDisk()
    with DataDirectories.open([directory, *others], node_id=1, disk=disk) as data:
        data.join({}, [])
        file = MetadataFile(directory / "metadata.sqlite", NODE_ID)
        async with trio.open_nursery() as nursery:
            writer = Writer(nursery=nursery, metrics=metrics, loop_write_max_bytes=1 << 16)
            storage = Storage(directories=data, files=OpenFiles(disk=disk), clock=lambda: made.now_ms, random=Random(1))
            node = lone_node(file, writer)
            partitions = Partitions(storage, LiveSettings(settings), writer, metrics, node)
            made = Rig(partitions, writer, metrics, disk, directory, node)
            await partitions.open_all()
            yield made
            await partitions.close_all()
        file.close()
