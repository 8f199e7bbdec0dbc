"""The memory for requests and replies of all connections: who waits, and whose connection is closed for others."""

import struct
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tests.broker.clients import batch, running
from warmlog.broker.net.memory_budget import CHECK_S, LARGE_BYTES, LONG_S, MemoryBudget, Progress, Share

MIB = 1 << 20


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Peer:
    """A connection, of which only the address and the end matter."""

    def __init__(self, address: str = "10.0.0.1") -> None:
        self.evicted = ""
        self.share = Share(self, address, Progress())

    def evict(self, why: str) -> None:
        self.evicted = why


def budget(max_bytes: int, clock: Clock | None = None) -> MemoryBudget:
    return MemoryBudget(max_bytes, lambda _: None, clock or Clock())


def moving(
    found: MemoryBudget, clock: Clock, size: int, *, moved: int, for_s: float, address: str = "10.0.0.1"
) -> Peer:
    """A connection that holds memory for a message, of which so many bytes have arrived within so many seconds."""
    peer = Peer(address)
    assert found.grow(peer.share, size, lambda: None)
    peer.share.progress.begin(clock.now - for_s)
    peer.share.progress.moved = moved
    return peer


async def grow(found: MemoryBudget, share: Share, size: int) -> None:
    granted = trio.Event()
    if not found.grow(share, size, granted.set):
        await granted.wait()


def test_the_oldest_share_never_waits() -> None:
    found = budget(10)
    old, young = Peer().share, Peer().share
    granted: list[str] = []
    assert found.grow(old, 6, lambda: granted.append("old"))
    assert found.grow(young, 4, lambda: granted.append("young"))
    assert not found.grow(young, 1, lambda: granted.append("young, later"))
    assert found.grow(old, 100, lambda: granted.append("old"))
    assert (found.held_bytes, granted) == (110, [])
    found.release(old)
    assert (found.held_bytes, granted) == (5, ["young, later"])
    assert found.grow(young, 100, lambda: granted.append("young"))
    found.release(young)
    found.release(young)
    assert found.held_bytes == 0


def test_the_smallest_share_that_waits_is_served_first() -> None:
    found = budget(10)
    old, large, small = Peer().share, Peer().share, Peer().share
    granted: list[str] = []
    assert found.grow(old, 10, lambda: None)
    assert not found.grow(large, 9, lambda: granted.append("large"))
    assert not found.grow(small, 2, lambda: granted.append("small"))
    found.shrink(old, 5)
    assert granted == ["small"]
    found.release(small)
    found.release(old)
    assert granted == ["small", "large"]


def test_large_messages_leave_a_quarter_to_others() -> None:
    found = budget(8 * MIB)
    assert found.grow(Peer().share, LARGE_BYTES, lambda: None)
    assert found.grow(Peer().share, 5 * MIB, lambda: None)
    assert not found.grow(Peer().share, 2 * MIB, lambda: None)
    assert found.grow(Peer().share, LARGE_BYTES, lambda: None)


def test_a_slow_message_gives_way_to_one_that_waits() -> None:
    clock = Clock()
    found = budget(100_000, clock)
    slow = moving(found, clock, 60_000, moved=50_000, for_s=2.0)
    fast = moving(found, clock, 40_000, moved=50_000_000, for_s=2.0)
    waiting, granted = Peer(), []
    assert not found.grow(waiting.share, 60_000, lambda: granted.append(True))
    found.evict_slowest()
    assert granted == [True]
    assert slow.evicted == "holds 60000 bytes for a message that moves at 24.4 KiB/s"
    assert (fast.evicted, found.held_bytes, found.evicted) == ("", 100_000, 1)


def test_nobody_is_closed_while_nobody_waits() -> None:
    clock = Clock()
    found = budget(100_000, clock)
    slow = moving(found, clock, 100_000, moved=0, for_s=1000.0)
    found.evict_slowest()
    assert not slow.evicted


def test_a_message_gives_way_only_after_a_second_and_a_complete_one_never() -> None:
    clock = Clock()
    found = budget(100, clock)
    young = moving(found, clock, 50, moved=0, for_s=0.05)
    complete = Peer()
    assert found.grow(complete.share, 50, lambda: None)
    granted: list[bool] = []
    assert not found.grow(Peer().share, 50, lambda: granted.append(True))
    found.evict_slowest()
    assert not young.evicted
    clock.now += 1.0
    found.evict_slowest()
    assert young.evicted
    assert not complete.evicted
    assert granted


def test_who_holds_more_than_a_fair_share_gives_way_to_who_wants_less() -> None:
    clock = Clock()
    found = budget(128 * MIB, clock)
    uploads = [moving(found, clock, 3 * MIB, moved=MIB, for_s=0.5 + at / 1000) for at in range(32)]  # 2 MiB/s
    small = [moving(found, clock, 32 * 1024, moved=1024, for_s=0.5) for _ in range(990)]
    assert found.grow(Peer().share, LARGE_BYTES - 10, lambda: None)
    assert not found.grow(Peer().share, 2 * MIB, lambda: None)
    found.evict_slowest()
    assert not any(peer.evicted for peer in uploads + small), "the one that waits wants more than its share, too"
    granted: list[bool] = []
    assert not found.grow(Peer().share, 90_000, lambda: granted.append(True)) or granted.append(True)
    found.evict_slowest()
    assert granted


