"""Stalls of the event loop are logged with their cause, at a limited rate."""

import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from tests.broker.clients import running
from warmlog.broker.metrics.loop_guard import LoopGuard
from warmlog.broker.metrics.run_delay import RunDelay

LIMIT_S = 0.02  # the fixture's


@asynccontextmanager
async def watching(guard: LoopGuard) -> AsyncIterator[None]:
    with guard.watching():
        await trio.lowlevel.checkpoint()
        yield
        await trio.lowlevel.checkpoint()  # a stall is logged when the clock is read next


def hold_it(seconds: float = 5 * LIMIT_S) -> None:
    ends_at = time.perf_counter() + seconds
    while time.perf_counter() < ends_at:
        pass


async def one_that_holds(guard: LoopGuard) -> None:
    await trio.lowlevel.checkpoint()
    guard.begin("fetch")
    hold_it()


@pytest.fixture
def logs_each_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at a limited rate: a busy machine may add stalls."""
    monkeypatch.setattr("warmlog.broker.metrics.loop_guard.LOG_INTERVAL_S", 0.0)


@pytest.mark.usefixtures("logs_each_stall")
async def test_a_stall_is_logged_with_its_request_and_stack(guard: LoopGuard, caplog: pytest.LogCaptureFixture) -> None:
    async with watching(guard), trio.open_nursery() as nursery:
        nursery.start_soon(one_that_holds, guard)
    (line,) = [line for line in caplog.messages if "one_that_holds" in line]
    assert " ms by fetch: hold_it line " in line
    assert "unrolled_run" not in line
    assert guard.held >= 1


@pytest.mark.usefixtures("logs_each_stall")
async def test_a_stall_is_attributed_to_its_request_not_to_the_next(
    guard: LoopGuard, caplog: pytest.LogCaptureFixture
) -> None:
    async with watching(guard):
        guard.begin("produce")
        hold_it()
        guard.begin("fetch")
    (line,) = [line for line in caplog.messages if "hold_it" in line]
    assert " ms by produce: hold_it line " in line


async def one_that_keeps_the_gil() -> None:
    hold_it()


async def test_who_keeps_the_gil_has_a_name_the_second_time(
    guard: LoopGuard, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warmlog.broker.metrics.loop_guard.LOG_INTERVAL_S", 0.0)
    monkeypatch.setattr(sys, "_current_frames", dict)  # as if the thread that looks never got it
    monkeypatch.setattr(RunDelay, "seconds", lambda _: 0.0)  # however busy the machine is
    async with watching(guard):
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(one_that_keeps_the_gil)
    first, second = caplog.messages
    assert first.endswith(" ms: without releasing the GIL")
    assert "by tests.broker.metrics.test_loop_guard.one_that_keeps_the_gil: without releasing the GIL" in second


@contextmanager
def crowded_processor() -> Iterator[None]:
    """Let this thread share one processor with busy processes."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    others = [subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) for _ in range(4)]
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
        for other in others:
            other.kill()
            other.wait()


@pytest.mark.usefixtures("logs_each_stall")
async def test_who_waits_for_a_processor_is_not_blamed(guard: LoopGuard, caplog: pytest.LogCaptureFixture) -> None:
    async with watching(guard):
        with crowded_processor(), trio.fail_after(60):
            while "it waited for a processor that others used" not in caplog.text:
                hold_it()
                await trio.lowlevel.checkpoint()
    (line, *_) = [line for line in caplog.messages if "waited" in line]
    assert re.search(r" held for \d+ ms: .+; for \d+ ms of it, it waited", line)


@pytest.mark.parametrize("guard", [60], indirect=True)
async def test_a_loop_that_yields_in_time_is_not_logged(guard: LoopGuard, caplog: pytest.LogCaptureFixture) -> None:
    async with watching(guard):
        for _ in range(100):
            await trio.lowlevel.checkpoint()
    assert not caplog.messages
    assert guard.held == 0


async def test_a_sleeping_loop_is_not_stalled(guard: LoopGuard, caplog: pytest.LogCaptureFixture) -> None:
    async with watching(guard):
        await trio.sleep(2 * LIMIT_S)
    assert not caplog.messages


async def test_stalls_in_a_row_are_logged_at_a_limited_rate(guard: LoopGuard, caplog: pytest.LogCaptureFixture) -> None:
    async with watching(guard):
        for _ in range(4):
            hold_it(1.5 * LIMIT_S)
            await trio.lowlevel.checkpoint()
    assert guard.held >= 4
    assert len(caplog.messages) == 1


async def test_stalls_before_the_broker_serves_are_not_logged(
    guard: LoopGuard, caplog: pytest.LogCaptureFixture
) -> None:
    await trio.lowlevel.checkpoint()
    hold_it()
    async with watching(guard):
        pass
    hold_it()
    await trio.lowlevel.checkpoint()
    assert guard.held == 0
    assert not caplog.messages


async def test_nothing_stays_behind(guard: LoopGuard) -> None:
    before = set(threading.enumerate())
    async with watching(guard):
        (sampler,) = set(threading.enumerate()) - before
    assert not sampler.is_alive()


async def test_with_a_limit_of_0_nothing_is_watched() -> None:
    guard = LoopGuard(0)
    assert guard.clock is None
    before = set(threading.enumerate())
    with guard.watching():
        assert set(threading.enumerate()) <= before


async def test_a_broker_counts_stalls(guard: LoopGuard, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with running(tmp_path, http="127.0.0.1:0", guard=guard) as broker:
            with trio.fail_after(60):
                while "test_a_broker_counts_stalls" not in caplog.text:  # a slow start may have been logged
                    hold_it(0.1)
                    await trio.lowlevel.checkpoint()
            assert (await broker.scrape())["warmlog_loop_holds_total"] >= 1


async def test_a_short_stall_after_a_long_sleep_is_logged_without_a_stack(
    guard: LoopGuard, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sleeping loop is sampled less often: without a sample, the log must not blame the GIL."""
    monkeypatch.setattr(RunDelay, "seconds", lambda _: 0.0)  # however busy the machine is
    monkeypatch.setattr("warmlog.broker.metrics.loop_guard.QUIET_SAMPLES", 1)
    monkeypatch.setattr("warmlog.broker.metrics.loop_guard.QUIET_FACTOR", 1_000_000)
    async with watching(guard):
        while not guard.is_quiet:  # noqa: ASYNC110  # nothing tells us but asking
            await trio.sleep(LIMIT_S)
        hold_it()
        await trio.lowlevel.checkpoint()
        hold_it()
    assert caplog.messages[0].endswith("no stack was sampled, the loop had been idle")
