"""One interface to the two wire formats: frames to requests, responses to bytes."""

from collections.abc import Sized
from typing import Any, NamedTuple

from msgspec.structs import replace

from warmlog.broker.api.context import Context
from warmlog.protocol.errors import OutOfTurnError, ProtocolError
from warmlog.protocol.kafka.api import Codec, RefusedError
from warmlog.protocol.kafka.codec.bounds import NO_LIMIT, LargeMessageError
from warmlog.protocol.kafka.codec.engine import ENGINE
from warmlog.protocol.native import codec as native_codec
from warmlog.protocol.native.messages import FIRST_WITH_COMMITTED_FETCH
from warmlog.protocol.request import FetchRequest, HelloRequest, Isolation, Request
from warmlog.protocol.response import ErrorResponse, Response
from warmlog.protocol.weight import weight

LOOP_WORK = ENGINE.loop_work
MAX_VALUES = 1024  # values in a response that is encoded on the event loop: about 1 ms if field tables convert them


class ErrorReply(NamedTuple):
    """The reply to a frame that cannot be served; `call` as in `Wire`."""

    call: Any
    response: Response


class Wire:
    """The wire format of a listener, called `name`.

    `call` is the part of a request needed to encode its reply, such as the request id.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def decode(self, frame: memoryview, context: Context, limit: int = LOOP_WORK) -> tuple[Any, Request]:
        """Decode a frame to (call, request), and set the context's version. Raises ProtocolError.

        `limit` is in units of work; beyond it LargeMessageError is raised. Then call this in a worker thread with
        NO_LIMIT.
        """
        raise NotImplementedError

    def encode(
        self, call: Any, response: Response, *, throttle_ms: int = 0, limit: int = LOOP_WORK, max_bytes: int = NO_LIMIT
    ) -> list[Sized]:
        """Encode a reply to a frame: bytes and, for a fetch, its file slices. `limit` as in `decode`.

        `throttle_ms`: how long the client has to pause; only Kafka's protocol has a field for it. Raises
        ReplyTooLargeError if everything but the slices takes more than `max_bytes`.
        """
        raise NotImplementedError

    def refusal(self, error: ProtocolError) -> ErrorReply | None:
        """Return the reply to a frame that could not be decoded; None if the connection must close."""
        raise NotImplementedError


class NativeWire(Wire):
    """The native protocol, encoded with msgpack."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("native")

    def decode(self, frame: memoryview, context: Context, limit: int = LOOP_WORK) -> tuple[int, Any]:
        """Decode a frame to (request id, request); the first one must be a hello. Raises ProtocolError."""
        del limit  # native frames are bounded, so `limit` is not needed
        request_id, request = native_codec.decode_request(frame)
        version = context.session.protocol_version
        if version is None:
            if not isinstance(request, HelloRequest):
                raise OutOfTurnError(request_id)
            version = 0
        context.version = version
        if version < FIRST_WITH_COMMITTED_FETCH and isinstance(request, FetchRequest):
            request = replace(request, isolation=Isolation.READ_UNCOMMITTED)  # the reply cannot list aborted ones
        return request_id, request

    def encode(
        self, call: int, response: Response, *, throttle_ms: int = 0, limit: int = LOOP_WORK, max_bytes: int = NO_LIMIT
    ) -> list[Sized]:
        """Encode the reply's frame."""
        del throttle_ms  # the protocol has no field for it
        return native_codec.encode_response(call, response, limit, max_bytes)

    def refusal(self, error: ProtocolError) -> ErrorReply:
        """Return an error reply, with request id 0 if the frame's could not be read."""
        return ErrorReply(getattr(error, "request_id", 0), ErrorResponse(error=error.code, message=str(error)))


class KafkaWire(Wire):
    """Kafka's protocol."""

    __slots__ = ("_codec",)

    def __init__(self, codec: Codec) -> None:
        super().__init__("kafka")
        self._codec = codec

    def decode(self, frame: memoryview, context: Context, limit: int = LOOP_WORK) -> tuple[Any, Any]:
        """Decode a frame to (call, request), and set the session's client id. Raises ProtocolError."""
        call = self._codec.decode(frame, limit)
        context.session.client_id = call.client_id
        context.version = call.version
        return call, call.request

    def encode(
        self, call: Any, response: Response, *, throttle_ms: int = 0, limit: int = LOOP_WORK, max_bytes: int = NO_LIMIT
    ) -> list[Sized]:
        """Encode the reply's frame."""
        if limit != NO_LIMIT:  # because error entries and converted values are built before encoding starts
            source = call.request if type(response) is ErrorResponse else response
            if weight(source, MAX_VALUES) > MAX_VALUES:
                raise LargeMessageError(f"a reply of more than {MAX_VALUES} values")
        return self._codec.encode(call, response, throttle_ms, limit=limit, max_bytes=max_bytes)

    def refusal(self, error: ProtocolError) -> ErrorReply | None:
        """Return the API's own error reply if the request could be read; other frames have none in this protocol."""
        return ErrorReply(error.call, error.response) if isinstance(error, RefusedError) else None
