"""What the client logs while no broker can be reached."""

import logging

import pytest
import trio
from trio.testing import MockClock

from warmlog import ConnectError
from warmlog.client.connection.outage import Outage

GONE = ConnectError("cannot connect to somewhere")


def test_an_outage_is_logged_once_after_a_second_and_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "warmlog.client")
    clock = MockClock()

    async def main() -> None:
        outage = Outage()
        for _ in range(2):  # short ones
            outage.attempt_failed(GONE)
            clock.jump(0.9)
            outage.attempt_failed(GONE)
            outage.end()
        assert caplog.messages == []
        for _ in range(60):
            outage.attempt_failed(GONE)
            clock.jump(1)
        assert caplog.messages == ["cannot connect to somewhere; retrying"]
        outage.end()
        outage.end()
        assert caplog.messages[1:] == ["connected again after 60 s"]

    trio.run(main, clock=clock)
