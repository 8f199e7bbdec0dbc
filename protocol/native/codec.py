"""Native requests and replies to bytes and back.

Owns: the layout of a frame's msgpack map. Must not know: sockets, who answers, what a batch holds.

    request   length, {"op": name, "id": uint32, ...the request's fields}
    reply     length, {"id": uint32, ...the response's fields}
    failed    length, {"id": uint32, "error": code, "message": text or nil}

Invariants:
1. What is decoded has been checked: every field there or defaulted, of its type and range, and no other; the error
   names the field. The check runs inside the decoder, field by field, so what a hostile frame can make it allocate is
   bounded by a small multiple of the frame's size.
2. Record data is not copied on its way in: it is a view of the frame.
3. Requests are written by the msgpack package and read by msgspec: reading needs types and views, replies are many,
   and so two implementations of the format meet in every exchange.
4. Of the records of a fetch reply nothing but their len() is used. They stay apart from the bytes around them (the
   encoder returns an ordered list), so that a slice of a file can go from the file to the socket inside the kernel; and
   still the whole frame is one valid msgpack map.
"""

from collections.abc import Iterator, Sized
from functools import reduce
from operator import or_
from struct import Struct
from typing import Annotated, Any, TypeVar

import msgspec
from msgpack import packb
from msgspec import UNSET, DecodeError, Meta, defstruct
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import asdict, replace

from protocol.errors import ErrorCode, ProtocolError
from protocol.frame import LENGTH_SIZE
from protocol.kafka.codec.bounds import NO_LIMIT, LargeMessageError
from protocol.native.messages import OPERATION_NAMES, OPERATIONS, NativeRequest
from protocol.request import ProduceRequest, Value
from protocol.response import ErrorResponse, FetchedPartition, FetchResponse
from protocol.weight import weight

RequestId = Annotated[int, Meta(ge=0, lt=1 << 32)]
R = TypeVar("R", bound=Value)

# A map of up to 15 pairs is one byte with the count in its low bits; no value here comes near. So adding to that byte
# makes room for more pairs.
_REQUEST_START = Struct(">iB")  # frame length, map
_REPLY_START = Struct(">iB4sI")  # frame length, map, "id" and the mark of a uint32, id
_ID_VALUE = Struct(">I")
_ID = b"\xa2id\xce"
_BIN32 = Struct(">BI")  # its mark, length
_BIN32_MARK = 0xC6
_EMPTY_BIN = b"\xc4\x00"
_NIL = b"\xc0"
_FIXARRAY = 0x90
_FIXMAP = 0x80
_ARRAY32 = Struct(">BI")
_ARRAY32_MARK = 0xDD
# A frame is decoded in one go, at some 5 ms a MiB where it holds nothing but small values. Records are not looked at.
MAX_PLAIN_BYTES = 1 << 20
PIECE = 256  # values that are encoded in one go where a response is large
MAX_SHOWN = 300  # characters of what a frame holds that go into a message
MAX_ODD_SIZE = 400  # bytes of an "op" or "id" that are looked at, to be shown
# What the decoder raises: malformed or of a wrong type, text that is no UTF-8, nested too deeply.
_UNREADABLE = (DecodeError, UnicodeDecodeError, RecursionError)


