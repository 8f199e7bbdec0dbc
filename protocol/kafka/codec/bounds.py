"""Limits on the work a message can cause, and the errors for messages that exceed them."""

from typing import Any, NoReturn

from warmlog.protocol.errors import ErrorCode, ProtocolError

# Array elements in all arrays of a frame. A full fetch from a large broker has a few thousand.
MAX_ELEMENTS = 100_000
# Unknown tagged fields of one frame. Clients send a handful.
MAX_UNKNOWN_TAGS = 10_000
MAX_STRING_BYTES = (1 << 15) - 1  # in every version, as in Kafka
MAX_UVARINT_SHIFT = 28  # five bytes carry 32 bits
NO_TOPIC_ID = bytes(16)

# Work is counted in units: one per array element and tagged field, per 256 bytes of long text and per
# KiB of copied bytes. A unit costs 0.2 to 0.5 us compiled (1 us for a KiB copied to new memory) and 1 to 2 us in pure
# Python. `Engine.loop_work` limits the work that the event loop does without a pause.
NO_LIMIT = 1 << 62  # no limit of work or bytes
TEXT_SHIFT = 8
COPY_SHIFT = 10
BREATH = 1024  # units of work after which a compiled reader or writer without a limit briefly releases the GIL
# Long frames are split into pieces of this size: copying one holds the GIL, and each can be freed once it is sent.
CUT_BYTES = 1 << 20


class MalformedError(ProtocolError):
    """The bytes are not a message of the API and version in their header."""


class InvalidRequestError(ProtocolError):
    """A request was read but must be refused; `request` is needed to build the reply."""

    def __init__(self, request: Any, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.request = request
        self.code = code


class LargeMessageError(ProtocolError):
    """Reading or writing the message takes more work than allowed: do it in a worker thread, without the limit."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


class ReplyTooLargeError(ProtocolError):
    """A reply exceeds its size limit."""

    code = ErrorCode.POLICY_VIOLATION  # clients treat this error as final and do not retry


class UnwritableError(ProtocolError):
    """The layout cannot hold a value: a number is out of range, or text is longer than MAX_STRING_BYTES."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR


def refuse_short() -> NoReturn:
    """Raise for a message that ends within a fixed-size field."""
    raise MalformedError("the message ends too early")


def refuse_length(length: int, left: int) -> NoReturn:
    """Raise for a length that is negative or exceeds the rest of the frame."""
    raise MalformedError(f"a length of {length} where {left} bytes are left")


def refuse_string(length: int) -> NoReturn:
    """Raise for text that is too long."""
    raise MalformedError(f"a string of {length} bytes, more than {MAX_STRING_BYTES}")


def refuse_null(what: str) -> NoReturn:
    """Raise for null in a field that may not be null."""
    raise MalformedError(f"null where {what} must be")


def refuse_count(count: int, left: int) -> NoReturn:
    """Raise for a count that is negative or cannot fit into the rest of the frame."""
    raise MalformedError(f"an array of {count} elements, but only {left} bytes are left")


def refuse_elements() -> NoReturn:
    """Raise for a frame with too many array elements."""
    raise MalformedError(f"more than {MAX_ELEMENTS} array elements")


def refuse_tags() -> NoReturn:
    """Raise for a frame with too many unknown tagged fields."""
    raise MalformedError(f"more than {MAX_UNKNOWN_TAGS} unknown tagged fields")


def refuse_tag_size(tag: int, taken: int, size: int) -> NoReturn:
    """Raise for a known tagged field that is shorter or longer than its size states."""
    raise MalformedError(f"tagged field {tag} takes {taken} bytes, not its {size}")


def refuse_varint(*, too_long: bool) -> NoReturn:
    """Raise for a varint of more than five bytes or more than 32 bits."""
    raise MalformedError("a varint of more than five bytes" if too_long else "a varint of more than 32 bits")


def refuse_work() -> NoReturn:
    """Raise when the work limit is exceeded."""
    raise LargeMessageError("more work than the event loop may do in one go")


def refuse_size(max_bytes: int) -> NoReturn:
    """Raise for a message that is longer than allowed."""
    raise ReplyTooLargeError(f"the reply takes more than {max_bytes} bytes: request less at a time")


def cut_text(encoded: bytes) -> bytes:
    """Return text in UTF-8, cut to the length limit of a string at a character boundary."""
    size = MAX_STRING_BYTES
    while encoded[size] & 0xC0 == 0x80:
        size -= 1
    return encoded[:size]


def refuse_text(size: int) -> NoReturn:
    """Raise for text that cannot be written."""
    raise UnwritableError(f"a string of {size} bytes, more than {MAX_STRING_BYTES}")
