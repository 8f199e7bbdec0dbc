"""The client side of a native connection: ids, reply order, invalid replies; and its blocking face."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from warmlog.client.connection import session as session_module
from warmlog.client.connection.blocking import BlockingConnection
from warmlog.client.connection.session import Session
from warmlog.client.errors import BrokerError, ConnectError, ConnectionLostError, RequestTimeoutError
from warmlog.client.settings import Settings
from warmlog.protocol.errors import ErrorCode, FrameError
from warmlog.protocol.native.codec import ReplyError, encode_response
from warmlog.protocol.request import MetadataRequest
from warmlog.protocol.response import ErrorResponse, HelloResponse, MetadataResponse

ALL = MetadataRequest()
HELLO = HelloResponse(version=1, broker="b", cluster_id="c", node_id=1, max_frame_bytes=1 << 20)


def reply(request_id: int, response: Any) -> bytes:
    return b"".join(map(bytes, encode_response(request_id, response)))


def metadata(cluster_id: str) -> MetadataResponse:
    return MetadataResponse(cluster_id=cluster_id, controller=1, brokers=(), topics=())


def received(session: Session, data: bytes) -> memoryview:
    """The first frame of what a peer sent."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        assert session.receive_from(ours) == len(data)
    frame = session.next_frame()
    assert frame is not None
    return frame


def test_replies_are_decoded_in_request_order() -> None:
    session = Session(0)
    session.encode(ALL)
    session.encode(ALL)
    first = received(session, reply(1, metadata("one")) + reply(2, metadata("two")))
    assert session.decode(first, MetadataResponse).cluster_id == "one"
    second = session.next_frame()
    assert second is not None
    assert session.decode(second, MetadataResponse).cluster_id == "two"
    assert session.next_frame() is None


def test_a_request_without_a_reply_takes_an_id_only() -> None:
    session = Session(0)
    session.encode(ALL, expects_reply=False)
    session.encode(ALL)
    assert session.decode(received(session, reply(2, metadata("c"))), MetadataResponse).cluster_id == "c"


def test_a_reply_with_another_id_is_an_error() -> None:
    session = Session(0)
    session.encode(ALL)
    with pytest.raises(ReplyError, match="reply to request 7 instead of 1"):
        session.decode(received(session, reply(7, metadata("c"))), MetadataResponse)


def test_a_reply_without_a_request_is_an_error() -> None:
    with pytest.raises(ReplyError, match="no request is outstanding"):
        received(Session(0), reply(1, metadata("c")))


@pytest.mark.parametrize("request_id", [1, 0])
def test_an_error_reply_raises_for_its_request_even_if_the_broker_could_not_read_the_id(request_id: int) -> None:
    session = Session(0)
    session.encode(ALL)
    refusal = ErrorResponse(error=ErrorCode.INVALID_REQUEST, message="no")
    with pytest.raises(BrokerError, match="no") as caught:
        session.decode(received(session, reply(request_id, refusal)), MetadataResponse)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_ids_wrap_to_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "MAX_REQUEST_ID", 2)
    session = Session(0)
    for _ in range(3):
        session.encode(ALL)
    data = b"".join(reply(number, metadata("c")) for number in (1, 2, 1))
    session.decode(received(session, data), MetadataResponse)
    for _ in range(2):
        frame = session.next_frame()
        assert frame is not None
        session.decode(frame, MetadataResponse)


def test_a_frame_over_the_limit_is_refused_at_its_length() -> None:
    with pytest.raises(FrameError):
        received(Session(0), b"HTTP/1.1 400 Bad Request\r\n\r\n")


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


def test_a_blocking_connection_survives_an_error_reply() -> None:
    refusal = ErrorResponse(error=ErrorCode.INVALID_REQUEST, message="no")
    with (
        server(reply(1, HELLO), reply(2, refusal), reply(3, metadata("c"))) as port,
        BlockingConnection("127.0.0.1", port, Settings()) as connection,
    ):
        with pytest.raises(BrokerError, match="no"):
            connection.ask(ALL, MetadataResponse)
        assert connection.ask(ALL, MetadataResponse).cluster_id == "c"


def test_a_blocking_connection_may_send_ahead_of_its_replies() -> None:
    both = reply(2, metadata("one")) + reply(3, metadata("two"))
    with (
        server(reply(1, HELLO), both) as port,
        BlockingConnection("127.0.0.1", port, Settings()) as connection,
    ):
        connection.send(ALL)
        connection.send(ALL)
        assert [connection.receive(MetadataResponse).cluster_id for _ in range(2)] == ["one", "two"]


def test_a_lost_blocking_connection_may_be_retried() -> None:
    with server(reply(1, HELLO)) as port, BlockingConnection("127.0.0.1", port, Settings()) as connection:
        with pytest.raises(ConnectionLostError, match="lost: closed by the broker") as caught:
            connection.ask(ALL, MetadataResponse)
        assert caught.value.is_retriable


@pytest.mark.parametrize(
    ("greeting", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is not the native listener of a broker"),
        (reply(9, HELLO), "sent an invalid reply"),
    ],
)
def test_a_peer_that_does_not_speak_the_protocol_is_final(greeting: bytes, message: str) -> None:
    with server(greeting) as port, pytest.raises(ConnectionLostError, match=message) as caught:
        BlockingConnection("127.0.0.1", port, Settings())
    assert not caught.value.is_retriable


def test_a_blocking_reply_that_is_overdue_is_a_timeout() -> None:
    settings = Settings(request_timeout_s=0.01)
    with server(keep_open=True) as port, pytest.raises(RequestTimeoutError, match=r"did not reply within 0\.01 s"):
        BlockingConnection("127.0.0.1", port, settings)


def test_a_port_nobody_listens_on_is_a_connect_error() -> None:
    with pytest.raises(ConnectError, match=r"cannot connect to 127\.0\.0\.1:1: Connection refused"):
        BlockingConnection("127.0.0.1", 1, Settings())
