"""The client side of a native connection without I/O: requests to bytes, bytes to replies.

`Connection` moves bytes between a socket and a `Session`.

Invariants:
1. The broker replies in request order. A reply's id only confirms the match; any other id is a `ReplyError`.
2. A request that gets no reply (produce with acks=0) takes an id and leaves nothing outstanding.
"""

import socket
from collections import deque
from typing import TypeVar

from warmlog.client.errors import broker_error
from warmlog.protocol.frame import DEFAULT_MAX_FRAME_BYTES, FrameReader
from warmlog.protocol.native.codec import ReplyError, decode_response, encode_request
from warmlog.protocol.native.messages import VERSIONS, NativeRequest
from warmlog.protocol.request import HelloRequest, Value
from warmlog.protocol.response import ErrorResponse

R = TypeVar("R", bound=Value)

# Ids start at 1, since the broker answers with id 0 when it cannot read a request's id.
MAX_REQUEST_ID = (1 << 32) - 1
RECEIVE_BYTES = 64 << 10


class Session:
    """Request ids, outstanding requests and received bytes of one connection. Not thread-safe.

    `max_reply_bytes`: size limit of records in one reply, on top of the frame limit.
    """

    __slots__ = ("_last_id", "_outstanding", "_reader")

    def __init__(self, max_reply_bytes: int) -> None:
        self._reader = FrameReader(max_reply_bytes + DEFAULT_MAX_FRAME_BYTES)
        self._outstanding: deque[int] = deque()
        self._last_id = 0

    @staticmethod
    def hello(client: str) -> HelloRequest:
        """Return the first request of a connection. `client`: name for the broker's logs."""
        return HelloRequest(versions=VERSIONS, client=client)

    def encode(self, request: NativeRequest, *, expects_reply: bool = True) -> bytes:
        """Return the request's frame, and expect its reply after all earlier replies."""
        request_id = self._last_id % MAX_REQUEST_ID + 1
        encoded = encode_request(request_id, request)
        self._last_id = request_id
        if expects_reply:
            self._outstanding.append(request_id)
        return encoded

    @property
    def is_within_frame(self) -> bool:
        """Whether part of a reply has been received."""
        return self._reader.is_within_frame

    def receive_from(self, source: socket.socket) -> int:
        """Call the socket's receive once; return the number of bytes, 0 at the end of the stream.

        Raises OSError from the socket, FrameError. The rest of a large reply is received directly into its own buffer.
        """
        buffer = self._reader.buffer_for_next()
        if buffer is None:
            data = source.recv(RECEIVE_BYTES)
            self._reader.feed(data)
            return len(data)
        count = source.recv_into(buffer)
        self._reader.received(count)
        return count

    def next_frame(self) -> memoryview | None:
        """Return the next complete reply frame, or None until more is received. Raises FrameError, ReplyError."""
        frame = self._reader.next_frame()
        if frame is not None and not self._outstanding:
            raise ReplyError("no request is outstanding")
        return frame

    def decode(self, frame: memoryview, response_type: type[R]) -> R:
        """Decode the reply to the oldest outstanding request.

        Raises BrokerError for an error reply, ReplyError and other ProtocolErrors for an invalid one.
        """
        request_id, response = decode_response(frame, response_type)
        expected = self._outstanding[0]
        failed = isinstance(response, ErrorResponse)
        if request_id != expected and not (failed and request_id == 0):
            raise ReplyError(f"reply to request {request_id} instead of {expected}")
        self._outstanding.popleft()
        if isinstance(response, ErrorResponse):
            raise broker_error(response.error, response.message)
        return response
