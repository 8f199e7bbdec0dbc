"""A listener's stop, whenever it comes; and what it does to the sockets it accepts."""

import gc
import socket
from pathlib import Path

import trio

from tests.broker.clients import running
from warmlog.broker.app import serve
from warmlog.broker.net.listener import SAME_MACHINE_BUFFER_BYTES
from warmlog.broker.settings.loading import load_settings


async def test_a_stop_that_comes_before_the_first_accept_is_not_lost(tmp_path: Path) -> None:
    with trio.fail_after(30):  # the stop's own deadline is later
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


async def test_a_peer_on_the_same_machine_has_a_small_send_buffer_unless_one_is_set(tmp_path: Path) -> None:
    """With the megabytes of the kernel's own sizing, large fetches from memory took half as long again."""
    found = []
    for settings in ({}, {"socket.send.buffer.bytes": 1 << 20}):
        async with running(tmp_path / str(len(found)), settings) as broker:
            client = await broker.connect()
            sizes = [
                sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
                for sock in gc.get_objects()
                if type(sock) is socket.socket and sock.fileno() >= 0 and _talks_to(sock, client.stream.socket)
            ]
            found.append(sizes)
    assert found == [[2 * SAME_MACHINE_BUFFER_BYTES], [2 << 20]]  # Linux doubles what it is told


def _talks_to(sock: socket.socket, other: trio.socket.SocketType) -> bool:
    try:
        return sock.getpeername() == other.getsockname()
    except OSError:
        return False
