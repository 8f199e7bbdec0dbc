"""The thread that sends replies, on real sockets."""

import errno
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from tests.broker.clients import Running, batch, produce_request
from warmlog.broker.net.turns import send_thread
from warmlog.broker.net.turns.send_thread import MIN_REPLIES, MIN_TURN_S, SharedSends
from warmlog.broker.net.turns.served import Served

CAPACITY = 1024
CLIENTS = 16


@pytest.fixture
def thread(start_thread: Any) -> Iterator[Any]:
    made = start_thread()
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, peer = socket.socketpair()
    ours.setblocking(False)
    with ours, peer:
        yield ours, peer


def results(thread: Any) -> list[tuple[Any, int]]:
    """Wait for all results."""
    found: list[tuple[Any, int]] = []
    while len(thread):
        thread.wait()
        found += thread.take()
    return found


def received(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += peer.recv(size - len(data))
    return data


def test_it_sends_in_order_and_tells_how_much(thread: Any, pair: tuple[socket.socket, socket.socket]) -> None:
    ours, peer = pair
    sent = [b"%d," % number for number in range(100)]
    for number, data in enumerate(sent):
        assert thread.put(number, ours.fileno(), data)
    assert results(thread) == [(number, len(data)) for number, data in enumerate(sent)]
    assert received(peer, len(b"".join(sent))) == b"".join(sent)


def test_it_takes_no_more_than_fits(thread: Any, pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    assert [thread.put(number, ours.fileno(), b"") for number in range(CAPACITY + 1)] == [*[True] * CAPACITY, False]
    assert len(results(thread)) == CAPACITY
    assert thread.put(0, ours.fileno(), b"")


def test_it_goes_on_after_a_sleep(thread: Any, pair: tuple[socket.socket, socket.socket]) -> None:
    ours, peer = pair
    for _ in range(3):
        thread.put(None, ours.fileno(), b"x")
        assert received(peer, 1) == b"x"
        assert results(thread) == [(None, 1)]


def test_a_peer_that_does_not_read_gets_a_part(thread: Any, pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    data = bytes(8 << 20)
    for number in range(2):
        thread.put(number, ours.fileno(), data)
    (_, first), (_, second) = results(thread)
    assert 0 < first < len(data)
    assert second == -errno.EAGAIN


def test_a_peer_that_is_gone_is_an_error_and_no_signal(thread: Any, pair: tuple[socket.socket, socket.socket]) -> None:
    ours, peer = pair
    peer.close()
    thread.put(None, ours.fileno(), b"x")
    assert results(thread) == [(None, -errno.EPIPE)]


def test_the_end_waits_for_what_was_put(start_thread: Any, pair: tuple[socket.socket, socket.socket]) -> None:
    ours, peer = pair
    made = start_thread()
    for _ in range(50):
        made.put(None, ours.fileno(), b"x")
    made.close()
    assert made.take() == [(None, 1)] * 50
    assert received(peer, 50) == b"x" * 50


def test_only_busy_turns_use_it(pair: tuple[socket.socket, socket.socket], started: list[Any]) -> None:
    ours, peer = pair
    owner = Served()
    sends = SharedSends()
    for replies, turn_s, is_busy in [
        (MIN_REPLIES - 1, 1.0, False),
        (1000, MIN_TURN_S, False),
        (MIN_REPLIES, 1.0, True),
    ]:
        sends.open(replies, turn_s)
        assert sends.put(owner, ours.fileno(), b"x") is is_busy
        assert len(started) == is_busy
        sends.close()
        assert not sends.put(owner, ours.fileno(), b"x")
    assert sends
    assert [*sends.end()] == [(owner, 1)]
    assert not sends
    assert received(peer, 1) == b"x"


async def test_a_lone_client_is_answered_without_it(broker: Running, started: list[Any]) -> None:
    client = await broker.connect()
    await client.create("orders")
    for _ in range(50):
        await client.produce("orders", batch(b"alone"))
    assert started == []


async def test_all_connections_share_it_and_get_their_replies_in_order(
    broker: Running, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send_thread, "MIN_REPLIES", 1)
    monkeypatch.setattr(send_thread, "MIN_TURN_S", -1.0)
    clients = [await broker.connect() for _ in range(CLIENTS)]
    await clients[0].create("orders")
    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(client.send, *[produce_request("orders", batch(b"x" * 100))] * 30)
    offsets = [[(await client.reply()).partitions[0].base_offset for _ in range(30)] for client in clients]
    assert all(each == sorted(each) for each in offsets)
    assert len({offset for each in offsets for offset in each}) == CLIENTS * 30
    assert len(started) == 1
