"""Who gets a slot next: whoever has been served least."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from warmlog.broker.api.fair_queue import FairQueue
from warmlog.broker.partitions.fair_order import KEPT_TAGS


async def serve(queue: FairQueue, who: str, seconds: float, done: list[str], size: float = 0.0) -> None:
    async with queue.slot(who, size):
        await trio.sleep(seconds)
        done.append(who)


def clocked(slots: int) -> FairQueue:
    return FairQueue(slots, trio.current_time)


async def test_who_asks_for_little_waits_for_the_work_in_progress_only(autojump_clock: MockClock) -> None:
    queue, done = clocked(1), list[str]()
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(serve, queue, f"greedy {number}", 1.0, done, 90_000)
        await wait_all_tasks_blocked()
        await serve(queue, "modest", 0.0, done, 600)
        assert len(done) == 2


async def test_who_has_been_served_goes_behind_who_has_not(autojump_clock: MockClock) -> None:
    queue, done = clocked(1), list[str]()
    async with trio.open_nursery() as nursery:
        for who in ("greedy", "other"):
            nursery.start_soon(serve, queue, who, 1.0, done)
            await wait_all_tasks_blocked()
        await trio.sleep(1.5)
        for who in ("greedy", "modest"):
            nursery.start_soon(serve, queue, who, 1.0, done)
            await wait_all_tasks_blocked()
    assert done == ["greedy", "other", "modest", "greedy"]


async def test_nobody_saves_up_service_while_it_asks_for_none(autojump_clock: MockClock) -> None:
    queue, done = clocked(1), list[str]()
    for _ in range(50):
        await serve(queue, "busy", 1.0, done)
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            for who in ("busy", "late"):
                nursery.start_soon(serve, queue, who, 1.0, done)
                await wait_all_tasks_blocked()
    assert done[50:].index("busy") < 4


@pytest.mark.parametrize("slots", [1, 3])
async def test_as_many_are_served_at_a_time_as_there_are_slots(autojump_clock: MockClock, slots: int) -> None:
    queue, done = clocked(slots), list[str]()
    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(serve, queue, str(number), 1.0, done)
    assert trio.current_time() == 6 / slots


async def test_one_that_gives_up_takes_no_slot(autojump_clock: MockClock) -> None:
    queue, done = clocked(1), list[str]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, queue, "first", 1.0, done)
        await wait_all_tasks_blocked()
        with trio.move_on_after(0.5):
            await queue.acquire("gives up")
        with trio.CancelScope() as scope:
            await wait_all_tasks_blocked()
            scope.cancel()
            await queue.acquire("cancelled")
        nursery.start_soon(serve, queue, "last", 1.0, done)
    assert done == ["first", "last"]
    with trio.fail_after(0):
        await queue.acquire("free again")


async def test_connections_that_are_gone_are_forgotten(autojump_clock: MockClock) -> None:
    queue, done = clocked(1), list[str]()
    for number in range(3 * KEPT_TAGS):
        await serve(queue, str(number), 0.001, done)
    assert len(queue._order._tags) <= KEPT_TAGS + 1
