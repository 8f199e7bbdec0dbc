"""Many topics created and deleted by one request: what that costs on the disk, and what it waits for."""

import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Container, Sequence
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.broker.clients import batch, running
from tests.broker.rig import FailingDisk, Rig, rig
from warmlog.broker.api.topics import topics as topics_api
from warmlog.broker.cluster.local.store_file import Committed, StoreFile
from warmlog.broker.cluster.store import StoreTransaction
from warmlog.broker.log.directory.checkpoint import CLEAN_MARKER, RECOVERY_POINTS, read_offsets
from warmlog.broker.log.errors import NotReadyError
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.metadata.errors import MetadataError
from warmlog.broker.metadata.topic import InvalidTopicError
from warmlog.broker.partitions.disks.storage import NewLog, Storage
from warmlog.broker.partitions.partitions import Partitions, TopicExistsError, UnknownTopicError
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import MetadataRequest


class WatchedDisk(FailingDisk):
    """Counts what is waited for. Making files below one path and renaming them can be held, and the first refused."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.unmakable = self._hanging = "\0"
        self.held = 0
        self._go_on = threading.Event()

    def hang(self, path: Path) -> None:
        self._hanging = str(path)

    def go_on(self) -> None:
        self._go_on.set()

    def open(self, path: str, flags: int) -> int:
        if flags & os.O_CREAT:
            self._hold(path)
        if flags & os.O_CREAT and self.unmakable in path:
            raise PermissionError(13, "not today")
        return super().open(path, flags)

    def rename(self, old: str, new: str) -> None:
        self._hold(old)
        super().rename(old, new)

    def _hold(self, path: str) -> None:
        if path.startswith(self._hanging):
            self.held += 1
            assert self._go_on.wait(20), "nobody let it go on"

    def sync(self, fd: int) -> None:
        self.waits["file"] += 1
        super().sync(fd)

    def sync_directory(self, path: str) -> None:
        self.waits[path] += 1
        super().sync_directory(path)


@pytest.fixture
def disk() -> WatchedDisk:
    return WatchedDisk()


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many operations each write of the metadata had."""
    found: list[int] = []
    real = StoreFile.commit

    def commit(file: StoreFile, transactions: Sequence[StoreTransaction], leases: Container[int]) -> Committed:
        found.append(sum(len(each.operations) for each in transactions))
        return real(file, transactions, leases)

    monkeypatch.setattr(StoreFile, "commit", commit)
    return found


NAMES = [f"t{number}" for number in range(30)]


async def create(
    partitions: Partitions, *names: str, count: int = 2, answer_after_s: float = math.inf
) -> dict[str, Exception]:
    planned = [partitions.plan_topic(name, count) for name in names]
    return await partitions.create_all(planned, answer_after_s=answer_after_s)


async def writable(made: Rig, topic: str, partitions: int = 2) -> bool:
    """Append to every partition."""
    for index in range(partitions):
        await made.append(made.partitions.require(topic, index))
    return True


async def test_topics_of_one_request_share_one_commit_and_one_sync_of_each_directory(
    tmp_path: Path, disk: WatchedDisk, commits: list[int]
) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    async with rig(first, others=[second], disk=disk) as made:
        await create(made.partitions, "warm")
        disk.waits.clear()
        commits.clear()
        assert await create(made.partitions, *NAMES) == {}
        assert disk.waits == {str(first): 1, str(second): 1, "file": 2}  # a checkpoint in each
        assert commits == [30]
        assert all([await writable(made, name) for name in NAMES])


async def test_topics_deleted_by_one_request_share_two_commits_and_one_sync_of_each_directory(
    tmp_path: Path, disk: WatchedDisk, commits: list[int]
) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    async with rig(first, others=[second], disk=disk) as made:
        await create(made.partitions, *NAMES)
        await made.partitions.checkpoint()
        disk.waits.clear()
        commits.clear()
        assert await made.partitions.delete_all(NAMES[:20]) == {}
        assert disk.waits == {str(first): 1, str(second): 1}
        assert commits == [20, 20]
        assert [topic.name for topic in made.partitions.topics()] == sorted(NAMES[20:])
        assert len(list(first.glob("*-delete"))) == len(list(second.glob("*-delete"))) == 20


