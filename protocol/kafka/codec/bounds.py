"""Bounds on what a message can make the broker do, and the errors for messages that break them."""

from typing import Any, NoReturn

from warmlog.protocol.errors import ErrorCode, ProtocolError

# Array elements of one frame, all its arrays together. A full fetch of a large broker has some thousands.
MAX_ELEMENTS = 100_000
# Tagged fields of one frame that no table knows. Clients send a handful.
MAX_UNKNOWN_TAGS = 10_000
MAX_STRING_BYTES = (1 << 15) - 1  # in every version, as in Kafka
MAX_UVARINT_SHIFT = 28  # five bytes carry 32 bits
NO_TOPIC_ID = bytes(16)

# Work is counted in units: one for each array element and tagged field, for each 256 bytes of long text and for each
# KiB of copied bytes. A unit costs 0.2 to 0.5 us compiled (1 us for a KiB copied to new memory) and 1 to 2 us in pure
# Python. `Engine.loop_work` is what the event loop may do in one go.
NO_LIMIT = 1 << 62  # of work, or of bytes
TEXT_SHIFT = 8
COPY_SHIFT = 10
BREATH = 1024  # after so much work a compiled reader or writer without a limit gives up the GIL for a moment
# Long frames are split into pieces of this size: copying one holds the GIL, and each can be freed once it is sent.
CUT_BYTES = 1 << 20


class MalformedError(ProtocolError):
    """Bytes that are not a message of the kind and version that their header names."""


class InvalidRequestError(ProtocolError):
    """A request that was read and must be refused, with the request that its reply is made for."""

    def __init__(self, request: Any, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.request = request
        self.code = code


class LargeMessageError(ProtocolError):
    """Reading or writing the message takes more work than allowed: do it in a worker thread, without the limit."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


class ReplyTooLargeError(ProtocolError):
    """A reply takes more bytes than it may."""

    code = ErrorCode.POLICY_VIOLATION  # a client takes it for final, and does not ask again


class UnwritableError(ProtocolError):
    """A value that the layout cannot hold: a number out of range, or text of more than MAX_STRING_BYTES."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


def refuse_short() -> NoReturn:
    """Raise for a message that ends within a field of a fixed size."""
    raise MalformedError("the message ends too early")


def refuse_length(length: int, left: int) -> NoReturn:
    """Raise for a length that is negative, or more than the rest of the frame."""
    raise MalformedError(f"a length of {length} where {left} bytes are left")


def refuse_string(length: int) -> NoReturn:
    """Raise for text that is too long."""
    raise MalformedError(f"a string of {length} bytes, more than {MAX_STRING_BYTES}")


def refuse_null(what: str) -> NoReturn:
    """Raise for null in a field that may not be null."""
    raise MalformedError(f"null where {what} must be")


def refuse_count(count: int, left: int) -> NoReturn:
    """Raise for a count that is negative, or more than the rest of the frame can hold."""
    raise MalformedError(f"an array of {count} where {left} bytes are left")


def refuse_elements() -> NoReturn:
    """Raise for a frame with too many array elements."""
    raise MalformedError(f"more than {MAX_ELEMENTS} array elements")


def refuse_tags() -> NoReturn:
    """Raise for a frame with too many tagged fields that no table knows."""
    raise MalformedError(f"more than {MAX_UNKNOWN_TAGS} unknown tagged fields")


def refuse_tag_size(tag: int, taken: int, size: int) -> NoReturn:
    """Raise for a known tagged field that is shorter or longer than its size says."""
    raise MalformedError(f"tagged field {tag} takes {taken} bytes, not its {size}")


def refuse_varint(*, too_long: bool) -> NoReturn:
    """Raise for a varint of more than five bytes, or of five that hold more than 32 bits."""
    raise MalformedError("a varint of more than five bytes" if too_long else "a varint of more than 32 bits")


def refuse_work() -> NoReturn:
    """Raise where the limit of work is reached."""
    raise LargeMessageError("more work than the event loop may do at once")


def refuse_size(max_bytes: int) -> NoReturn:
    """Raise for a message that is longer than allowed."""
    raise ReplyTooLargeError(f"the reply takes more than {max_bytes} bytes: ask for less at once")


def cut_text(encoded: bytes) -> bytes:
    """Return as much of a text in UTF-8 as a string may have, without a part of a character at its end."""
    size = MAX_STRING_BYTES
    while encoded[size] & 0xC0 == 0x80:
        size -= 1
    return encoded[:size]


def refuse_text(size: int) -> NoReturn:
    """Raise for text that cannot be written."""
    raise UnwritableError(f"a string of {size} bytes, more than {MAX_STRING_BYTES}")
