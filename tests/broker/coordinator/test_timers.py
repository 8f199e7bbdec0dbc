"""Timers expire automatons when they are due."""

from dataclasses import dataclass

import pytest
import trio
from trio.testing import MockClock

from warmlog.broker.coordinator.timers import Timers


@dataclass(eq=False)
class Due:
    """An automaton with one deadline."""

    group_id: str
    wake_at_s: float

    def __str__(self) -> str:
        return f"group {self.group_id!r}"


async def test_a_group_that_fails_to_expire_does_not_stop_the_timers_of_others(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    expired: list[str] = []
    done = trio.Event()

    def expire(group: Due) -> None:
        if group.group_id == "bad":
            raise RuntimeError("a defect")
        expired.append(group.group_id)
        if group.group_id == "late":
            done.set()

    timers = Timers(expire)
    now = trio.current_time()
    for group in (Due("late", now + 2), Due("bad", now + 1), Due("good", now + 1)):
        timers.schedule(group)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run)
        await done.wait()
        nursery.cancel_scope.cancel()
    assert expired == ["good", "late"]
    assert "group 'bad': unexpected error in a timeout" in caplog.text


async def test_other_tasks_run_while_many_groups_expire(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warmlog.broker.coordinator.timers.PIECE_S", 0.0)
    expired: list[str] = []
    timers: Timers[Due] = Timers(lambda group: expired.append(group.group_id))
    due_at = trio.current_time() + 1
    for number in range(100):
        timers.schedule(Due(str(number), due_at))
    seen: set[int] = set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run)
        await trio.sleep_until(due_at)
        while len(expired) < 100:
            seen.add(len(expired))
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert len(seen) > 40


async def test_a_timer_that_is_forgotten_or_brought_forward_expires_once(autojump_clock: MockClock) -> None:
    expired: list[tuple[str, float]] = []
    timers: Timers[Due] = Timers(lambda item: expired.append((item.group_id, trio.current_time())))
    forgotten, forward, later = Due("forgotten", 1), Due("forward", 5), Due("later", 6)
    for item in (forgotten, forward, later):
        timers.schedule(item)
    timers.forget(forgotten)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run)
        await trio.sleep(2)
        forward.wake_at_s = 3
        timers.schedule(forward)
        await trio.sleep(20)
        nursery.cancel_scope.cancel()
    assert expired == [("forward", 3), ("later", 6)]
