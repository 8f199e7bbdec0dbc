"""What a listener needs of a wire format: frames to requests, responses to bytes."""

from collections.abc import Sized
from typing import Protocol

from broker.api.session import Session
from protocol.errors import ErrorCode, ProtocolError
from protocol.native import codec as native_codec
from protocol.request import HelloRequest, Request
from protocol.response import Response


class Wire(Protocol):
    """One wire format on one listener."""

    name: str

    def decode(self, frame: memoryview, session: Session) -> tuple[int, Request]:
        """A frame as (request id, request). Raises ProtocolError."""

    def encode(self, request_id: int, response: Response) -> list[Sized]:
        """The reply's frame: bytes and, for a fetch, the slices as they were given."""


class NativeWire:
    """The msgpack protocol."""

    name = "native"

    def decode(self, frame: memoryview, session: Session) -> tuple[int, Request]:
        """A frame as (request id, request); the first one must be a hello. Raises ProtocolError."""
        request_id, request = native_codec.decode_request(frame)
        if session.protocol_version is None and not isinstance(request, HelloRequest):
            raise OutOfTurnError(request_id)
        return request_id, request

    def encode(self, request_id: int, response: Response) -> list[Sized]:
        """The reply's frame."""
        return native_codec.encode_response(request_id, response)


class OutOfTurnError(ProtocolError):
    """A request before the hello."""

    code = ErrorCode.INVALID_REQUEST

    def __init__(self, request_id: int) -> None:
        super().__init__("the first request of a connection must be hello")
        self.request_id = request_id
