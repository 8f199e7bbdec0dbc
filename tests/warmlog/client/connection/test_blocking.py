"""The cluster's connections as a thread without an event loop uses them."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest

from tests.warmlog.client.connection.test_session import ALL, HELLO, metadata, reply
from warmlog.client.connection.blocking import BlockingCluster
from warmlog.client.errors import BrokerError, ConnectError, ConnectionLostError, RequestTimeoutError
from warmlog.client.settings import Settings
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.response import ErrorResponse, MetadataResponse
from warmlog.testing import Broker


@contextmanager
def server(*replies: bytes, keep_open: bool = False) -> Iterator[int]:
    """A server that sends one of these after each receive, then closes the connection (or waits); yields its port."""
    done = threading.Event()

    def serve() -> None:
        stream, _ = listener.accept()
        with stream:
            for each in replies:
                stream.recv(1 << 16)
                stream.sendall(each)
            if keep_open:
                done.wait()
            else:
                stream.recv(1 << 16)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            done.set()
            thread.join()


def connected(port: int, settings: Settings | None = None) -> BlockingCluster:
    return BlockingCluster(f"127.0.0.1:{port}", settings or Settings(), retry_s=0)


def test_an_error_reply_leaves_the_connection_usable() -> None:
    refusal = ErrorResponse(error=ErrorCode.INVALID_REQUEST, message="no")
    with server(reply(1, HELLO), reply(2, refusal), reply(3, metadata("c"))) as port, connected(port) as blocking:
        with pytest.raises(BrokerError, match="no"):
            blocking.run(blocking.cluster.ask(ALL, MetadataResponse))
        assert blocking.run(blocking.cluster.ask(ALL, MetadataResponse)).cluster_id == "c"


def test_requests_may_be_sent_ahead_of_replies() -> None:
    async def both() -> list[str | None]:
        connection = await blocking.cluster.open_any()
        replies = [connection.submit(ALL, MetadataResponse) for _ in range(2)]
        return [(await each.wait()).cluster_id for each in replies]

    replies = reply(2, metadata("one")) + reply(3, metadata("two"))
    with server(reply(1, HELLO), replies) as port, connected(port) as blocking:
        assert blocking.run(both()) == ["one", "two"]


def test_a_lost_connection_is_not_retried_without_time_for_it() -> None:
    with server(reply(1, HELLO)) as port, connected(port) as blocking:
        with pytest.raises(ConnectionLostError, match="closed the connection") as caught:
            blocking.run(blocking.cluster.ask(ALL, MetadataResponse))
        assert caught.value.is_retriable


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", reply(9, HELLO)])
def test_a_peer_that_does_not_speak_the_protocol_is_final(greeting: bytes) -> None:
    with server(greeting) as port, connected(port) as blocking:
        with pytest.raises(ConnectError, match=r"no warmlog broker at .* is it the native listener") as caught:
            blocking.run(blocking.cluster.start())
        assert not caught.value.is_retriable


def test_a_reply_that_is_overdue_is_a_timeout() -> None:
    with (
        server(reply(1, HELLO), keep_open=True) as port,
        connected(port, Settings(request_timeout_s=0.05)) as blocking,
        pytest.raises(RequestTimeoutError, match=r"did not reply within 0\.05 s"),
    ):
        blocking.run(blocking.cluster.ask(ALL, MetadataResponse))


def test_a_port_nobody_listens_on_is_a_connect_error() -> None:
    with (
        connected(1) as blocking,
        pytest.raises(ConnectError, match=r"cannot connect to 127\.0\.0\.1:1: Connection refused"),
    ):
        blocking.run(blocking.cluster.start())


def test_an_interrupted_call_leaves_nothing_behind() -> None:
    async def interrupted() -> None:
        anyio.get_current_task()
        raise KeyboardInterrupt

    async def forever() -> None:
        blocking._loop.call_soon(interrupt)
        await anyio.sleep_forever()

    def interrupt() -> None:
        raise KeyboardInterrupt

    with Broker() as broker, BlockingCluster(broker.native, Settings()) as blocking:
        for act in (interrupted, forever):
            with pytest.raises(KeyboardInterrupt):
                blocking.run(act())
        assert blocking.run(blocking.cluster.ask(ALL, MetadataResponse)).cluster_id


def test_closing_twice_is_closing_once() -> None:
    blocking = connected(1)
    blocking.close()
    blocking.close()
