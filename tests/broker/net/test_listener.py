"""A listener's stop, whenever it comes, and what it refuses."""

from pathlib import Path

import pytest
import trio

from broker.app import serve
from broker.config import load_settings
from protocol.request import MetadataRequest
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
    await serve(settings, native="127.0.0.1:0", http="none", ready=ready.append, stop=stop)
    assert ready == []
    async with running(tmp_path) as broker:  # and left the directory as it was
        await broker.connect()


async def test_who_connects_without_end_does_not_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path, {"max.connections": 1}) as broker:
        client = await broker.connect()
        for _ in range(20):
            refused = await broker.connect(hello=False)
            assert await refused.reply() is None
        assert (await client.ask(MetadataRequest())).topics == ()
    assert [record.message.partition(",")[0] for record in caplog.records] == [
        "native: 1 connections are all there may be"
    ]
