"""The client side of a native connection: ids, reply order, invalid replies."""

import socket
from typing import Any

import pytest

from warmlog.client.connection import session as session_module
from warmlog.client.connection.session import Session
from warmlog.client.errors import BrokerError
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
