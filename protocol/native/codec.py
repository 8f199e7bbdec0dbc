"""Encode and decode native requests and responses.

    request          length, {"op": name, "id": uint32, ...fields of the request}
    response         length, {"id": uint32, ...fields of the response}
    error response   length, {"id": uint32, "error": code, "message": text or nil}

Invariants:
1. Decoded values are valid: every field is present or defaulted, has the right type and range, and there are no unknown
   fields; errors name the field. msgspec validates while it decodes, so a malicious frame can only allocate a small
   multiple of its size.
2. Decoded record batches are views of the frame.
3. Requests are written with msgpack and read with msgspec: decoding needs types and views, encoding responses needs
speed, and every exchange tests two implementations of the format against each other.
4. Encoding a fetch response only takes the len() of its records. They are separate items of the returned list, so that
   the sender can transmit file slices with sendfile; the frame as a whole is one valid msgpack map.
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

from warmlog.protocol.errors import ErrorCode, ProtocolError
from warmlog.protocol.frame import LENGTH_SIZE
from warmlog.protocol.kafka.codec.bounds import CUT_BYTES, NO_LIMIT, LargeMessageError, refuse_size
from warmlog.protocol.native.messages import OPERATION_NAMES, OPERATIONS, NativeRequest
from warmlog.protocol.native.share import FetchShareGroupResponse, SharedPartition
from warmlog.protocol.request import ProduceRequest, Value
from warmlog.protocol.response import ErrorResponse, FetchedPartition, FetchResponse
from warmlog.protocol.weight import weight

RequestId = Annotated[int, Meta(ge=0, lt=1 << 32)]
R = TypeVar("R", bound=Value)

# The header of a map with up to 15 pairs is one byte with the count in its low bits. No value has that many fields, so
# pairs can be prepended to an encoded map by adding to this byte.
_REQUEST_START = Struct(">iB")  # frame length, map header
_REPLY_START = Struct(">iB4sI")  # frame length, map header, key "id" and uint32 type byte, id
_ID_VALUE = Struct(">I")
_ID = b"\xa2id\xce"
_BIN32 = Struct(">BI")  # type byte, length
_BIN32_MARK = 0xC6
_EMPTY_BIN = b"\xc4\x00"
_NIL = b"\xc0"
_FIXARRAY = 0x90
_FIXMAP = 0x80
_ARRAY32 = Struct(">BI")
_ARRAY32_MARK = 0xDD
# Decoding takes about 5 ms per MiB on the event loop for a frame of small values, so only frames with records, which
# are not decoded, may be larger.
MAX_PLAIN_BYTES = 1 << 20
PIECE = 256  # number of values encoded per call for a large response
MAX_SHOWN = 300  # maximum characters of a frame quoted in an error
MAX_ODD_SIZE = 400  # maximum bytes of an invalid "op" or "id" that are decoded to quote them
# Errors of the decoder: malformed or of a wrong type, invalid UTF-8, nested too deeply.
_UNREADABLE = (DecodeError, UnicodeDecodeError, RecursionError)


class RequestError(ProtocolError):
    """A frame is not a valid request; the following frames can still be read.

    `request_id` is 0 if the id could not be read.
    """

    def __init__(self, message: str, *, code: ErrorCode = ErrorCode.INVALID_REQUEST, request_id: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.request_id = request_id


class ReplyError(ProtocolError):
    """A frame is not a valid response to the request."""


class _Envelope(msgspec.Struct, frozen=True):
    """Operation and id of an otherwise invalid request, undecoded because they may be invalid too."""

    op: msgspec.Raw = msgspec.Raw(_NIL)
    id: msgspec.Raw = msgspec.Raw(_NIL)


def _in_frame(kind: type[Value], **config: Any) -> type[Any]:
    """Define a subclass of `kind` with the field "id"; `config` can add the tag "op"."""
    return defstruct(f"{kind.__name__}Frame", [("id", RequestId)], bases=(kind,), frozen=True, kw_only=True, **config)


_encoder = Encoder()
_requests = [_in_frame(op.request, tag_field="op", tag=op.name) for op in OPERATIONS]
_request_decoder: Decoder[Any] = Decoder(reduce(or_, _requests))
_envelope_decoder = Decoder(_Envelope)
_reply_decoders: dict[type[Value], Decoder[Any]] = {op.received: Decoder(_in_frame(op.received)) for op in OPERATIONS}
_error_decoder: Decoder[Any] = Decoder(_in_frame(ErrorResponse))
_ops: dict[type[Value], bytes] = {op.request: b"\xa2op" + _encoder.encode(op.name) + _ID for op in OPERATIONS}
_PRODUCE = b"\xa2op" + _encoder.encode(ProduceRequest.api)
# Error codes for invalid fields, by their path; INVALID_REQUEST for all others.
_codes = {"$.acks": ErrorCode.INVALID_REQUIRED_ACKS}


def decode_request(frame: memoryview | bytes) -> tuple[int, NativeRequest]:
    """Decode a frame (without its length) into the request id and the request. Records are views of the frame.

    The request is an instance of a subclass that also has the id. Raises RequestError with a message that can be
    returned to the client.
    """
    is_large = len(frame) > MAX_PLAIN_BYTES
    if is_large and frame[1 : 1 + len(_PRODUCE)] != _PRODUCE:
        raise RequestError(
            f"a request of {len(frame)} bytes exceeds the limit of {MAX_PLAIN_BYTES}, which applies to all operations"
            " but produce with 'op' as its first key; split it into smaller requests"
        )
    try:
        framed = _request_decoder.decode(frame)
    except _UNREADABLE as problem:
        if is_large:  # searching the frame for the id could take too long
            raise RequestError(f"produce: {str(problem)[:MAX_SHOWN]}") from None
        raise _request_error(frame, problem) from None
    request: NativeRequest = framed
    return framed.id, request


def encode_response(request_id: int, response: Value, limit: int = NO_LIMIT, max_bytes: int = NO_LIMIT) -> list[Sized]:
    """Encode the response frame as a list of bytes and, for a fetch, the unmodified `records` objects, in order.

    Raises LargeMessageError if the response holds more than `limit` values: then encode it in a worker thread without a
    limit, where it is encoded in pieces so that other threads can run. Raises ReplyTooLargeError if it takes more than
    `max_bytes`; records do not count.
    """
    if limit != NO_LIMIT and weight(response, limit) > limit:
        raise LargeMessageError(f"the response has more than {limit} values; encode it in a worker thread")
    if isinstance(response, FetchResponse | FetchShareGroupResponse):
        return _encode_fetch(request_id, response)
    pieces, size = list[Any](), 0
    for piece in _pieces(response) if limit == NO_LIMIT else [_encoder.encode(response)]:
        size += len(piece)
        if size > max_bytes:
            refuse_size(max_bytes)
        pieces.append(piece)
    pieces[0] = _reply_start(request_id, pieces[0], size=size) + pieces[0][1:]
    return _joined(pieces)


def _joined(pieces: list[Any]) -> list[Sized]:
    """Join pieces into longer ones of about CUT_BYTES."""
    joined: list[Sized] = []
    start = size = 0
    for number, piece in enumerate(pieces, 1):
        size += len(piece)
        if size >= CUT_BYTES or number == len(pieces):
            joined.append(b"".join(pieces[start:number]))
            start, size = number, 0
    return joined


def _pieces(value: Any) -> Iterator[bytes]:
    """Yield the encoded value in pieces that each take little time to encode."""
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
    """Encode a request frame."""
    body: bytes = packb(request, default=_given)
    op = _ops[type(request)]
    length = 1 + len(op) + _ID_VALUE.size + len(body) - 1
    start = _REQUEST_START.pack(length, body[0] + 2)
    return b"".join((start, op, _ID_VALUE.pack(request_id), memoryview(body)[1:]))


def _given(value: Value) -> dict[str, Any]:
    return {name: field for name, field in asdict(value).items() if field is not UNSET}


def decode_response(frame: memoryview | bytes, response_type: type[R]) -> tuple[int, R | ErrorResponse]:
    """Decode a frame (without its length) into the request id and the response: `response_type` or an ErrorResponse.

    For a fetch, pass `messages.ReceivedFetch`; its records are views of the frame. Raises ReplyError.
    """
    kind: type[Value] = response_type
    try:
        framed = _reply_decoders[response_type].decode(frame)
    except _UNREADABLE as problem:
        kind, framed = ErrorResponse, _decode_error(frame, problem)
    if getattr(framed, "error", ErrorCode.NONE) is not ErrorCode.NONE:  # some responses have a field of this name
        return framed.id, ErrorResponse(error=framed.error, message=framed.message)
    fields = asdict(framed)
    request_id: int = fields.pop("id")
    reply: Any = kind(**fields)
    return request_id, reply


def _request_error(frame: memoryview | bytes, problem: Exception) -> RequestError:
    """Return the error for an invalid frame, with its request id if that can be read."""
    reason = str(problem)[:MAX_SHOWN]
    try:
        envelope = _envelope_decoder.decode(frame)
        op, sent_id = _small(envelope.op), _small(envelope.id)
    except _UNREADABLE:
        return RequestError(f"not a valid request: {reason}")
    request_id = sent_id if _is_request_id(sent_id) else 0
    if not isinstance(op, str) or op not in OPERATION_NAMES:
        known = ", ".join(OPERATION_NAMES)
        return RequestError(f"unknown op {op!r:.80}; use one of {known}", request_id=request_id)
    code = next((code for path, code in _codes.items() if f"`{path}`" in reason), ErrorCode.INVALID_REQUEST)
    return RequestError(f"{op}: {reason}", code=code, request_id=request_id)


def _small(value: msgspec.Raw) -> Any:
    """Decode a value of a frame, or return a description of its size if it is large."""
    size = len(memoryview(value))
    return msgspec.msgpack.decode(value) if size <= MAX_ODD_SIZE else f"of {size} bytes"


def _is_request_id(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 32


def _decode_error(frame: memoryview | bytes, problem: Exception) -> Any:
    """Decode an error response. Raises ReplyError with `problem` if the frame is not an error response either."""
    try:
        return _error_decoder.decode(frame)
    except _UNREADABLE:
        raise ReplyError(f"not a valid response to the request: {problem}") from None


def _reply_start(request_id: int, body: bytes, *, size: int) -> bytes:
    """Return frame length, map header and id for a response of `size` bytes whose encoding starts with `body`."""
    return _REPLY_START.pack(_REPLY_START.size - LENGTH_SIZE + size - 1, body[0] + 1, _ID, request_id)


def _encode_fetch(request_id: int, response: FetchResponse | FetchShareGroupResponse) -> list[Sized]:
    """Encode each partition (the last field) without its records, then a bin header and the records."""
    head = _encoder.encode(replace(response, partitions=()))[:-1] + _array_header(len(response.partitions))
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


def _partition_start(partition: FetchedPartition | SharedPartition) -> bytes:
    """Encode a fetched partition up to the bin header of its records, which are the last field."""
    if isinstance(partition, SharedPartition):
        body = _encoder.encode(replace(partition, records=b""))
    else:
        aborted = partition.aborted_transactions
        reported = UNSET if aborted is None else aborted  # omitted for readers of uncommitted records
        body = _encoder.encode(replace(partition, aborted_transactions=reported, records=b""))
    return body[: -len(_EMPTY_BIN)] + _BIN32.pack(_BIN32_MARK, len(partition.records))


def _array_header(count: int) -> bytes:
    return bytes([_FIXARRAY | count]) if count < 16 else _ARRAY32.pack(_ARRAY32_MARK, count)
