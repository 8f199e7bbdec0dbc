from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from struct import pack

import pytest
import trio

from tests.broker.clients import Running
from tests.broker.replication.peers.scripted_peer import GROUPS, Socket, encoded, framed, groups_named, scripted_peer
from warmlog.broker.replication.peers.connection import PeerConnection, PeerSettings
from warmlog.broker.replication.peers.errors import (
    PeerInvalidError,
    PeerRequestError,
    PeerUnavailableError,
    PeerUnsupportedError,
)
from warmlog.protocol.groups import FindCoordinatorRequest
from warmlog.protocol.kafka.api import Call
from warmlog.protocol.kafka.messages.cluster.discovery import ApiVersionsResponse, VersionRange
from warmlog.protocol.kafka.messages.topics.metadata import KafkaMetadataRequest
from warmlog.protocol.kafka.peer_apis import FETCH, FIND_COORDINATOR, LIST_GROUPS, METADATA

NEVER_S = 1000.0


@asynccontextmanager
async def connected(port: int, **settings: object) -> AsyncIterator[PeerConnection]:
    chosen = PeerSettings(**settings)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        connection = await PeerConnection.connect("127.0.0.1", port, chosen, nursery)
        yield connection
        connection.close()


@asynccontextmanager
async def greeted_peer(
    script: Callable[[Socket], Awaitable[None]], **settings: object
) -> AsyncIterator[PeerConnection]:
    """A connection to a peer that runs the script after the greeting."""

    async def whole(socket: Socket) -> None:
        await socket.greet()
        await script(socket)

    async with scripted_peer(whole) as port, connected(port, **settings) as connection:
        yield connection


async def refusal(port: int, **settings: object) -> str:
    """The text of the error with which connecting fails."""
    async with trio.open_nursery() as nursery:
        with pytest.raises((PeerInvalidError, PeerUnavailableError, PeerUnsupportedError)) as caught:
            chosen = PeerSettings(**settings)  # type: ignore[arg-type]
            await PeerConnection.connect("127.0.0.1", port, chosen, nursery)
    assert str(port) in str(caught.value)
    return f"{type(caught.value).__name__} {caught.value}"


async def test_our_broker_answers(broker: Running) -> None:
    await (await broker.connect()).create("orders", 3)
    async with connected(int(broker.addresses.kafka.rsplit(":", 1)[1])) as connection:
        found = await connection.ask(
            METADATA, KafkaMetadataRequest(topics=("orders", "gone"), topic_ids=(bytes(16),) * 2)
        )
        assert [len(topic.partitions) for topic in found.topics] == [3, 0]
        assert connection.supports(FETCH, 17)
        assert connection.answered == 1


async def test_requests_are_pipelined() -> None:
    """The peer answers only after it has received all of them."""
    count = 10

    async def script(socket: Socket) -> None:
        calls = [await socket.call() for _ in range(count)]
        await socket.stream.send_all(b"".join(encoded(call, groups_named(str(n))) for n, call in enumerate(calls)))
        await socket.until_closed()

    found = {}

    async def ask(number: int) -> None:
        found[number] = (await connection.ask(LIST_GROUPS, GROUPS)).groups[0].group

    async with greeted_peer(script) as connection:
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(ask, number)
        assert sorted(map(int, found.values())) == list(range(count))


async def test_a_cut_fails_every_waiting_request() -> None:
    async def script(socket: Socket) -> None:
        for _ in range(3):
            await socket.call()

    failures = []

    async def ask() -> None:
        with pytest.raises(PeerUnavailableError, match="closed it") as caught:
            await connection.ask(LIST_GROUPS, GROUPS)
        failures.append(caught.value)

    async with greeted_peer(script) as connection:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
        assert len(failures) == 3
        assert not connection.is_open
        with pytest.raises(PeerUnavailableError):
            await connection.ask(LIST_GROUPS, GROUPS)


@pytest.mark.parametrize("kept", [1, 4, 7, 20])
async def test_a_cut_within_a_response_fails_the_request(kept: int) -> None:
    async def script(socket: Socket) -> None:
        await socket.stream.send_all(encoded(await socket.call(), groups_named("a", "b"))[:kept])

    async with greeted_peer(script) as connection:
        with pytest.raises(PeerUnavailableError, match="connection lost"):
            await connection.ask(LIST_GROUPS, GROUPS)


def other_number(call: Call) -> bytes:
    data = encoded(call, groups_named("a"))
    return data[:4] + pack(">i", call.correlation_id + 1) + data[8:]


def twice(call: Call) -> bytes:
    return encoded(call, groups_named("a")) * 2


