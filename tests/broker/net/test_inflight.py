"""The bound on bytes in flight: it holds, nobody is stuck, and what is only announced keeps nobody out."""

import struct
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tests.broker.clients import batch, running
from warmlog.broker.net.inflight import InflightBytes, Share


async def grow(inflight: InflightBytes, share: Share, size: int) -> None:
    granted = trio.Event()
    if not inflight.grow(share, size, granted.set):
        await granted.wait()


def test_beyond_the_bound_only_the_oldest_grows() -> None:
    inflight = InflightBytes(10)
    old, young = Share(), Share()
    granted: list[str] = []
    assert inflight.grow(old, 6, lambda: granted.append("old"))
    assert inflight.grow(young, 4, lambda: granted.append("young"))
    assert not inflight.grow(young, 1, lambda: granted.append("young, later"))
    assert inflight.grow(old, 100, lambda: granted.append("old"))
    assert (inflight.held_bytes, granted) == (110, [])
    inflight.release(old)
    assert (inflight.held_bytes, granted) == (5, ["young, later"])
    assert inflight.grow(young, 100, lambda: granted.append("young"))
    inflight.release(young)
    inflight.release(young)
    assert inflight.held_bytes == 0


def test_who_gives_up_waiting_gets_nothing() -> None:
    inflight = InflightBytes(10)
    first, second, third = Share(), Share(), Share()
    granted: list[str] = []
    assert inflight.grow(first, 10, lambda: None)
    assert not inflight.grow(second, 10, lambda: granted.append("second"))
    assert not inflight.grow(third, 10, lambda: granted.append("third"))
    inflight.release(second)
    inflight.release(first)
    assert (inflight.held_bytes, granted) == (10, ["third"])


async def test_a_share_that_shrinks_makes_room() -> None:
    inflight = InflightBytes(100)
    first, second = Share(), Share()
    await inflight.reserve(first, 80)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inflight.reserve, second, 80)
        await trio.testing.wait_all_tasks_blocked()
        assert inflight.held_bytes == 80
        inflight.shrink(first, 20)
    assert inflight.held_bytes == 100
    inflight.shrink(second, 90)
    assert inflight.held_bytes == 100, "a share does not grow by shrinking"
    inflight.release(first)
    inflight.release(second)
    assert inflight.held_bytes == 0


async def test_a_share_whose_reservation_is_cancelled_holds_nothing_once_released() -> None:
    inflight = InflightBytes(100)
    first, second = Share(), Share()
    await inflight.reserve(first, 80)
    with trio.CancelScope() as scope:
        scope.cancel()
        await inflight.reserve(second, 80)
    assert scope.cancelled_caught
    inflight.release(second)
    inflight.release(first)
    assert inflight.held_bytes == 0


def test_without_a_bound_nobody_waits() -> None:
    inflight = InflightBytes(-1)
    assert inflight.grow(Share(), 1 << 40, lambda: None)
    assert inflight.grow(Share(), 1 << 40, lambda: None)


@given(
    frames=st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=4), min_size=1, max_size=8),
    bound=st.integers(0, 99),
)
async def test_every_frame_arrives_however_full_it_is_and_the_bound_holds_but_for_the_oldest(
    frames: list[list[int]], bound: int
) -> None:
    inflight = InflightBytes(bound)
    largest = max(map(sum, frames))

    async def arrive(steps: list[int]) -> None:
        share = Share()
        for step in steps:
            await grow(inflight, share, step)
            assert inflight.held_bytes <= bound + largest
            await trio.lowlevel.checkpoint()
        inflight.release(share)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            for steps in frames:
                nursery.start_soon(arrive, steps)
    assert inflight.held_bytes == 0


async def test_frames_that_are_announced_and_never_sent_keep_nobody_out(tmp_path: Path) -> None:
    """Fifty clients that announced 50 MB each held the room, five at a time, until each was given up as too slow."""
    settings = {"queued.max.request.bytes": 8 << 20, "socket.request.max.bytes": 64 << 20}
    async with running(tmp_path, settings) as broker:
        client = await broker.connect()
        await client.create("orders")
        for _ in range(3):
            idle = await broker.connect()
            await idle.stream.send_all(struct.pack(">i", 50 << 20))
        with trio.fail_after(20):  # the patience with those is 30 s
            assert (await client.produce("orders", batch(b"x" * 1_000_000))).base_offset == 0


@pytest.mark.parametrize("room", [1, 3 << 20])
async def test_frames_larger_than_all_room_are_taken_one_after_the_other(tmp_path: Path, room: int) -> None:
    async with running(tmp_path, {"queued.max.request.bytes": room}) as broker:
        setup = await broker.connect()
        await setup.create("orders")
        offsets: list[int] = []

        async def push() -> None:
            client = await broker.connect()
            records = b"".join([batch(b"x" * 900_000)] * 6)
            offsets.append((await client.produce("orders", records)).base_offset)

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(push)
        assert sorted(offsets) == [0, 6, 12, 18]
