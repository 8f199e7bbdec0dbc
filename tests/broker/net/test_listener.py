"""A listener's stop, whenever it comes."""

from pathlib import Path

import trio

from broker.app import serve
from broker.config import load_settings
from tests.broker.clients import running


async def test_a_stop_that_comes_before_the_first_accept_is_not_lost(tmp_path: Path) -> None:
    with trio.fail_after(5):  # the stop's own deadline is later
        for attempt in range(5):
            async with running(tmp_path / str(attempt), {"warmlog.stop.timeout.ms": 60_000}, stop_at_once=True):
                pass


async def test_a_stop_that_comes_while_logs_are_opened_ends_the_start(tmp_path: Path) -> None:
    stop = trio.Event()
    stop.set()
    settings = load_settings(assignments=[f"log.dirs={tmp_path}"])
    ready: list[object] = []
    await serve(settings, kafka="none", native="127.0.0.1:0", http="none", ready=ready.append, stop=stop)
    assert ready == []
    async with running(tmp_path) as broker:  # and left the directory as it was
        await broker.connect()
