"""Timers look at groups when these want to be looked at."""

from dataclasses import dataclass

import pytest
import trio
from trio.testing import MockClock

from broker.groups.timers import Timers


@dataclass(eq=False)
class Due:
    """As much of a group as timers know."""

    group_id: str
    wake_at_s: float


async def test_a_group_that_cannot_be_looked_at_keeps_no_other_from_its_turn(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    looked: list[str] = []
    done = trio.Event()

    def look(group: Due) -> None:
        if group.group_id == "bad":
            raise RuntimeError("a defect")
        looked.append(group.group_id)
        if group.group_id == "late":
            done.set()

    timers = Timers(look)  # type: ignore[arg-type]
    now = trio.current_time()
    for group in (Due("late", now + 2), Due("bad", now + 1), Due("good", now + 1)):
        timers.schedule(group)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run)
        await done.wait()
        nursery.cancel_scope.cancel()
    assert looked == ["good", "late"]
    assert "group 'bad': its time-outs could not be served" in caplog.text
