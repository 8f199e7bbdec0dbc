"""Partitions of a coordinator's topic are loaded when this broker begins to lead them, and given up at once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.broker.coordinator_log.loads import Loads
from tests.broker.rig import START_MS, Rig, rig
from warmlog.broker.coordinator_log.log import CoordinatorLog
from warmlog.broker.coordinator_log.topic import CoordinatorTopic, TopicLayout
from warmlog.broker.partitions.partition import Partition
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.builder import build_batch

TOPIC = "__three_parts"
SMALL = CoordinatorTopic(name=TOPIC, keeps="name", layout=lambda _: TopicLayout(3, {"cleanup.policy": "compact"}, 1))
LOADING, NOT_COORDINATOR = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR


class Serving:
    """A log whose topic exists, and what it loads."""

    def __init__(self, made: Rig, loads: Loads) -> None:
        self.made = made
        self.loads = loads
        self.log = CoordinatorLog(SMALL, made.partitions, made.writer, lambda: START_MS)
        self.log.bind(loads)
        self.reports: list[tuple[ErrorCode, list[int]]] = []

    def name_in(self, index: int) -> str:
        return next(name for name in map(str, range(99)) if self.log.partition_of(name) == index)

    def partition(self, index: int) -> Partition:
        found = self.made.partitions.get(TOPIC, index)
        assert found is not None
        return found

    def append(self, index: int, key: bytes = b"key", count: int = 1) -> None:
        rows = [(key + bytes([48 + number]), b"value") for number in range(count)]
        self.log.append(self.name_in(index), rows, lambda error, found: self.reports.append((error, [*found])))

    def state(self, index: int) -> ErrorCode:
        return self.log.state_of(self.name_in(index))


async def at_rest() -> None:
    """Wait until all tasks and all worker threads wait."""
    threads = trio.to_thread.current_default_thread_limiter()
    while True:
        await wait_all_tasks_blocked()
        if not threads.borrowed_tokens:
            return
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def serving(directory: Path, loads: Loads | None = None) -> AsyncIterator[Serving]:
    async with rig(directory) as made:
        one = Serving(made, loads or Loads())
        assert await one.log.ensure() is ErrorCode.NONE
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.log.run)
            await at_rest()
            yield one
            nursery.cancel_scope.cancel()


async def test_a_new_topic_is_served_at_once_without_being_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        assert one.loads.events == ["begin 0", "begin 1", "begin 2"]
        assert [one.state(index) for index in range(3)] == [ErrorCode.NONE] * 3


async def test_what_was_appended_before_is_loaded_after_a_start(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        one.append(1, count=2)
    async with serving(tmp_path) as one:
        assert one.loads.keys == {0: set(), 1: {b"key0", b"key1"}, 2: set()}
        assert one.state(1) is ErrorCode.NONE


async def test_names_are_refused_while_their_partition_is_loaded_and_others_are_served(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        for index in range(2):
            one.append(index)
    loads = Loads()
    loads.hold()
    async with serving(tmp_path, loads) as one:
        assert [one.state(index) for index in range(3)] == [LOADING, LOADING, ErrorCode.NONE]
        assert one.log.is_loading
        assert {"load 0", "load 1"} <= {*loads.events}, "one load does not wait for the other"
        loads.held.set()
        await at_rest()
        assert [one.state(index) for index in range(2)] == [ErrorCode.NONE] * 2
        assert not one.log.is_loading


async def test_a_partition_that_is_led_no_more_is_not_served_until_it_is_led_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        one.append(1)
        partition = one.partition(1)
        one.made.partitions.availability.resign(partition)
        assert one.state(1) is NOT_COORDINATOR
        assert 1 not in one.loads.keys
        one.log.append("x", [(b"key", b"value")], lambda *_: None)
        one.made.partitions.availability.lead(partition)
        assert one.state(1) is LOADING
        await at_rest()
        assert one.state(1) is ErrorCode.NONE
        assert one.loads.keys[1] == {b"key0"}


async def test_a_load_ends_with_its_term_and_begins_again_with_the_next(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        one.append(1)
        partition = one.partition(1)
        one.made.partitions.availability.resign(partition)
        one.loads.hold()
        for _ in range(2):
            one.made.partitions.availability.lead(partition)
            await at_rest()
            assert one.state(1) is LOADING
            one.made.partitions.availability.resign(partition)
        one.made.partitions.availability.lead(partition)
        one.loads.held.set()
        await at_rest()
        assert one.state(1) is ErrorCode.NONE
        assert one.loads.events[-7:] == ["load 1", "end 1", "begin 1", "load 1", "end 1", "begin 1", "load 1"]


async def test_an_append_that_is_under_way_fails_when_the_term_ends(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        partition = one.partition(1)
        partition.appends.is_paused = True
        one.append(1)
        assert one.reports == []
        one.made.partitions.availability.resign(partition)
        assert one.reports == [(NOT_COORDINATOR, [])]
        partition.appends.is_paused = False
        partition.appends.write_queued()
        one.made.partitions.availability.lead(partition)
        await at_rest()
        assert one.reports == [(NOT_COORDINATOR, [])], "reported once, although it was written later"
        assert one.loads.keys[1] == {b"key0"}


async def test_an_append_of_an_earlier_term_is_not_written_in_a_later_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        term = one.log.term_of(one.name_in(1))
        partition = one.partition(1)
        one.made.partitions.availability.resign(partition)
        one.made.partitions.availability.lead(partition)
        one.log.append(one.name_in(1), [(b"k", b"v")], lambda error, _: one.reports.append((error, [])), term=term)
        assert one.reports == [(NOT_COORDINATOR, [])]
        assert partition.log.offsets.log_end_offset == 0


async def test_a_partition_is_served_once_the_high_watermark_covers_what_was_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        one.append(1)
        partition = one.partition(1)
        one.made.partitions.availability.resign(partition)
        log = partition.log
        log.follow_replicas()
        one.append(1)  # refused
        partition.append(_batch(b"other"))
        partition.appends.write_queued()
        assert log.offsets.high_watermark < log.offsets.log_end_offset
        one.made.partitions.availability.lead(partition)
        await at_rest()
        assert one.state(1) is LOADING
        assert "load 1" not in one.loads.events
        log.offsets.advance_high_watermark(log.offsets.log_end_offset)
        partition.waiters.grown(1)
        await at_rest()
        assert one.state(1) is ErrorCode.NONE
        assert one.loads.keys[1] == {b"key0", b"other"}


async def test_a_partition_that_cannot_be_loaded_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path) as one:
        one.append(1)
    async with serving(tmp_path, Loads(is_good=False)) as one:
        assert [one.state(index) for index in range(3)] == [ErrorCode.NONE, NOT_COORDINATOR, ErrorCode.NONE]
        assert 1 not in one.loads.keys


async def test_a_partition_that_goes_offline_while_it_is_loaded_is_not_served(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        one.append(1)
    loads = Loads()
    loads.hold()
    async with serving(tmp_path, loads) as one:
        for lost in one.made.partitions.availability.on_offline:
            lost(TOPIC, 1)
        loads.held.set()
        await at_rest()
        assert one.state(1) is NOT_COORDINATOR


async def test_a_topic_that_is_deleted_while_it_is_loaded_can_be_created_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        for index in range(3):
            one.append(index)
    loads = Loads()
    loads.hold()
    async with serving(tmp_path, loads) as one:
        await one.made.partitions.delete(TOPIC)
        assert one.log.partition_count == 0
        assert loads.keys == {}
        assert await one.log.ensure() is ErrorCode.NONE
        loads.held.set()
        await at_rest()
        assert [one.state(index) for index in range(3)] == [ErrorCode.NONE] * 3
        assert loads.keys == {0: set(), 1: set(), 2: set()}


def _batch(key: bytes) -> bytes:
    return build_batch([(START_MS, key, b"value", ())])
