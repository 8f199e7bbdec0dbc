"""A listener's stop, whenever it comes."""

from pathlib import Path

import trio

from tests.broker.clients import running


async def test_a_stop_that_comes_before_the_first_accept_is_not_lost(tmp_path: Path) -> None:
    with trio.fail_after(5):  # the stop's own deadline is later
        for attempt in range(5):
            async with running(tmp_path / str(attempt), {"warmlog.stop.timeout.ms": 60_000}, stop_at_once=True):
                pass