GARBAGE = {
    "another correlation id": (other_number, "correlation id 2 instead of 1"),
    "a negative length": (lambda _: pack(">i", -5), "length of -5"),
    "a length that is too large": (lambda _: pack(">i", 1 << 30), "length of 1073741824 bytes is out of range"),
    "a short frame": (lambda _: framed(b"ab"), "2 bytes is no response"),
    "an empty body": (lambda call: framed(pack(">i", call.correlation_id)), "no ListGroups response"),
    "garbage": (lambda call: framed(pack(">i", call.correlation_id) + b"\xff" * 50), "no ListGroups response"),
    "text": (lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n", "length of 1213486160 bytes"),
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_closes_the_connection_and_is_named(name: str) -> None:
    answer, problem = GARBAGE[name]

    async def script(socket: Socket) -> None:
        await socket.stream.send_all(answer(await socket.call()))
        await socket.until_closed()

    async with greeted_peer(script) as connection:
        with pytest.raises(PeerInvalidError, match=problem):
            await connection.ask(LIST_GROUPS, GROUPS)
        assert not connection.is_open


async def test_a_second_response_to_a_request_closes_the_connection() -> None:
    closed = trio.Event()

    async def script(socket: Socket) -> None:
        await socket.stream.send_all(twice(await socket.call()))
        await socket.until_closed()
        closed.set()

    async with greeted_peer(script) as connection:
        assert (await connection.ask(LIST_GROUPS, GROUPS)).groups[0].group == "a"
        await closed.wait()
        assert isinstance(connection.failure, PeerInvalidError)


async def test_a_response_over_the_limit_is_refused_before_it_arrives() -> None:
    async def script(socket: Socket) -> None:
        await socket.call()
        await socket.stream.send_all(pack(">i", 5001))
        await socket.until_closed()

    async with greeted_peer(script, max_response_bytes=5000) as connection:
        with pytest.raises(PeerInvalidError, match="the limit is 5000"):
            await connection.ask(LIST_GROUPS, GROUPS)


async def test_a_large_response_arrives() -> None:
    """Larger than the buffer that frames begin with, and more work than the event loop does at once."""
    names = [f"{number:0100}" for number in range(30_000)]

    async def script(socket: Socket) -> None:
        await socket.answer(await socket.call(), groups_named(*names))
        await socket.until_closed()

    async with greeted_peer(script) as connection:
        found = await connection.ask(LIST_GROUPS, GROUPS)
        assert [one.group for one in found.groups] == names


async def test_a_silent_peer_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async def script(socket: Socket) -> None:
        await socket.until_closed()

    async with greeted_peer(script, request_timeout_s=30) as connection:
        begun = trio.current_time()
        with pytest.raises(PeerUnavailableError, match="no response to ListGroups in 35 s"):
            await connection.ask(LIST_GROUPS, GROUPS, waits_s=5)
        assert trio.current_time() - begun == pytest.approx(35)
        assert not connection.is_open


async def test_a_cancelled_request_keeps_the_connection() -> None:
    asked, go = trio.Event(), trio.Event()

    async def script(socket: Socket) -> None:
        first = await socket.call()
        asked.set()
        await go.wait()
        await socket.answer(first, groups_named("late"))
        await socket.answer(await socket.call(), groups_named("next"))
        await socket.until_closed()

    async with greeted_peer(script) as connection:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.ask, LIST_GROUPS, GROUPS)
            await asked.wait()
            nursery.cancel_scope.cancel()
        go.set()
        assert (await connection.ask(LIST_GROUPS, GROUPS)).groups[0].group == "next"
        assert connection.answered == 1


async def test_a_request_that_cannot_be_encoded_keeps_the_connection() -> None:
    async def script(socket: Socket) -> None:
        await socket.answer(await socket.call(), groups_named("a"))
        await socket.until_closed()

    async with greeted_peer(script) as connection:
        with pytest.raises(PeerRequestError, match="FindCoordinator"):
            await connection.ask(FIND_COORDINATOR, FindCoordinatorRequest(keys=("x" * 40_000,)))
        assert (await connection.ask(LIST_GROUPS, GROUPS)).groups[0].group == "a"


async def test_an_api_that_the_peer_lacks_is_an_error_that_keeps_the_connection() -> None:
    async def script(socket: Socket) -> None:
        only = VersionRange(key=16, first=0, last=4)
        await socket.answer(await socket.call(), ApiVersionsResponse(apis=(only,)))
        await socket.answer(await socket.call(), groups_named("a"))
        await socket.until_closed()

    async with scripted_peer(script) as port, connected(port) as connection:
        with pytest.raises(PeerUnsupportedError, match="does not support Metadata"):
            await connection.ask(METADATA, KafkaMetadataRequest())
        assert (await connection.ask(LIST_GROUPS, GROUPS)).groups[0].group == "a"


async def test_a_peer_that_is_not_kafka_is_named() -> None:
    async def http(socket: Socket) -> None:
        await socket.stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await socket.until_closed()

    async with scripted_peer(http) as port:
        assert "PeerInvalidError" in await refusal(port)


async def test_a_peer_that_closes_instead_of_greeting_is_named() -> None:
    async def closing(socket: Socket) -> None:
        await socket.call()

    async with scripted_peer(closing) as port:
        assert "is it a Kafka listener without TLS?" in await refusal(port)


async def test_a_peer_that_never_greets_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async with scripted_peer(Socket.until_closed) as port:
        assert "no connection in 3 s" in await refusal(port, connect_timeout_s=3)


async def test_nobody_listens() -> None:
    async with scripted_peer(Socket.until_closed) as port:
        pass
    assert "PeerUnavailableError" in await refusal(port)
