"""A link says at once when its connection fails."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio

from tests.broker.replication.peers.scripted_peer import Socket, scripted_peer
from warmlog.broker.replication.peers.connection import PeerSettings
from warmlog.broker.replication.peers.errors import PeerUnavailableError
from warmlog.broker.replication.peers.link import Link


class Failures:
    """Counts failures."""

    def __init__(self) -> None:
        self.count = 0
        self._first = trio.Event()

    def note(self) -> None:
        self.count += 1
        self._first.set()

    async def first(self) -> None:
        await self._first.wait()


@asynccontextmanager
async def link_to(port: int, failures: Failures) -> AsyncIterator[Link]:
    async with trio.open_nursery() as nursery:
        link = Link(lambda: ("127.0.0.1", port), PeerSettings(), nursery, Random(1), failures.note)
        yield link
        link.close()


async def test_a_refused_connection_is_a_failure() -> None:
    async with scripted_peer(Socket.until_closed) as port:
        pass
    failures = Failures()
    async with link_to(port, failures) as link:
        with pytest.raises(PeerUnavailableError):
            await link.connection()
    assert failures.count == 1


async def test_a_peer_that_closes_an_idle_connection_is_a_failure_at_once() -> None:
    async def closing(socket: Socket) -> None:
        await socket.greet()

    failures = Failures()
    async with scripted_peer(closing) as port, link_to(port, failures) as link:
        await link.connection()
        await failures.first()
    assert failures.count == 1


async def test_a_connection_that_is_closed_or_given_up_here_is_no_failure() -> None:
    async def patient(socket: Socket) -> None:
        await socket.greet()
        await socket.until_closed()

    failures = Failures()
    async with scripted_peer(patient) as port, link_to(port, failures) as link:
        (await link.connection()).give_up()
        await link.connection()
        link.close()
        await trio.testing.wait_all_tasks_blocked()
    assert failures.count == 0
