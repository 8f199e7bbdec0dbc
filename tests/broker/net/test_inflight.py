"""The bound on bytes in flight: fair, and never stuck."""

import trio
import trio.testing

from broker.net.inflight import InflightBytes


async def test_who_came_first_gets_room_first_however_much_it_is() -> None:
    """A stream of small requests would otherwise keep a large one out for ever."""
    inflight = InflightBytes(10)
    order: list[str] = []

    async def take(name: str, size: int) -> None:
        await inflight.acquire(size)
        order.append(name)

    async with trio.open_nursery() as nursery:
        await inflight.acquire(8)
        nursery.start_soon(take, "large", 10)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(take, "small", 2)
        await trio.testing.wait_all_tasks_blocked()
        assert order == []
        inflight.release(8)
        await trio.testing.wait_all_tasks_blocked()
        inflight.release(10)
    assert order == ["large", "small"]


async def test_one_that_waited_and_gave_up_holds_nothing() -> None:
    inflight = InflightBytes(10)
    await inflight.acquire(8)
    with trio.move_on_after(0):
        await inflight.acquire(5)
    await inflight.acquire(2)
    assert inflight.held_bytes == 10


async def test_without_a_bound_nobody_waits() -> None:
    inflight = InflightBytes(-1)
    await inflight.acquire(1 << 40)
    await inflight.acquire(1 << 40)
