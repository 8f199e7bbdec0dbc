"""The rate of what is fetched, on a clock that jumps."""

import trio
from trio.testing import MockClock

from warmlog.broker.replication.throttle import Throttle


async def test_without_a_rate_nothing_waits(autojump_clock: MockClock) -> None:
    throttle = Throttle()
    await throttle.passed(1 << 30)
    assert trio.current_time() == autojump_clock.current_time() == 0
    assert throttle.at_most(1000) == 1000
    assert throttle.bytes == 1 << 30


async def test_bytes_take_the_time_that_the_rate_gives_them(autojump_clock: MockClock) -> None:
    throttle = Throttle(lambda: 100)
    assert throttle.at_most(1000) == 100
    begun = trio.current_time()
    for _ in range(10):
        await throttle.passed(50)
    assert abs(trio.current_time() - begun - 5) < 0.01


async def test_a_pause_is_made_up_for_as_far_as_a_burst_goes(autojump_clock: MockClock) -> None:
    throttle = Throttle(lambda: 100, burst_s=2.0)
    await trio.sleep(60)
    throttle.count(200)
    assert throttle.delay_s == 0
    throttle.count(50)
    assert throttle.delay_s == 0.5
    await trio.sleep(0.5)
    assert throttle.delay_s == 0


async def test_a_transfer_that_is_never_held_up_delays_others_by_a_second(autojump_clock: MockClock) -> None:
    throttle = Throttle(lambda: 100)
    throttle.count(10_000, is_held_up=False)
    assert throttle.delay_s == 1.0
    throttle.count(100)
    throttle.count(10_000, is_held_up=False)
    assert throttle.delay_s == 2.0


async def test_several_fetchers_share_the_rate(autojump_clock: MockClock) -> None:
    throttle = Throttle(lambda: 100)
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(throttle.passed, 100)
    assert abs(trio.current_time() - begun - 4) < 0.01


async def test_a_rate_that_is_raised_ends_the_wait(autojump_clock: MockClock) -> None:
    rate = 1
    throttle = Throttle(lambda: rate)
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(throttle.passed, 1000)
        await trio.sleep(3.5)
        rate = 0
    assert trio.current_time() - begun < 5
    await throttle.passed(1000)
    assert trio.current_time() - begun < 5
