"""The one timer of all waiting fetches."""

from random import Random

import trio
import trio.testing

from warmlog.broker.net.turns.deadlines import SPARE_TICKS, TICK_S, Deadlines


class Waiting:
    """Notes when it expired."""

    def __init__(self) -> None:
        self.expired_at: list[float] = []

    def expire(self) -> None:
        self.expired_at.append(trio.current_time())


async def test_each_expires_once_at_its_time_whatever_the_order(autojump_clock: trio.testing.MockClock) -> None:
    deadlines = Deadlines()
    delays = [Random(1).randrange(5_000) / 1000 for _ in range(200)]
    waiting = [Waiting() for _ in delays]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        for each, delay in zip(waiting, delays, strict=True):
            deadlines.add(each, delay)
        await trio.sleep(6)
        nursery.cancel_scope.cancel()
    for each, delay in zip(waiting, delays, strict=True):
        (at,) = each.expired_at
        assert delay - 1e-9 <= at <= delay + 2 * TICK_S
    assert len(deadlines) == 0


async def test_what_was_removed_does_not_expire(autojump_clock: trio.testing.MockClock) -> None:
    deadlines, gone, stays = Deadlines(), Waiting(), Waiting()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        deadlines.remove(gone, deadlines.add(gone, 1))
        tick = deadlines.add(stays, 1)
        await trio.sleep(2)
        deadlines.remove(stays, tick)
        nursery.cancel_scope.cancel()
    assert (gone.expired_at, len(stays.expired_at)) == ([], 1)


async def test_an_earlier_deadline_that_comes_later_is_kept(autojump_clock: trio.testing.MockClock) -> None:
    deadlines, late, early = Deadlines(), Waiting(), Waiting()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        deadlines.add(late, 100)
        await trio.sleep(1)
        deadlines.add(early, 1)
        await trio.sleep(2)
        nursery.cancel_scope.cancel()
    assert (len(early.expired_at), late.expired_at) == (1, [])


async def test_fetches_that_are_answered_before_their_time_leave_nothing_behind() -> None:
    deadlines, waiting = Deadlines(), Waiting()
    for number in range(20_000):
        deadlines.remove(waiting, deadlines.add(waiting, 10**6 + number))
    assert len(deadlines) == 0
    assert len(deadlines._ticks) <= SPARE_TICKS + 1