async def test_what_is_wrong_with_one_topic_is_its_own(tmp_path: Path, disk: WatchedDisk) -> None:
    async with rig(tmp_path, disk=disk) as made:
        partitions = made.partitions
        planned = [partitions.plan_topic(name, 2) for name in ("a.b", "a_b", "bad", "good", "there")]
        await create(partitions, "there")
        disk.unmakable = "/bad-1/"
        failures = await partitions.create_all(planned)
        assert {name: type(error) for name, error in failures.items()} == {
            "a_b": InvalidTopicError,
            "bad": PermissionError,
            "there": TopicExistsError,
        }
        assert [topic.name for topic in partitions.topics()] == ["a.b", "good", "there"]
        disk.unmakable = "\0"
        assert await create(partitions, "bad") == {}
        failures = await partitions.delete_all(["good", "none"])
        assert {name: type(error) for name, error in failures.items()} == {"none": UnknownTopicError}
        assert [topic.name for topic in partitions.topics()] == ["a.b", "bad", "there"]
    async with rig(tmp_path) as made:
        assert [topic.name for topic in made.partitions.topics()] == ["a.b", "bad", "there"]
        assert await writable(made, "bad")


async def test_names_without_a_topic_are_told_one_by_one_between_checkpoints(tmp_path: Path) -> None:
    steps = 0

    async def checkpoint() -> None:
        nonlocal steps
        steps += 1

    async with rig(tmp_path) as made:
        names = [f"none-{number}" for number in range(5000)]
        failures = await made.partitions.delete_all(names, checkpoint)
    assert list(failures) == names
    assert steps == len(names)


async def test_a_deletion_may_be_answered_before_directories_are_renamed(tmp_path: Path, disk: WatchedDisk) -> None:
    second = tmp_path / "b"
    async with rig(second, disk=disk) as made:
        await create(made.partitions, "gone", count=2)
        disk.hang(second)
        assert await made.partitions.delete_all(["gone"], answers_early=True) == {}
        assert made.partitions.topics() == []
        assert type((await made.partitions.delete_all(["gone"]))["gone"]) is UnknownTopicError
        assert {path.name for path in second.glob("gone-*")} == {"gone-0", "gone-1"}
        disk.go_on()
        assert await create(made.partitions, "gone", count=1) == {}  # waits until the old directories are renamed
        assert len(list(second.glob("gone-*"))) == 3
        assert await writable(made, "gone", 1)


async def test_metadata_that_cannot_be_written_refuse_all_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise MetadataError("database or disk is full")

    async with rig(tmp_path) as made:
        await create(made.partitions, "there")
        with monkeypatch.context() as patched:
            patched.setattr(StoreFile, "commit", full)
            assert set(await create(made.partitions, "a", "b")) == {"a", "b"}
            assert set(await made.partitions.delete_all(["there"])) == {"there"}
        assert not list(tmp_path.glob("[ab]-*"))
        assert await writable(made, "there")
        assert await create(made.partitions, "a", "b") == {}


