"""A group coordinator over real topics and files, without sockets. Its wall clock follows the event loop's clock."""

import errno
import itertools
import math
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.groups.requests import DELAY_MS, join_request
from tests.broker.share.memory_persister import MemoryPersister
from tests.broker.stored_topics import NODE_ID, lone_node
from warmlog.broker.cluster.local.metadata_file import MetadataFile
from warmlog.broker.groups.commits import Committer
from warmlog.broker.groups.service import GroupService
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.disks.storage import Storage
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.settings.live import LiveSettings
from warmlog.broker.settings.loading import load_settings
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    JoinGroupResponse,
    LeavingMember,
    MemberAssignment,
    OffsetToCommit,
    SyncGroupRequest,
    SyncGroupResponse,
)
from warmlog.protocol.kafka.group_records import OffsetAndMetadata

EPOCH_MS = 1_700_000_000_000
CHECK_S = 6 * 3600  # between expiry checks: longer than the default, since each one is a jump of the mock clock
OUTSIDE = Committer(generation=-1, member_id="", instance_id=None)


class FullDisk(Disk):
    """A disk that can be made full."""

    is_full = False

    def pwritev(self, fd: int, buffers: "Sequence[bytes | bytearray | memoryview]", position: int) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().pwritev(fd, buffers, position)


class Serving:
    """Requests to the coordinator under test."""

    def __init__(self, service: GroupService, partitions: Partitions, writer: Writer, disk: FullDisk) -> None:
        self.service = service
        self.partitions = partitions
        self.writer = writer
        self.disk = disk

    async def join(
        self, group: str = "g", member_id: str = "", *, holder: str = "127.0.0.1", **fields: Any
    ) -> JoinGroupResponse:
        request = join_request(member_id, group=group, **fields)
        return await self.service.coordinator.join(request, client_id="c", host="/127.0.0.1", holder=holder)

    async def sync(self, joined: JoinGroupResponse, group: str = "g", **fields: Any) -> SyncGroupResponse:
        """Send SyncGroup; a leader assigns to each member its own id."""
        assignments = tuple(
            MemberAssignment(member_id=member.member_id, assignment=member.member_id.encode())
            for member in joined.members
        )
        request = SyncGroupRequest(
            group=group,
            generation=joined.generation,
            member_id=joined.member_id,
            assignments=assignments,
            **fields,
        )
        return await self.service.coordinator.sync(request)

    def heartbeat(self, joined: JoinGroupResponse, group: str = "g") -> ErrorCode:
        return self.service.coordinator.heartbeat(group, joined.member_id, None, joined.generation)

    async def leave(self, joined: JoinGroupResponse, group: str = "g") -> list[ErrorCode]:
        return (await self.service.coordinator.leave(group, [LeavingMember(member_id=joined.member_id)]))[1]

    async def member(self, group: str = "g", **fields: Any) -> JoinGroupResponse:
        """Join a group as its only member, and make it stable."""
        joined = await self.join(group, **fields)
        assert (await self.sync(joined, group)).error is ErrorCode.NONE
        return joined

    async def commit(
        self,
        offset: int,
        group: str = "g",
        committer: Committer = OUTSIDE,
        *,
        topic: str = "orders",
        partition: int = 0,
        retention_ms: int | None = None,
        **fields: Any,
    ) -> ErrorCode:
        requested = OffsetToCommit(topic=topic, partition=partition, offset=offset, **fields)
        return (await self.service.commits.commit(group, committer, [requested], retention_ms=retention_ms))[0]

    def committed(self, group: str = "g", topic: str = "orders", partition: int = 0) -> OffsetAndMetadata | None:
        shard = self.service.registry.shard_of(group)
        return None if shard is None else shard.offsets.get(group, topic, partition)

    def offsets(self, group: str = "g") -> list[tuple[str, int, OffsetAndMetadata]]:
        shard = self.service.registry.shard_of(group)
        return [] if shard is None else [*shard.offsets.of(group)]

    def has_pending(self, group: str = "g") -> bool:
        shard = self.service.registry.shard_of(group)
        return shard is not None and shard.pending.has_any(group)


@asynccontextmanager
async def serving(
    data_dir: Path, *, topics: Sequence[str] = ("orders",), reads: bool = True, **settings: object
) -> AsyncIterator[Serving]:
    """Run a coordinator whose topic exists, and wait until it has loaded its groups unless `reads` is False."""
    given = {
        "log.dirs": data_dir,
        "offsets.topic.num.partitions": 2,
        "offsets.retention.check.interval.ms": CHECK_S * 1000,
        "group.initial.rebalance.delay.ms": DELAY_MS,
    } | {name.replace("_", "."): value for name, value in settings.items()}
    loaded = load_settings(assignments=[f"{name}={value}" for name, value in given.items()])
    disk, ids, loop_clock = FullDisk(), itertools.count(), trio.lowlevel.current_clock()

    def clock() -> int:  # also called in workers
        return EPOCH_MS + round(loop_clock.current_time() * 1000)

    with ExitStack() as stack:
        directories = stack.enter_context(DataDirectories.open([data_dir], node_id=1))
        file = MetadataFile(data_dir / "metadata.sqlite", NODE_ID)
        stack.callback(file.close)
        async with trio.open_nursery() as nursery:
            writer = Writer(nursery=nursery, metrics=Metrics(), loop_write_max_bytes=1 << 20)
            storage = Storage(directories=directories, files=OpenFiles(disk=disk), clock=clock, random=Random(1))
            partitions = Partitions(storage, LiveSettings(loaded), writer, Metrics(), lone_node(file, writer))
            await partitions.open_all()
            for topic in topics:
                await partitions.ensure(topic)
            persister = MemoryPersister()
            service = GroupService(
                partitions, writer, loaded, clock=clock, new_id=lambda: str(next(ids)), persister=persister
            )
            await service.registry.runtime.ensure()
            async with trio.open_nursery() as running:
                if isinstance(loop_clock, MockClock):
                    running.start_soon(_jump_while_idle, loop_clock, writer)
                if reads:
                    running.start_soon(service.run)
                    while service.registry.available_all() is not ErrorCode.NONE:
                        await trio.lowlevel.checkpoint()
                yield Serving(service, partitions, writer, disk)
                running.cancel_scope.cancel()
            await partitions.close_all()


async def _jump_while_idle(clock: MockClock, writer: Writer) -> None:
    """Jump like trio's autojump clock, but not while a worker thread is busy (with a roll, for instance)."""
    workers = trio.to_thread.current_default_thread_limiter()
    while True:
        await wait_all_tasks_blocked(cushion=0.0005)
        delay_s = trio.lowlevel.current_statistics().seconds_to_next_deadline
        if math.isfinite(delay_s) and not workers.borrowed_tokens and writer.is_idle():
            clock.jump(max(delay_s, 0))
