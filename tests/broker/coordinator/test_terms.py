"""Partitions of a coordinator's topic are loaded when this broker begins to lead them, and given up at once."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from tests.broker.coordinator.toy import LOADING, NOT_COORDINATOR, TOPIC, Toy, at_rest, serving
from tests.broker.rig import START_MS
from warmlog.broker.log.errors import LogError
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.builder import build_batch


def held() -> Toy:
    toy = Toy()
    toy.is_held = True
    return toy


async def test_a_new_topic_is_served_at_once_without_being_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        assert one.toy.events == ["begin 0", "begin 1", "begin 2"]
        assert one.states() == [ErrorCode.NONE] * 3


async def test_what_was_appended_before_is_loaded_after_a_start(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        one.append(1, count=2)
    async with serving(tmp_path) as one:
        assert [one.texts(index) for index in range(3)] == [{}, dict.fromkeys(one.names_in(1, 2), "value"), {}]
        assert one.state(1) is ErrorCode.NONE


async def test_names_are_refused_while_their_partition_is_loaded_and_others_are_served(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        for index in range(2):
            one.append(index)
    async with serving(tmp_path, held()) as one:
        assert one.states() == [LOADING, LOADING, ErrorCode.NONE]
        assert one.runtime.is_loading
        assert {"load 0", "load 1"} <= {*one.toy.events}, "one load does not wait for the other"
        one.toy.is_held = False
        await at_rest()
        assert one.states() == [ErrorCode.NONE] * 3
        assert not one.runtime.is_loading


async def test_a_partition_that_is_led_no_more_is_not_served_until_it_is_led_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        one.append(1)
        term = one.shard(1).term
        partition = one.resign(1)
        assert one.state(1) is NOT_COORDINATOR
        assert one.texts(1) is None
        one.append(1, term=term)
        one.made.partitions.availability.lead(partition)
        assert one.state(1) is LOADING
        await at_rest()
        assert one.state(1) is ErrorCode.NONE
        assert one.texts(1) == {one.name_in(1): "value"}


async def test_a_load_ends_with_its_term_and_begins_again_with_the_next(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        one.append(1)
        partition = one.resign(1)
        one.toy.is_held = True
        for _ in range(2):
            one.made.partitions.availability.lead(partition)
            await one.loads_held()
            assert one.state(1) is LOADING
            one.resign(1)
        one.made.partitions.availability.lead(partition)
        one.toy.is_held = False
        await at_rest()
        assert one.state(1) is ErrorCode.NONE
        assert one.toy.events[-7:] == ["load 1", "end 1", "begin 1", "load 1", "end 1", "begin 1", "load 1"]


@pytest.mark.parametrize("steps", range(40))
async def test_a_term_may_end_at_every_step_of_a_load(tmp_path: Path, steps: int) -> None:
    async with serving(tmp_path) as one:
        one.append(1, count=20)
    async with serving(tmp_path, reads=False) as one, trio.open_nursery() as nursery:
        first = one.shard(1)
        nursery.start_soon(one.runtime.run)
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        was_loading = one.state(1) is LOADING
        partition = one.resign(1)
        assert one.state(1) is NOT_COORDINATOR
        await at_rest()
        assert not one.runtime.is_loading
        assert one.toy.events.count("end 1") == 1
        assert first.is_freed
        assert was_loading or "load 1" in one.toy.events
        one.made.partitions.availability.lead(partition)
        await at_rest()
        assert one.state(1) is ErrorCode.NONE
        assert one.texts(1) == dict.fromkeys(one.names_in(1, 20), "value")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("steps", range(0, 40, 3))
async def test_the_runtime_may_be_cancelled_at_every_step_of_a_load(tmp_path: Path, steps: int) -> None:
    async with serving(tmp_path) as one:
        one.append(1, count=20)
    async with serving(tmp_path, reads=False) as one:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.runtime.run)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert one.state(1) in {LOADING, ErrorCode.NONE}
        one.resign(1)
        await at_rest()
        assert one.toy.events.count("end 1") == 1


async def test_an_append_that_is_under_way_fails_when_the_term_ends(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        partition = one.partition(1)
        partition.appends.is_paused = True
        one.append(1)
        assert one.reports == []
        one.resign(1)
        assert one.reports == [(NOT_COORDINATOR, [])]
        partition.appends.is_paused = False
        partition.appends.write_queued()
        one.made.partitions.availability.lead(partition)
        await at_rest()
        assert one.reports == [(NOT_COORDINATOR, [])], "reported once, although it was written later"
        assert one.texts(1) == {one.name_in(1): "value"}


async def test_an_append_that_is_refused_while_another_is_reported_is_reported_too(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        partition, name = one.partition(1), one.name_in(1)
        too_large = b"x" * partition.log.config.max_message_bytes

        def stored(error: ErrorCode, offsets: Sequence[int]) -> None:
            one.reports.append((error, [*offsets]))
            one.append(1, value=too_large)

        partition.appends.is_paused = True
        one.runtime.append(one.shard(1).term, name, [(name.encode(), b"value")], stored)
        partition.appends.is_paused = False
        partition.appends.write_queued()
        await at_rest()
        assert one.reports == [(ErrorCode.NONE, [0]), (ErrorCode.UNKNOWN_SERVER_ERROR, [])]
        assert not one.shard(1).term.unsettled


async def test_an_append_of_an_earlier_term_is_not_written_in_a_later_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        term = one.shard(1).term
        partition = one.resign(1)
        one.made.partitions.availability.lead(partition)
        one.append(1, term=term)
        assert one.reports == [(NOT_COORDINATOR, [])]
        assert partition.log.offsets.log_end_offset == 0


async def test_a_request_that_waits_is_answered_when_the_term_ends(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        partition = one.partition(1)
        partition.appends.is_paused = True
        answers: list[ErrorCode] = []

        async def ask() -> None:
            answers.append(await one.ask(1, "text"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await at_rest()
            assert answers == []
            one.resign(1)
        assert answers == [NOT_COORDINATOR]
        partition.appends.is_paused = False
        partition.appends.write_queued()
        one.made.partitions.availability.lead(partition)
        await at_rest()
        assert one.texts(1) == {one.name_in(1): "text"}, "the next term finds what was written after all"


async def test_a_request_whose_append_fails_changes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        assert await one.ask(1, "first") is ErrorCode.NONE
        one.partition(1).log.fail("Input/output error")
        assert await one.ask(1, "second") is NOT_COORDINATOR
        assert one.texts(1) == {one.name_in(1): "first"}
        assert not one.shard(1).waiting


async def test_a_partition_is_served_once_the_high_watermark_covers_what_was_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        one.append(1)
        term = one.shard(1).term
        partition = one.resign(1)
        log = partition.log
        log.follow_replicas()
        one.append(1, term=term)  # refused
        other = one.name_in(1, 1)
        partition.append(build_batch([(START_MS, other.encode(), b"value", ())]))
        partition.appends.write_queued()
        assert log.offsets.high_watermark < log.offsets.log_end_offset
        one.made.partitions.availability.lead(partition)
        await at_rest()
        assert one.state(1) is LOADING
        assert one.texts(1) == {}
        assert "load 1" not in one.toy.events
        log.offsets.advance_high_watermark(log.offsets.log_end_offset)
        partition.waiters.grown(1)
        await at_rest()
        assert one.state(1) is ErrorCode.NONE
        assert one.texts(1) == {one.name_in(1): "value", other: "value"}


@pytest.mark.parametrize("error", [LogError("no"), RuntimeError("a defect")])
async def test_a_partition_that_cannot_be_loaded_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async with serving(tmp_path) as one:
        one.append(1)
    async with serving(tmp_path, Toy(error)) as one:
        assert one.states() == [ErrorCode.NONE, NOT_COORDINATOR, ErrorCode.NONE]
        assert one.texts(1) is None
        assert one.toy.events[-1] == "end 1"
        assert f"{TOPIC}-1: " in caplog.text
        one.made.partitions.availability.lead(one.resign(1))
        await at_rest()
        assert one.toy.events.count("end 1") == 2, "it is tried again in the next term"


async def test_a_partition_that_goes_offline_while_it_is_loaded_is_not_served(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        one.append(1)
    async with serving(tmp_path, held()) as one:
        for lost in one.made.partitions.availability.on_offline:
            lost(TOPIC, 1)
        one.toy.is_held = False
        await at_rest()
        assert one.state(1) is NOT_COORDINATOR


async def test_a_topic_that_is_deleted_while_it_is_loaded_can_be_created_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        for index in range(3):
            one.append(index)
    async with serving(tmp_path, held()) as one:
        await one.made.partitions.delete(TOPIC)
        assert one.runtime.partition_count == 0
        assert one.runtime.shards() == []
        assert await one.runtime.ensure() is ErrorCode.NONE
        one.toy.is_held = False
        await at_rest()
        assert one.states() == [ErrorCode.NONE] * 3
        assert [one.texts(index) for index in range(3)] == [{}, {}, {}]


async def test_a_stop_closes_what_is_served_and_what_is_loaded(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        one.append(1)
    async with serving(tmp_path, held()) as one:
        partition = one.partition(0)
        partition.appends.is_paused = True
        one.append(0)
        one.runtime.stop()
        assert sorted(one.toy.events[-3:]) == ["end 0", "end 1", "end 2"]
        assert one.states() == [NOT_COORDINATOR] * 3
        await at_rest()
        assert not one.runtime.is_loading
        partition.appends.is_paused = False
        partition.appends.write_queued()
        await at_rest()
        assert one.reports == [(ErrorCode.NONE, [0])], "what was begun is completed"