async def when(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110  # nobody tells of what happens inside a worker
        await trio.sleep(0.001)


async def test_a_disk_that_hangs_delays_no_other_topic(tmp_path: Path, disk: WatchedDisk) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    async with rig(first, others=[second], disk=disk) as made:
        partitions = made.partitions
        await create(partitions, "old", count=1)  # in the first directory
        disk.hang(second)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(create, partitions, "stuck")
            await when(lambda: disk.held)
            await partitions.alter("old", lambda configs: {**configs, "retention.ms": "5"})
            await partitions.delete("old")
            assert await create(partitions, "new", count=1) == {}
            assert await writable(made, "new", 1)
            assert not partitions.has("stuck")
            disk.go_on()
        assert await writable(made, "stuck")


async def test_a_name_is_free_for_its_next_topic_only_when_the_old_one_is_gone(
    tmp_path: Path, disk: WatchedDisk
) -> None:
    """Names that differ by a dot and an underscore are one."""
    async with rig(tmp_path, disk=disk) as made:
        partitions = made.partitions
        disk.hang(tmp_path / "a.b-0")
        outcomes: list[object] = []

        async def change() -> None:
            outcomes.append(await create(partitions, "a_b"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create, partitions, "a.b")
            await when(lambda: disk.held)
            nursery.start_soon(change)
            await trio.testing.wait_all_tasks_blocked()
            assert outcomes == []
            disk.go_on()
        assert [topic.name for topic in partitions.topics()] == ["a.b"]
        assert isinstance(outcomes[0], dict)
        assert isinstance(outcomes[0]["a_b"], InvalidTopicError)


# -- answered before all is made ---------------------------------------------------------------------------------------


async def test_many_partitions_are_answered_for_before_they_are_made_and_served_once_they_are(
    tmp_path: Path, disk: WatchedDisk
) -> None:
    async with rig(tmp_path, disk=disk) as made:
        partitions = made.partitions
        disk.hang(tmp_path / "a-1")
        assert await create(partitions, "a", "b", answer_after_s=0) == {}
        assert [topic.name for topic in partitions.topics()] == ["a", "b"]
        assert partitions.is_pending("a")
        assert partitions.get("a", 0) is None
        assert isinstance(partitions.missing("a", 1), NotReadyError)
        assert isinstance(partitions.missing("a", 2), UnknownTopicError)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partitions.delete, "b")
            await trio.testing.wait_all_tasks_blocked()
            assert partitions.has("b")
            disk.go_on()
            await partitions.changes.until_ready("a")
            assert await writable(made, "a")
        assert not partitions.has("b")


async def test_what_cannot_be_made_after_the_answer_is_offline_until_the_next_start(
    tmp_path: Path, disk: WatchedDisk
) -> None:
    async with rig(tmp_path, disk=disk) as made:
        disk.hang(tmp_path / "a-0")
        disk.unmakable = "/a-1/"
        assert await create(made.partitions, "a", "b", answer_after_s=0) == {}
        disk.go_on()
        await made.partitions.changes.until_ready("a")
        assert made.partitions.is_offline("a", 0)
        assert "not today" in str(made.partitions.missing("a", 1))
        assert await writable(made, "b")
    async with rig(tmp_path) as made:
        assert await writable(made, "a")


async def test_a_broker_that_stops_finishes_what_it_has_answered_for(tmp_path: Path, disk: WatchedDisk) -> None:
    async with rig(tmp_path, disk=disk) as made:
        disk.hang(tmp_path / "a-0")
        await create(made.partitions, "a", answer_after_s=0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.partitions.close_all)
            await trio.testing.wait_all_tasks_blocked()
            disk.go_on()
    assert len(list(tmp_path.glob("a-*"))) == 2
    assert (tmp_path / CLEAN_MARKER).exists()
    assert ("a", 1) in read_offsets(Disk(), str(tmp_path / RECOVERY_POINTS))


async def test_a_producer_waits_for_a_topic_that_is_being_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics_api, "MANY_PARTITIONS", 1)
    monkeypatch.setattr(topics_api, "ANSWER_AFTER_S", 0)
    go_on = threading.Event()
    make = Storage.make_logs

    def slowly(storage: Storage, wanted: Sequence[NewLog]) -> list[PartitionLog | Exception]:
        assert go_on.wait(20), "nobody let it go on"
        return make(storage, wanted)

    monkeypatch.setattr(Storage, "make_logs", slowly)
    async with running(tmp_path) as broker:
        client, other = await broker.connect(), await broker.connect()
        await client.create("orders", partitions=2)
        (topic,) = (await other.ask(MetadataRequest())).topics
        assert [each.error for each in topic.partitions] == [ErrorCode.LEADER_NOT_AVAILABLE] * 2
        assert (await other.fetch("orders", 0)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        async with trio.open_nursery() as nursery:

            async def produce() -> None:
                assert (await client.produce("orders", batch(b"x"), partition=1)).error is ErrorCode.NONE

            nursery.start_soon(produce)
            await other.ask(MetadataRequest())
            go_on.set()


async def test_a_deletion_leaves_the_next_topic_of_the_name(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await create(made.partitions, "again")
        former = made.partitions.topics()[0].id
        assert await made.partitions.delete_all(["again"], ids={"again": former.bytes}) == {}
        await create(made.partitions, "again")
        for failures in (
            await made.partitions.delete_all(["again"], ids={"again": former.bytes}),
            await made.partitions.changes._executor.delete({"again": former}, False),
        ):
            assert type(failures["again"]) is UnknownTopicError
        assert await writable(made, "again")
