"""What a listener needs of a wire format: frames to requests, responses to bytes."""

from collections.abc import Sized
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from broker.api.context import Context
from protocol.errors import ErrorCode, ProtocolError
from protocol.kafka.api import Codec, RefusedError
from protocol.kafka.codec.bounds import NO_LIMIT, LargeMessageError
from protocol.kafka.codec.engine import ENGINE
from protocol.native import codec as native_codec
from protocol.native.messages import FIRST_WITH_COMMITTED_FETCH
from protocol.request import FetchRequest, HelloRequest, Isolation, Request
from protocol.response import ErrorResponse, Response
from protocol.weight import weight

LOOP_WORK = ENGINE.loop_work
MAX_VALUES = 1024  # within a response that is encoded on the event loop: about 1 ms where its table converts them


class Refusal(NamedTuple):
    """The answer to a frame that is no request that can be served; `call` as in Wire."""

    call: Any
    response: Response


class Wire(Protocol):
    """One wire format on one listener.

    `call` is what the format needs of a request to encode its reply: the request's id, or more.
    """

    name: str

    def decode(self, frame: memoryview, context: Context, limit: int = LOOP_WORK) -> tuple[Any, Request]:
        """Decode a frame to (call, request), which is the context's request from here on. Raises ProtocolError.

        limit: units of work after which LargeMessageError is raised. Then call it in a worker thread with NO_LIMIT.
        """

    def encode(
        self, call: Any, response: Response, *, limit: int = LOOP_WORK, max_bytes: int = NO_LIMIT
    ) -> list[Sized]:
        """Encode the reply's frame: bytes and, for a fetch, the slices as they were given. limit: as in `decode`.

        max_bytes: of all but the slices. Raises ReplyTooLargeError.
        """

    def refusal(self, error: ProtocolError) -> Refusal | None:
        """How a frame that `decode` or the framing refused is answered; None: the connection must close."""


class NativeWire:
    """The msgpack protocol."""

    name = "native"

    def decode(self, frame: memoryview, context: Context, limit: int = LOOP_WORK) -> tuple[int, Any]:
        """Decode a frame to (request id, request); the first one must be a hello. Raises ProtocolError."""
        del limit  # what may be in a frame is bounded
        request_id, request = native_codec.decode_request(frame)
        version = context.session.protocol_version
        if version is None:
            if not isinstance(request, HelloRequest):
                raise OutOfTurnError(request_id)
            version = 0
        context.version = version
        if version < FIRST_WITH_COMMITTED_FETCH and isinstance(request, FetchRequest):
            request = replace(request, isolation=Isolation.READ_UNCOMMITTED)  # its reply names no aborted transactions
        return request_id, request

    def encode(
        self, call: int, response: Response, *, limit: int = LOOP_WORK, max_bytes: int = NO_LIMIT
    ) -> list[Sized]:
        """Encode the reply's frame."""
        return native_codec.encode_response(call, response, limit, max_bytes)

    def refusal(self, error: ProtocolError) -> Refusal:
        """Every refusal has a reply, with request id 0 where the frame's could not be read."""
        return Refusal(getattr(error, "request_id", 0), ErrorResponse(error=error.code, message=str(error)))


class KafkaWire:
    """Kafka's protocol."""

    name = "kafka"

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def decode(self, frame: memoryview, context: Context, limit: int = LOOP_WORK) -> tuple[Any, Any]:
        """A frame as (call, request). What the client calls itself stands in every request. Raises ProtocolError."""
        call = self._codec.decode(frame, limit)
        context.session.client_id = call.client_id
        context.version = call.version
        return call, call.request

    def encode(
        self, call: Any, response: Response, *, limit: int = LOOP_WORK, max_bytes: int = NO_LIMIT
    ) -> list[Sized]:
        """Encode the reply's frame."""
        if limit != NO_LIMIT:  # an error, and what the tables make of a response, is computed before it is written
            source = call.request if type(response) is ErrorResponse else response
            if weight(source, MAX_VALUES) > MAX_VALUES:
                raise LargeMessageError(f"a reply of more than {MAX_VALUES} values")
        return self._codec.encode(call, response, limit=limit, max_bytes=max_bytes)

    def refusal(self, error: ProtocolError) -> Refusal | None:
        """What can be read is answered by the API's own reply; for anything else the protocol has no words."""
        return Refusal(error.call, error.response) if isinstance(error, RefusedError) else None


class OutOfTurnError(ProtocolError):
    """A request before the hello."""

    code = ErrorCode.INVALID_REQUEST

    def __init__(self, request_id: int) -> None:
        super().__init__("the first request of a connection must be hello")
        self.request_id = request_id
