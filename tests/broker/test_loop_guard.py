"""What holds the loop is told: who it was, and where, and not too often."""

import logging
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from broker.loop_guard import LoopGuard
from tests.broker.clients import running

LIMIT_S = 0.02


@asynccontextmanager
async def guarded(limit_s: float = LIMIT_S) -> AsyncIterator[LoopGuard]:
    guard = LoopGuard(limit_s)
    with guard.watching():
        await trio.lowlevel.checkpoint()  # it sees the steps that begin from now on
        yield guard
        await trio.lowlevel.checkpoint()


def hold_it(seconds: float = 5 * LIMIT_S) -> None:
    ends_at = time.perf_counter() + seconds
    while time.perf_counter() < ends_at:
        pass


async def one_that_holds(guard: LoopGuard) -> None:
    await trio.lowlevel.checkpoint()
    guard.doing = "fetch"
    hold_it()


async def test_a_task_that_holds_the_loop_is_named_with_its_request_and_its_stack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with guarded() as guard, trio.open_nursery() as nursery:
        nursery.start_soon(one_that_holds, guard)
    (line,) = caplog.messages
    assert "one_that_holds, fetch: hold_it line " in line
    assert guard.held == 1


async def test_steps_that_give_way_in_time_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    async with guarded(60) as guard:
        for _ in range(100):
            await trio.lowlevel.checkpoint()
    assert not caplog.messages
    assert guard.held == 0


async def test_a_loop_that_is_held_all_the_time_is_told_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    async with guarded() as guard:
        for _ in range(4):
            hold_it(1.5 * LIMIT_S)
            await trio.lowlevel.checkpoint()
    assert guard.held == 4
    assert len(caplog.messages) == 1


async def test_nothing_stays_behind() -> None:
    before = threading.active_count()
    async with guarded():
        assert threading.active_count() == before + 1
    assert threading.active_count() == before
    async with guarded(0) as guard:
        hold_it(2 * LIMIT_S)
    assert guard.held == 0


async def test_a_broker_counts_what_held_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with running(tmp_path, {"warmlog.loop.stall.log.ms": 20}, http="127.0.0.1:0") as broker:
            with trio.fail_after(60):
                while "test_a_broker_counts_what_held_it" not in caplog.text:  # a slow start may have been told
                    hold_it(0.1)
                    await trio.lowlevel.checkpoint()
            assert (await broker.scrape())["warmlog_loop_holds_total"] >= 1
