"""A partition that has lost files is offline, it alone, until they are back or somebody accepts the loss."""

import errno
import os
import shutil
from collections.abc import AsyncIterator, Container, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest
import trio

from tests.broker.clients import RawClient, batch, running
from tests.broker.rig import rig
from tests.broker.stored_topics import stored_topics
from warmlog.broker.cluster.local.store_file import Committed, StoreFile
from warmlog.broker.cluster.store import StoreTransaction
from warmlog.broker.log.directory.accepted_loss import ACCEPT_LOSS
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.metadata.topic import Topic
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import DeleteTopicsRequest

SMALL_SEGMENTS = {"log.segment.bytes": 1024}
RECORDS = 30  # in each partition, some segments


@pytest.fixture(params=[1, 2])
def paths(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    return [tmp_path / name for name in "ab"[: request.param]]


@asynccontextmanager
async def serving(paths: Sequence[Path]) -> AsyncIterator[RawClient]:
    async with running(paths[0], {"log.dirs": ",".join(map(str, paths)), **SMALL_SEGMENTS}) as broker:
        yield await broker.connect()


async def serve_before(paths: Sequence[Path], *, kill: bool) -> None:
    """Fill the three partitions of a topic; then stop, or leave the directories as a killed broker does."""
    async with serving(paths) as client:
        await client.create("orders", partitions=3)
        for index in range(3):
            for _ in range(RECORDS):
                assert (await client.produce("orders", batch(b"v" * 100), partition=index)).error is ErrorCode.NONE
        if kill:
            await trio.to_thread.run_sync(copy_killed, paths)
    if kill:
        for path in paths:
            shutil.rmtree(path)
            copy_of(path).rename(path)


def copy_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.killed")


def copy_killed(paths: Sequence[Path]) -> None:
    def copy(source: str, target: str) -> None:
        with suppress(FileNotFoundError):  # a temporary file that has got its name meanwhile
            shutil.copy2(source, target)

    for path in paths:
        shutil.copytree(path, copy_of(path), copy_function=copy)
        (copy_of(path) / ".lock").unlink()


async def ends(client: RawClient) -> list[int | ErrorCode]:
    """The ends of the partitions, or the error of a read from the beginning and of an append."""
    found: list[int | ErrorCode] = []
    for index in range(3):
        fetched = await client.fetch("orders", 0, index)
        found.append(fetched.high_watermark if fetched.error is ErrorCode.NONE else fetched.error)
        if fetched.error is ErrorCode.KAFKA_STORAGE_ERROR:
            assert (await client.produce("orders", batch(b"v"), partition=index)).error is fetched.error
    return found


def directory_of(paths: Sequence[Path], name: str = "orders-1") -> Path:
    (found,) = [path / name for path in paths if (path / name).exists()]
    return found


OFFLINE = ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("kill", [False, True])
async def test_a_partition_without_its_directory_is_offline_until_that_is_back(
    paths: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture, *, kill: bool
) -> None:
    await serve_before(paths, kill=kill)
    lost = directory_of(paths)
    lost.rename(tmp_path / "saved")
    for _ in range(2):
        caplog.clear()
        async with serving(paths) as client:
            assert await ends(client) == [RECORDS, OFFLINE, RECORDS]
        assert f"orders-1 is offline until the next startup: {lost} is missing: put it back, or accept" in caplog.text
        assert not lost.exists()
    (tmp_path / "saved").rename(lost)
    async with serving(paths) as client:
        assert await ends(client) == [RECORDS] * 3


async def test_a_partition_without_its_directory_goes_on_behind_its_end_if_the_loss_is_accepted(
    paths: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    await serve_before(paths, kill=False)
    lost = directory_of(paths)
    shutil.rmtree(lost)
    lost.mkdir()
    async with serving(paths) as client:
        assert await ends(client) == [RECORDS, OFFLINE, RECORDS]
    assert f"orders-1 is offline until the next startup: {lost} has no log files, but had records up to" in caplog.text
    (lost / ACCEPT_LOSS).touch()
    async with serving(paths) as client:
        assert (await client.produce("orders", batch(b"v"), partition=1)).base_offset == RECORDS
    assert f"{lost}: serving the log without its missing files, because it had a file {ACCEPT_LOSS}" in caplog.text
    assert not (lost / ACCEPT_LOSS).exists()
    async with serving(paths) as client:
        assert await ends(client) == [RECORDS, ErrorCode.OFFSET_OUT_OF_RANGE, RECORDS]


async def test_a_partition_is_missed_from_its_creation_on(paths: list[Path]) -> None:
    async with serving(paths) as client:
        await client.create("orders", partitions=3)
        await trio.to_thread.run_sync(copy_killed, paths)
    shutil.rmtree(directory_of([copy_of(path) for path in paths]))
    async with serving([copy_of(path) for path in paths]) as client:
        assert await ends(client) == [0, OFFLINE, 0]


async def test_a_partition_whose_creation_was_interrupted_starts_empty(paths: list[Path]) -> None:
    async with serving(paths):
        pass
    with stored_topics(paths[0]) as stored:
        stored.create(Topic(name="orders", id=uuid4(), partitions=3))
    async with serving(paths) as client:
        assert await ends(client) == [0] * 3


async def test_an_interrupted_creation_is_not_judged_by_the_checkpoints_of_a_deleted_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    commit = StoreFile.commit

    def commit_and_copy(file: StoreFile, transactions: Sequence[StoreTransaction], leases: Container[int]) -> Committed:
        committed = commit(file, transactions, leases)
        copy_killed([path])
        return committed

    async with rig(path) as rigged:
        await rigged.append(await rigged.create("orders", segment_bytes="1024"), RECORDS)
        await rigged.partitions.create("orders2", 1)
        await rigged.partitions.checkpoint()
        await rigged.partitions.delete("orders")
        monkeypatch.setattr(StoreFile, "commit", commit_and_copy)
        await rigged.partitions.create("orders", 3)
    async with serving([copy_of(path)]) as client:
        assert await ends(client) == [0] * 3


async def test_a_topic_with_a_lost_partition_can_be_deleted_and_created_again(paths: list[Path]) -> None:
    await serve_before(paths, kill=False)
    shutil.rmtree(directory_of(paths))
    async with serving(paths) as client:
        (deleted,) = (await client.ask(DeleteTopicsRequest(topics=("orders",)))).topics
        assert deleted.error is ErrorCode.NONE
        await client.create("orders", partitions=3)
        assert await ends(client) == [0] * 3
    async with serving(paths) as client:
        assert await ends(client) == [0] * 3


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("which", [0, 1])
async def test_a_partition_that_has_lost_a_segment_is_offline_until_that_is_back(
    paths: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture, *, which: int, kill: bool
) -> None:
    await serve_before(paths, kill=False)
    async with serving(paths) as client:  # everything is below the recovery points
        assert await ends(client) == [RECORDS] * 3
        copy_killed(paths)
    if kill:
        for path in paths:
            shutil.rmtree(path)
            copy_of(path).rename(path)
    first, second, *_ = sorted(directory_of(paths).glob("*.log"))
    lost = (first, second)[which]
    lost.rename(tmp_path / "saved")
    for _ in range(2):
        caplog.clear()
        async with serving(paths) as client:
            assert await ends(client) == [RECORDS, OFFLINE, RECORDS]
        assert f"orders-1 is offline until the next startup: {lost} is missing, with the records from " in caplog.text
    (tmp_path / "saved").rename(lost)
    async with serving(paths) as client:
        assert await ends(client) == [RECORDS] * 3
    lost.unlink()
    (lost.parent / ACCEPT_LOSS).touch()
    async with serving(paths) as client:
        expected = ErrorCode.OFFSET_OUT_OF_RANGE if which == 0 else RECORDS
        assert await ends(client) == [RECORDS, expected, RECORDS]


async def test_a_partition_whose_files_belong_to_another_user_is_offline_alone(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await serve_before(paths, kill=True)
    refused = str(directory_of(paths))
    real_open, real_scan = Disk.open, Disk.scan

    def refuse(path: str) -> None:
        if path.startswith(refused):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    with monkeypatch.context() as patch:
        patch.setattr(Disk, "open", lambda disk, path, flags: (refuse(path), real_open(disk, path, flags))[1])
        patch.setattr(Disk, "scan", lambda disk, path, **more: (refuse(path), real_scan(disk, path, **more))[1])
        async with serving(paths) as client:
            assert await ends(client) == [RECORDS, OFFLINE, RECORDS]
    assert f"orders-1 is offline until the next startup: Permission denied: {refused}" in caplog.text
    assert "has no partition" not in caplog.text
    assert not (directory_of(paths).parent / ".kafka_cleanshutdown").exists()  # its logs are still to be recovered
    async with serving(paths) as client:
        assert await ends(client) == [RECORDS] * 3