class RequestError(ProtocolError):
    """A frame that is no valid request. The stream itself is still sound.

    `request_id` is its id where that could be read, else 0.
    """

    def __init__(self, message: str, *, code: ErrorCode = ErrorCode.INVALID_REQUEST, request_id: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.request_id = request_id


class ReplyError(ProtocolError):
    """A frame that is no valid reply to what was asked."""


class _Envelope(msgspec.Struct, frozen=True):
    """What can be read of a request that is wrong elsewhere. Raw, since what stands there may be anything."""

    op: msgspec.Raw = msgspec.Raw(_NIL)
    id: msgspec.Raw = msgspec.Raw(_NIL)


def _in_frame(kind: type[Value], **config: Any) -> type[Any]:
    """The value as a frame holds it: with "id", and what `config` adds (a request's "op")."""
    return defstruct(f"{kind.__name__}Frame", [("id", RequestId)], bases=(kind,), frozen=True, kw_only=True, **config)


_encoder = Encoder()
_requests = [_in_frame(op.request, tag_field="op", tag=op.name) for op in OPERATIONS]
_request_decoder: Decoder[Any] = Decoder(reduce(or_, _requests))
_envelope_decoder = Decoder(_Envelope)
_reply_decoders: dict[type[Value], Decoder[Any]] = {op.received: Decoder(_in_frame(op.received)) for op in OPERATIONS}
_error_decoder: Decoder[Any] = Decoder(_in_frame(ErrorResponse))
_ops: dict[type[Value], bytes] = {op.request: b"\xa2op" + _encoder.encode(op.name) + _ID for op in OPERATIONS}
_PRODUCE = b"\xa2op" + _encoder.encode(ProduceRequest.api)
_NO_FETCH = _encoder.encode(FetchResponse(partitions=()))[:-1]  # what precedes the array of partitions
# The error code by the place of a field, where it is not INVALID_REQUEST.
_codes = {"$.acks": ErrorCode.INVALID_REQUIRED_ACKS}


def decode_request(frame: memoryview | bytes) -> tuple[int, NativeRequest]:
    """Decode the id and the request that a frame (without its length) holds. Records are views of the frame.

    The request is of a subclass that has the id beside the request's own fields.

    Raises RequestError, whose text is fit to be shown to whoever wrote the client.
    """
    is_large = len(frame) > MAX_PLAIN_BYTES
    if is_large and frame[1 : 1 + len(_PRODUCE)] != _PRODUCE:
        raise RequestError(
            f"a request of {len(frame)} bytes: only produce, with 'op' as its first key, may be larger than"
            f" {MAX_PLAIN_BYTES}; ask for less at once"
        )
    try:
        framed = _request_decoder.decode(frame)
    except _UNREADABLE as problem:
        if is_large:  # looking for its id might take long
            raise RequestError(f"produce: {str(problem)[:MAX_SHOWN]}") from None
        raise _request_error(frame, problem) from None
    request: NativeRequest = framed
    return framed.id, request


def encode_response(request_id: int, response: Value, limit: int = NO_LIMIT) -> list[Sized]:
    """Encode the whole reply frame in order: bytes, and of a fetch the `records` objects as they were given.

    limit: values within the response beyond which LargeMessageError is raised: then encode it in a worker thread,
    without the limit. There a large response is encoded in pieces, so that other threads can run.
    """
    if limit != NO_LIMIT and weight(response, limit) > limit:
        raise LargeMessageError("more work than the event loop may do at once")
    if isinstance(response, FetchResponse):
        return _encode_fetch(request_id, response)
    body = _encoder.encode(response) if limit != NO_LIMIT else b"".join(_pieces(response))
    return [_reply_start(request_id, body, size=len(body)) + body[1:]]


def _pieces(value: Any) -> Iterator[bytes]:
    """Encode a value as the encoder does, in pieces that are quickly made."""
    if isinstance(value, tuple) and len(value) > PIECE:
        yield _array_header(len(value))
        for each in value:
            yield from _pieces(each)
    elif isinstance(value, Value) and weight(value, PIECE) > PIECE:
        fields = [(name, getattr(value, name)) for name in value.__struct_fields__]
        given = [(name, field) for name, field in fields if field is not UNSET]
        yield bytes([_FIXMAP | len(given)])
        for name, field in given:
            yield _encoder.encode(name)
            yield from _pieces(field)
    else:
        yield _encoder.encode(value)


def encode_request(request_id: int, request: NativeRequest) -> bytes:
    """The whole request frame."""
    body: bytes = packb(request, default=asdict)
    op = _ops[type(request)]
    length = 1 + len(op) + _ID_VALUE.size + len(body) - 1
    start = _REQUEST_START.pack(length, body[0] + 2)
    return b"".join((start, op, _ID_VALUE.pack(request_id), memoryview(body)[1:]))


def decode_response(frame: memoryview | bytes, response_type: type[R]) -> tuple[int, R | ErrorResponse]:
    """The id and the reply that a frame (without its length) holds: the type asked for, or an ErrorResponse.

    Ask for a fetch by `messages.ReceivedFetch`; its records are views of the frame. Raises ReplyError.
    """
    kind: type[Value] = response_type
    try:
        framed = _reply_decoders[response_type].decode(frame)
    except _UNREADABLE as problem:
        kind, framed = ErrorResponse, _decode_error(frame, problem)
    if getattr(framed, "error", ErrorCode.NONE) is not ErrorCode.NONE:  # some replies have a place for it themselves
        return framed.id, ErrorResponse(error=framed.error, message=framed.message)
    fields = asdict(framed)
    request_id: int = fields.pop("id")
    reply: Any = kind(**fields)
    return request_id, reply


def _request_error(frame: memoryview | bytes, problem: Exception) -> RequestError:
    """Say what is wrong with a frame, under its request's id if that can be found."""
    reason = str(problem)[:MAX_SHOWN]
    try:
        envelope = _envelope_decoder.decode(frame)
        op, found_id = _small(envelope.op), _small(envelope.id)
    except _UNREADABLE:
        return RequestError(f"not a request: {reason}")
    request_id = found_id if _is_request_id(found_id) else 0
    if not isinstance(op, str) or op not in OPERATION_NAMES:
        known = ", ".join(OPERATION_NAMES)
        return RequestError(f"unknown op {op!r:.80}: known are {known}", request_id=request_id)
    code = next((code for place, code in _codes.items() if f"`{place}`" in reason), ErrorCode.INVALID_REQUEST)
    return RequestError(f"{op}: {reason}", code=code, request_id=request_id)


def _small(value: msgspec.Raw) -> Any:
    """A value as it stands in a frame; of a large one its size, in words."""
    size = len(memoryview(value))
    return msgspec.msgpack.decode(value) if size <= MAX_ODD_SIZE else f"of {size} bytes"


def _is_request_id(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 32


def _decode_error(frame: memoryview | bytes, problem: Exception) -> Any:
    """The frame as the error that the broker sent instead; if it is none either, `problem` is what is wrong with it."""
    try:
        return _error_decoder.decode(frame)
    except _UNREADABLE:
        raise ReplyError(f"not the reply to what was asked: {problem}") from None


def _reply_start(request_id: int, body: bytes, *, size: int) -> bytes:
    """Length, map and id of a reply whose encoded value begins with `body` and takes `size` bytes in all."""
    return _REPLY_START.pack(_REPLY_START.size - LENGTH_SIZE + size - 1, body[0] + 1, _ID, request_id)


def _encode_fetch(request_id: int, response: FetchResponse) -> list[Sized]:
    """Encode around the records: each partition is encoded with none; their bin header and they themselves follow."""
    head = _NO_FETCH + _array_header(len(response.partitions))
    size = len(head)
    pieces: list[Any] = []  # bytes, records, bytes, ...
    between = [head[1:]]  # bytes up to the next records
    for partition in response.partitions:
        start = _partition_start(partition)
        count = len(partition.records)
        size += len(start) + count
        between.append(start)
        if count:
            pieces += (b"".join(between), partition.records)
            between = []
    if between:
        pieces.append(b"".join(between))
    pieces[0] = _reply_start(request_id, head, size=size) + pieces[0]
    return pieces


def _partition_start(partition: FetchedPartition) -> bytes:
    """A fetched partition up to its records, which are its last field: their bin header stands at the end."""
    body = _encoder.encode(replace(partition, records=b""))
    return body[: -len(_EMPTY_BIN)] + _BIN32.pack(_BIN32_MARK, len(partition.records))


def _array_header(count: int) -> bytes:
    return bytes([_FIXARRAY | count]) if count < 16 else _ARRAY32.pack(_ARRAY32_MARK, count)
