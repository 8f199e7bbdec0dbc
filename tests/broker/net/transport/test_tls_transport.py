"""The transport of TLS by itself, against a client in memory: records in parts, many, damaged, and without data."""

import _ssl
import ctypes
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.broker.cluster.certificates import Authority
from warmlog.broker.net.transport.tls import STEP_BYTES, NotTlsError, TlsTransport


class Peers:
    """Both ends of a connection after the handshake."""

    def __init__(self, authority: Authority, store: Path) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(store)
        self.sock, ours = socket.socketpair()
        for end in (self.sock, ours):
            end.setblocking(False)
        self.transport = TlsTransport(ours, context)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        trusting = ssl.create_default_context(cafile=str(authority.ca))
        self.client = trusting.wrap_bio(self.incoming, self.outgoing, server_hostname="127.0.0.1")
        is_shaken = False
        while not is_shaken:
            self.exchange(self.client.do_handshake)
            is_shaken = self.transport.shake()
        self.exchange(lambda: None)

    def exchange(self, act: Callable[[], Any]) -> None:
        """Receive, act, and send."""
        with suppress(BlockingIOError):
            self.incoming.write(self.sock.recv(1 << 20))
        with suppress(ssl.SSLWantReadError):
            act()
        self.send()

    def send(self) -> None:
        """Send what the client has written."""
        self.sock.sendall(self.outgoing.read())

    def update_keys(self) -> None:
        """Write a key update that asks for another one, for which Python has no function."""
        # not the first libssl of the process: psycopg, for one, brings its own
        library = ctypes.CDLL(getattr(_ssl, "__file__", None))
        inner: Any = self.client._sslobj  # type: ignore[attr-defined]
        handle = ctypes.c_void_p.from_address(id(inner) + 3 * ctypes.sizeof(ctypes.c_void_p))
        assert library.SSL_key_update(handle, 1) == 1
        assert library.SSL_do_handshake(handle) == 1


@pytest.fixture
def peers(authority: Authority, store: Path) -> Iterator[Peers]:
    peers = Peers(authority, store)
    yield peers
    peers.sock.close()
    peers.transport.close()


def test_records_that_arrive_byte_by_byte_are_put_together(peers: Peers) -> None:
    peers.client.write(b"hello")
    found = b""
    for byte in peers.outgoing.read():
        peers.sock.send(bytes([byte]))
        try:
            found += peers.transport.recv(100)
        except BlockingIOError:
            assert peers.transport.received_bytes
    assert found == b"hello"
    assert peers.transport.received_bytes == 0


def test_all_records_that_were_received_are_returned(peers: Peers) -> None:
    for number in range(200):
        peers.client.write(b"%03d" % number)
    peers.send()
    assert peers.transport.recv(100) == b"".join(b"%03d" % number for number in range(200))
    with pytest.raises(BlockingIOError):
        peers.transport.recv(100)


def test_what_the_socket_does_not_accept_is_kept_and_counted(peers: Peers) -> None:
    data, sent, got = os.urandom(4 << 20), 0, b""
    with pytest.raises(BlockingIOError):
        while True:
            sent += peers.transport.send(memoryview(data)[sent:])
    assert 0 < peers.transport.unsent_bytes < STEP_BYTES + 1024
    while len(got) < len(data):
        if peers.transport.flush() and sent < len(data):
            sent += peers.transport.send(memoryview(data)[sent:])
        peers.incoming.write(peers.sock.recv(1 << 20))
        with suppress(ssl.SSLWantReadError):
            while True:
                got += peers.client.read(1 << 16)
    assert got == data


def test_the_end_of_a_stream_is_announced_and_understood(peers: Peers) -> None:
    peers.client.write(b"last words")
    peers.exchange(peers.client.unwrap)
    assert peers.transport.recv(100) == b"last words"
    assert peers.transport.recv(100) == b""
    peers.transport.close()
    peers.incoming.write(peers.sock.recv(1 << 16))
    peers.client.unwrap()  # raises without the announcement


def test_an_end_without_announcement_is_an_end(peers: Peers) -> None:
    peers.sock.close()
    assert peers.transport.recv(100) == b""


def test_records_without_data_are_not_processed_without_end(peers: Peers) -> None:
    for _ in range(100):
        peers.update_keys()
    peers.send()
    with pytest.raises(NotTlsError, match="records without data"):
        peers.transport.recv(100)


def test_a_few_key_updates_are_answered(peers: Peers) -> None:
    for _ in range(3):
        peers.update_keys()
        peers.client.write(b"x")
    peers.send()
    assert peers.transport.recv(100) == b"xxx"
    assert peers.transport.send(b"answer") == len(b"answer")
    peers.incoming.write(peers.sock.recv(1 << 16))
    assert peers.client.read(100) == b"answer"


def test_damaged_records_end_the_connection(peers: Peers) -> None:
    peers.client.write(b"hello")
    record = bytearray(peers.outgoing.read())
    record[-1] ^= 1
    peers.sock.send(record)
    with pytest.raises(ssl.SSLError, match=r"(?i)bad.record.mac"):
        peers.transport.recv(100)
    peers.transport.close()


@pytest.mark.parametrize("sent", [b"\0\0\0\x10hello", b"\x17\x03\x03\xff\xff....", b"\x17\x02\x03\0\x01."])
def test_what_is_no_record_ends_the_connection(peers: Peers, sent: bytes) -> None:
    peers.sock.send(sent)
    with pytest.raises(NotTlsError, match="does not speak TLS"):
        peers.transport.recv(100)