def test_an_address_with_many_connections_gives_way_to_another_one() -> None:
    clock = Clock()
    found = budget(1000, clock)
    many = [moving(found, clock, 10, moved=1000, for_s=0.5) for _ in range(90)]
    others = [moving(found, clock, 50, moved=10, for_s=0.5, address="10.0.0.2") for _ in range(2)]
    granted: list[bool] = []
    assert not found.grow(Peer("10.0.0.3").share, 15, lambda: granted.append(True))
    found.evict_slowest()
    assert sum(bool(peer.evicted) for peer in many) == 2
    assert not any(peer.evicted for peer in others)
    assert granted


def test_endless_messages_that_wait_for_each_other_give_way_to_who_wants_less() -> None:
    clock = Clock()
    found = budget(128 * MIB, clock)
    endless = [moving(found, clock, 12 * MIB, moved=12 * MIB, for_s=1.0, address=f"10.0.1.{at % 3}") for at in range(8)]
    for peer in endless[1:]:
        assert not found.grow(peer.share, 4 * MIB, lambda: None)
    assert found.grow(endless[0].share, 32 * MIB, lambda: None)
    granted: list[bool] = []
    assert not found.grow(Peer().share, MIB, lambda: granted.append(True))
    found.evict_slowest()
    assert not any(peer.evicted for peer in endless), "each has moved faster than anyone must"
    clock.now += LONG_S
    found.evict_slowest()
    assert granted
    assert sum(bool(peer.evicted) for peer in endless) == 1


def test_no_long_message_gives_way_to_an_equal_one() -> None:
    clock = Clock()
    found = budget(100 * MIB, clock)
    uploads = [moving(found, clock, 20 * MIB, moved=20 * MIB, for_s=3.0) for _ in range(3)]
    assert not found.grow(Peer().share, 40 * MIB, lambda: None)
    found.evict_slowest()
    assert not any(peer.evicted for peer in uploads)


def test_waiting_for_memory_does_not_make_a_message_slow() -> None:
    clock = Clock()
    found = budget(100, clock)
    holder = Peer()
    assert found.grow(holder.share, 90, lambda: None)
    waiting = moving(found, clock, 10, moved=100_000, for_s=0.5)
    assert not found.grow(waiting.share, 10, lambda: None)
    clock.now += 100.0
    assert waiting.share.moving_s(clock.now) == 0.5
    found.release(holder.share)
    assert waiting.share.moving_s(clock.now) == 0.5


def test_what_is_held_already_counts_and_the_slowest_give_way() -> None:
    clock = Clock()
    found = budget(100, clock)
    peers = [moving(found, clock, 1, moved=at, for_s=1.0) for at in range(4)]
    for peer in peers:
        found.charge(peer.share, 40)
    assert found.held_bytes == 160
    found.evict_slowest()
    assert [bool(peer.evicted) for peer in peers] == [True, True, False, False]
    assert found.held_bytes == 80


async def test_a_task_closes_connections_while_a_share_waits(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        found = MemoryBudget(100, nursery.start_soon, trio.current_time)
        holder, waiting = Peer(), Peer()
        holder.share.progress.begin(trio.current_time())
        assert found.grow(holder.share, 100, lambda: None)
        with trio.fail_after(1.0 + 2 * CHECK_S):
            await grow(found, waiting.share, 100)
        assert holder.evicted
        found.release(waiting.share)


def test_who_gives_up_waiting_gets_nothing() -> None:
    found = budget(10)
    first, second, third = Peer().share, Peer().share, Peer().share
    granted: list[str] = []
    assert found.grow(first, 10, lambda: None)
    assert not found.grow(second, 10, lambda: granted.append("second"))
    assert not found.grow(third, 10, lambda: granted.append("third"))
    found.release(second)
    found.release(first)
    assert (found.held_bytes, granted) == (10, ["third"])


async def test_a_share_that_shrinks_makes_room() -> None:
    async with trio.open_nursery() as nursery:
        found = MemoryBudget(100, nursery.start_soon)
        first, second = Peer().share, Peer().share
        await found.reserve(first, 80)
        async with trio.open_nursery() as reserving:
            reserving.start_soon(found.reserve, second, 80)
            await trio.testing.wait_all_tasks_blocked()
            assert found.held_bytes == 80
            found.shrink(first, 20)
        assert found.held_bytes == 100
        found.shrink(second, 90)
        assert found.held_bytes == 100, "a share does not grow by shrinking"
        found.release(first)
        found.release(second)
        assert found.held_bytes == 0


async def test_a_share_whose_reservation_is_cancelled_holds_nothing_once_released() -> None:
    async with trio.open_nursery() as nursery:
        found = MemoryBudget(100, nursery.start_soon)
        first, second = Peer().share, Peer().share
        await found.reserve(first, 80)
        with trio.CancelScope() as scope:
            scope.cancel()
            await found.reserve(second, 80)
        assert scope.cancelled_caught
        found.release(second)
        found.release(first)
        assert found.held_bytes == 0


def test_without_a_bound_nobody_waits() -> None:
    found = budget(-1)
    assert found.grow(Peer().share, 1 << 40, lambda: None)
    assert found.grow(Peer().share, 1 << 40, lambda: None)


@given(
    frames=st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=4), min_size=1, max_size=8),
    bound=st.integers(0, 99),
)
async def test_every_frame_arrives_however_full_it_is_and_the_bound_holds_but_for_the_oldest(
    frames: list[list[int]], bound: int
) -> None:
    found = budget(bound)
    largest = max(map(sum, frames))

    async def arrive(steps: list[int]) -> None:
        share = Peer().share
        for step in steps:
            await grow(found, share, step)
            assert found.held_bytes <= bound + largest
            await trio.lowlevel.checkpoint()
        found.release(share)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            for steps in frames:
                nursery.start_soon(arrive, steps)
    assert found.held_bytes == 0


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
