"""A link says at once when its connection fails, and for how long its peer has been silent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import pytest
import trio

from tests.broker.replication.peers.scripted_peer import GROUPS, Socket, scripted_peer
from warmlog.broker.replication.peers.connection import PeerSettings
from warmlog.broker.replication.peers.errors import PeerUnavailableError
from warmlog.broker.replication.peers.link import Link
from warmlog.protocol.kafka.peer_apis import LIST_GROUPS


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


async def mute(socket: Socket) -> None:
    await socket.until_closed()


async def test_a_peer_is_silent_from_when_its_answer_is_due() -> None:
    async def greet(socket: Socket) -> None:
        await socket.greet()
        await socket.until_closed()

    async with scripted_peer(greet) as port, link_to(port, Failures()) as link, trio.open_nursery() as nursery:
        connection = await link.connection()
        assert link.silence_s(trio.current_time() + 10) == 0, "nothing was asked"
        asked_at = trio.current_time()
        nursery.start_soon(partial(connection.ask, LIST_GROUPS, GROUPS, waits_s=2.0))
        await trio.testing.wait_all_tasks_blocked()
        assert link.silence_s(asked_at + 2) == 0
        assert link.silence_s(trio.current_time() + 4) >= 2
        nursery.cancel_scope.cancel()


async def test_a_peer_that_does_not_greet_is_silent() -> None:
    async with scripted_peer(mute) as port, link_to(port, Failures()) as link, trio.open_nursery() as nursery:
        nursery.start_soon(link.connection)
        await trio.testing.wait_all_tasks_blocked()
        assert link.silence_s(trio.current_time() + 3) >= 3
        nursery.cancel_scope.cancel()
