"""A data directory that fails is taken offline alone; what lies in it is offline, and never created again."""

import errno
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.broker.clients import RawClient, Running, batch, running
from warmlog.broker.log.directory.checkpoint import RECOVERY_POINTS
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.start_errors import BrokenError, StartError
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import OffsetCommitRequest, OffsetFetchGroup, OffsetFetchRequest, OffsetToCommit
from warmlog.protocol.request import DeleteTopicsRequest, MetadataRequest

OFFLINE = ErrorCode.KAFKA_STORAGE_ERROR
CHECKPOINTS_OFTEN = {"log.flush.offset.checkpoint.interval.ms": 5}


class BrokenDisk:
    """From some moment on, no file below a path can be opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._below = "\0"
        real_open = Disk.open

        def open_unless(disk: Disk, path: str, flags: int) -> int:
            if path.startswith(self._below):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return real_open(disk, path, flags)

        monkeypatch.setattr(Disk, "open", open_unless)

    def fail(self, path: Path) -> None:
        self._below = str(path)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> BrokenDisk:
    return BrokenDisk(monkeypatch)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return [tmp_path / "a", tmp_path / "b"]


@asynccontextmanager
async def serving(
    paths: list[Path], settings: Mapping[str, object] | None = None
) -> AsyncIterator[tuple[Running, RawClient]]:
    given = {"log.dirs": ",".join(map(str, paths)), **(settings or {})}
    async with running(paths[0], given) as broker:
        yield broker, await broker.connect()


async def partitions_of(client: RawClient, topic: str) -> dict[int, Any]:
    (found,) = (await client.ask(MetadataRequest(topics=(topic,), auto_create=False))).topics
    return {partition.partition: partition for partition in found.partitions}


async def offline_ones(client: RawClient, topic: str = "orders") -> list[int]:
    found = await partitions_of(client, topic)
    return [index for index, partition in found.items() if partition.error is ErrorCode.LEADER_NOT_AVAILABLE]


async def write_to_all(client: RawClient, topic: str, count: int) -> list[ErrorCode]:
    return [(await client.produce(topic, batch(b"v"), partition=index)).error for index in range(count)]


async def test_partitions_are_spread_and_found_again(paths: list[Path]) -> None:
    async with serving(paths) as (_, client):
        await client.create("orders", partitions=4)
        assert await write_to_all(client, "orders", 4) == [ErrorCode.NONE] * 4
    for path in paths:
        assert len(list(path.glob("orders-*"))) == 2
        assert (path / ".kafka_cleanshutdown").exists()
        assert len((path / RECOVERY_POINTS).read_text().splitlines()) == 4
    async with serving(paths) as (_, client):
        found = [await client.fetch("orders", 0, index) for index in range(4)]
        assert [each.high_watermark for each in found] == [1] * 4


async def test_a_directory_whose_checkpoints_fail_goes_alone(
    paths: list[Path], disk: BrokenDisk, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(paths, CHECKPOINTS_OFTEN) as (_, client):
        await client.create("orders", partitions=4)
        await write_to_all(client, "orders", 4)
        disk.fail(paths[1])
        while await offline_ones(client) != [1, 3]:
            await trio.lowlevel.checkpoint()
        found = await partitions_of(client, "orders")
        assert [found[index].leader for index in range(4)] == [1, -1, 1, -1]
        assert await write_to_all(client, "orders", 4) == [ErrorCode.NONE, OFFLINE, ErrorCode.NONE, OFFLINE]
        fetched = [await client.fetch("orders", 0, index, max_wait_ms=60_000) for index in range(4)]
        assert [each.error for each in fetched] == [ErrorCode.NONE, OFFLINE, ErrorCode.NONE, OFFLINE]
        await client.create("more", partitions=2)
        assert sorted(path.name for path in paths[0].glob("more-*")) == ["more-0", "more-1"]
    assert f"data directory {paths[1]} is offline until the next startup: Input/output error" in caplog.text
    assert (paths[0] / ".kafka_cleanshutdown").exists()
    assert not (paths[1] / ".kafka_cleanshutdown").exists()
    disk.fail(Path("/nowhere"))
    async with serving(paths) as (_, client):
        assert await offline_ones(client) == []
        found = [(await client.fetch("orders", 0, index)).high_watermark for index in range(4)]
        assert found == [2, 1, 2, 1]


async def test_a_waiting_fetch_is_told_at_once(paths: list[Path], disk: BrokenDisk) -> None:
    async with serving(paths, CHECKPOINTS_OFTEN) as (broker, client):
        await client.create("orders", partitions=2)
        waiting = await broker.connect()
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                assert (await waiting.fetch("orders", 0, 1, max_wait_ms=60_000, min_bytes=1)).error is OFFLINE

            nursery.start_soon(wait)
            disk.fail(paths[1])


async def test_a_directory_that_vanishes_goes_alone(paths: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    async with serving(paths) as (_, client):
        await client.create("orders", partitions=2)
        paths[1].rename(paths[1].with_name("elsewhere"))
        paths[1].mkdir()  # as the mount point that is left of an unmounted file system
        while await offline_ones(client) != [1]:
            await trio.lowlevel.checkpoint()
    assert "it no longer exists" in caplog.text
    assert list(paths[1].iterdir()) == []


async def test_a_directory_that_turns_read_only_goes_alone(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(paths) as (_, client):
        await client.create("orders", partitions=2)
        real = Disk.space
        read_only = str(paths[1])
        monkeypatch.setattr(Disk, "space", lambda disk, path: real(disk, path)._replace(is_read_only=path == read_only))
        while await offline_ones(client) != [1]:
            await trio.lowlevel.checkpoint()
    assert "its file system is read-only" in caplog.text


async def test_the_broker_ends_when_the_first_directory_fails(paths: list[Path], disk: BrokenDisk) -> None:
    with pytest.RaisesGroup(
        pytest.RaisesExc(BrokenError, match=f"{paths[0]} cannot be used.*has the metadata"), flatten_subgroups=True
    ):
        async with serving(paths, CHECKPOINTS_OFTEN) as (broker, _):
            disk.fail(paths[0])
            await broker.ended.wait()


async def serve_before(paths: list[Path]) -> None:
    async with serving(paths) as (_, client):
        await client.create("orders", partitions=4)
        await write_to_all(client, "orders", 4)


async def check_offline(paths: list[Path], expected: list[int]) -> None:
    async with serving(paths) as (_, client):
        assert await offline_ones(client) == expected
        codes = await write_to_all(client, "orders", 4)
        assert [index for index, code in enumerate(codes) if code is OFFLINE] == expected
    for path in paths:
        if path.is_dir():
            assert len(list(path.glob("orders-*"))) in {0, 2}


async def test_an_unmounted_directory_is_not_made_anew(paths: list[Path]) -> None:
    await serve_before(paths)
    paths[1].rename(paths[1].with_name("elsewhere"))
    await check_offline(paths, [1, 3])
    assert not paths[1].exists()
    paths[1].mkdir()
    await check_offline(paths, [1, 3])
    assert list(paths[1].iterdir()) == []
    paths[1].rmdir()
    paths[1].with_name("elsewhere").rename(paths[1])
    await check_offline(paths, [])


async def test_a_directory_that_is_not_named_any_more_is_missed(
    paths: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    await serve_before(paths)
    await check_offline(paths[:1], [1, 3])
    assert "it is no longer in log.dirs" in caplog.text
    await check_offline([paths[0], paths[0].with_name("c")], [1, 3])
    await check_offline(paths, [])


async def test_a_directory_whose_partitions_were_moved_is_forgotten(paths: list[Path]) -> None:
    await serve_before(paths)
    for directory in paths[1].glob("orders-*"):
        directory.rename(paths[0] / directory.name)
    shutil.rmtree(paths[1])
    async with serving(paths[:1]) as (_, client):
        assert await offline_ones(client) == []
        assert [(await client.fetch("orders", 0, index)).high_watermark for index in range(4)] == [1] * 4
    async with serving(paths) as (_, client):
        assert await write_to_all(client, "orders", 4) == [ErrorCode.NONE] * 4


async def test_an_unreadable_log_takes_its_directory_out_of_service(paths: list[Path], disk: BrokenDisk) -> None:
    await serve_before(paths)
    disk.fail(paths[1] / "orders-3")
    await check_offline(paths, [1, 3])


async def test_an_unreadable_log_in_the_only_directory_is_an_error(paths: list[Path], disk: BrokenDisk) -> None:
    await serve_before(paths)
    disk.fail(paths[0] / "orders-2")
    with pytest.RaisesGroup(pytest.RaisesExc(StartError, match="orders-2.*Input/output error"), flatten_subgroups=True):
        async with serving(paths):
            pass


async def test_what_was_deleted_meanwhile_does_not_come_back(paths: list[Path]) -> None:
    await serve_before(paths)
    elsewhere = paths[1].with_name("elsewhere")
    paths[1].rename(elsewhere)
    async with serving(paths) as (_, client):
        (deleted,) = (await client.ask(DeleteTopicsRequest(topics=("orders",)))).topics
        assert deleted.error is ErrorCode.NONE
        await client.create("orders", partitions=4)
        assert await write_to_all(client, "orders", 4) == [ErrorCode.NONE] * 4
    elsewhere.rename(paths[1])
    for _ in range(2):
        async with serving(paths) as (_, client):
            assert [(await client.fetch("orders", 0, index)).high_watermark for index in range(4)] == [1] * 4
        assert not list(paths[1].glob("orders-*"))


async def test_groups_of_a_failed_directory_are_not_served_as_empty(paths: list[Path]) -> None:
    """Their offsets are there, and cannot be read: a group that began anew would read everything again."""
    settings = {"offsets.topic.num.partitions": 2}

    async def commit(client: RawClient, group: str) -> Any:
        asked = OffsetToCommit(topic="orders", partition=0, offset=1)
        return (await client.ask(OffsetCommitRequest(group=group, partitions=(asked,)))).partitions[0].error

    async with serving(paths, settings) as (_, client):
        await client.create("orders")
        groups = [f"g{index}" for index in range(8)]
        for group in groups:
            while await commit(client, group) is not ErrorCode.NONE:
                await trio.lowlevel.checkpoint()
    paths[1].rename(paths[1].with_name("elsewhere"))
    async with serving(paths, settings) as (_, client):
        asked = OffsetFetchRequest(groups=tuple(OffsetFetchGroup(group=group) for group in groups))
        answers: tuple[Any, ...] = ()
        while not answers or any(answer.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS for answer in answers):
            answers = (await client.ask(asked)).groups
        assert {answer.error for answer in answers} == {ErrorCode.NONE, ErrorCode.NOT_COORDINATOR}
        assert all(len(answer.partitions) == (answer.error is ErrorCode.NONE) for answer in answers)
