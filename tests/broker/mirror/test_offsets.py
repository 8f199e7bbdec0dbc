"""Committed offsets of a source: what is copied, and what is left as it is here."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from trio.testing import MockClock

from tests.broker.groups.serving import EPOCH_MS, Serving, serving
from warmlog.broker.metadata.topic import Mirror, Topic
from warmlog.broker.mirror.offsets import OffsetCopies
from warmlog.broker.mirror.source import GroupOffsets
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import NO_OFFSET, FetchedOffset
from warmlog.protocol.records.builder import build_batch

COPY = Topic(name="copy", partitions=2, mirror=Mirror(cluster_id="source"))
FOREIGN = replace(COPY, name="foreign", mirror=Mirror(cluster_id="another"))
PROMOTED = replace(COPY, name="promoted", mirror=Mirror(cluster_id="source", promoted_at=(0, 0)))


def at(
    offset: int, topic: str = "copy", partition: int = 0, metadata: str = "", leader_epoch: int = 4
) -> FetchedOffset:
    return FetchedOffset(topic=topic, partition=partition, offset=offset, metadata=metadata, leader_epoch=leader_epoch)


async def append(group: Serving, count: int) -> None:
    """Append records to copy-0, as a mirror does."""
    rows = [(EPOCH_MS, None, b"v", ())] * count
    partition = group.partitions.require("copy", 0)
    written = partition.append(build_batch(rows))
    group.writer.write_queued()
    await written.wait()
    partition.log.offsets.advance_high_watermark(partition.log.offsets.log_end_offset)


@asynccontextmanager
async def mirroring(directory: Path) -> AsyncIterator[tuple[Serving, OffsetCopies]]:
    async with serving(directory) as group:
        topics = [replace(one, id=Topic(name="x", partitions=1).id) for one in (COPY, FOREIGN, PROMOTED)]
        assert await group.partitions.create_all(topics) == {}
        await append(group, 10)
        yield group, OffsetCopies(group.service, group.partitions, "source")


def size(group: Serving) -> int:
    """Return the bytes of the log of offsets."""
    return sum(partition.log.size for partition in group.partitions if partition.is_internal)


async def test_offsets_are_copied_as_they_are_and_written_once(tmp_path: Path, mock_clock: MockClock) -> None:
    async with mirroring(tmp_path) as (group, copies):
        found = GroupOffsets("g", (at(7, metadata="note"), at(NO_OFFSET, partition=1)))
        assert await copies.copy(found) == {}
        stored = group.committed(topic="copy")
        assert stored is not None
        assert (stored.offset, stored.metadata, stored.leader_epoch) == (7, "note", 4)
        assert group.committed(topic="copy", partition=1) is None
        before = size(group)
        assert await copies.copy(found) == {}
        assert size(group) == before
        assert await copies.copy(GroupOffsets("g", (at(3),))) == {}  # the group was reset at the source
        stored = group.committed(topic="copy")
        assert stored is not None
        assert stored.offset == 3


async def test_an_offset_that_does_not_exist_here_yet_waits_at_the_end(tmp_path: Path, mock_clock: MockClock) -> None:
    async with mirroring(tmp_path) as (group, copies):
        for expected in (10, 12):
            await copies.copy(GroupOffsets("g", (at(12),)))
            stored = group.committed(topic="copy")
            assert stored is not None
            assert stored.offset == expected
            await append(group, 5)


async def test_only_partitions_that_follow_the_source_are_touched(tmp_path: Path, mock_clock: MockClock) -> None:
    async with mirroring(tmp_path) as (group, copies):
        others = ("orders", "foreign", "promoted", "none")
        assert await copies.copy(GroupOffsets("g", tuple(at(0, topic) for topic in others))) == {}
        assert group.service.registry.get("g") is None
        assert [group.committed(topic=topic) for topic in others] == [None] * len(others)


async def test_a_group_that_reads_here_has_offsets_of_its_own(tmp_path: Path, mock_clock: MockClock) -> None:
    async with mirroring(tmp_path) as (group, copies):
        member = await group.member()
        assert await copies.copy(GroupOffsets("g", (at(7),))) == {}
        assert group.committed(topic="copy") is None
        assert await group.leave(member) == [ErrorCode.NONE]
        assert await copies.copy(GroupOffsets("g", (at(7),))) == {}
        assert group.committed(topic="copy") is not None


async def test_what_cannot_be_stored_is_told(tmp_path: Path, mock_clock: MockClock) -> None:
    async with mirroring(tmp_path) as (group, copies):
        errors = await copies.copy(GroupOffsets("g", (at(7), at(0, partition=1, metadata="x" * 5000))))
        assert errors == {("copy", 1): ErrorCode.OFFSET_METADATA_TOO_LARGE}
        assert group.committed(topic="copy") is not None
