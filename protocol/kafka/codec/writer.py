"""Write the elements of messages in pure Python, for `interpreter.py`. Layouts: `reader.py`.

Invariants (the compiled engine has the same):
1. Slices (records) are passed on unchanged; only their len() is used. The reply is split around each.
2. A value that the layout cannot hold raises UnwritableError.
"""

from base64 import urlsafe_b64decode
from collections.abc import Callable, Sequence, Sized
from struct import Struct, error
from typing import Any, ClassVar

from msgspec import UNSET

from warmlog.protocol.frame import LENGTH, LENGTH_SIZE
from warmlog.protocol.kafka.codec.bounds import (
    COPY_SHIFT,
    CUT_BYTES,
    MAX_STRING_BYTES,
    NO_LIMIT,
    NO_TOPIC_ID,
    TEXT_SHIFT,
    UnwritableError,
    cut_text,
    refuse_size,
    refuse_text,
    refuse_work,
)

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_ONE_BYTE = 0x7F  # smaller lengths take one byte: a length is written plus one


class Writer:
    """Writes one message of a classic version: bytes, and unchanged slices.

    throttle_ms: the throttle time in the reply. limit: units of work after which LargeMessageError is raised.
    max_bytes: size without the slices above which ReplyTooLargeError is raised. cuts_text: whether to truncate text of
    more than MAX_STRING_BYTES instead of raising UnwritableError.
    """

    __slots__ = ("_bytes", "_cuts_text", "_max_bytes", "_pieces", "_pieces_bytes", "throttle_ms", "work_left")
    flexible: ClassVar[bool] = False

    def __init__(
        self,
        start: bytes,
        throttle_ms: int = 0,
        limit: int = NO_LIMIT,
        max_bytes: int = NO_LIMIT,
        *,
        cuts_text: bool = False,
    ) -> None:
        self._bytes = bytearray(start)
        self._cuts_text = cuts_text
        self._pieces: list[Any] = []  # bytes, slice, bytes, ...
        self.throttle_ms = throttle_ms
        self.work_left = limit
        self._max_bytes = max_bytes
        self._pieces_bytes = 0  # size without the slices

    def raw(self, data: bytes) -> None:
        """Write bytes that are already encoded."""
        self._bytes += data

    def kept(self, data: bytes) -> None:
        """Write bytes that were encoded for an earlier reply."""
        self.work(len(data) >> COPY_SHIFT)
        self._check_size()
        self._bytes += data

    @property
    def size(self) -> int:
        """The bytes written since the last slice."""
        return len(self._bytes)

    def written_since(self, start: int) -> bytes:
        """Return what was written since `size` was `start`, without any slice in between."""
        return bytes(self._bytes[start:])

    def uvarint(self, value: int) -> None:
        """Write seven bits per byte, the lowest first."""
        while value >= 0x80:
            self._bytes.append(value & 0x7F | 0x80)
            value >>= 7
        self._bytes.append(value)

    def string(self, text: str) -> None:
        """Write text."""
        encoded = self._encoded(text)
        self._bytes += _INT16.pack(len(encoded))
        self._bytes += encoded

    def nullable_string(self, text: str | None) -> None:
        """Write text or None."""
        if text is None:
            self._bytes += b"\xff\xff"
        else:
            self.string(text)

    def length(self, length: int) -> None:
        """Write the length of bytes; -1 for null."""
        self._bytes += _INT32.pack(length)

    def data(self, data: bytes | memoryview) -> None:
        """Write bytes."""
        size = len(data)
        self.work(size >> COPY_SHIFT)
        self.length(size)
        self._bytes += data

    def nullable_data(self, data: bytes | memoryview | None) -> None:
        """Write bytes or None."""
        if data is None:
            self.length(-1)
        else:
            self.data(data)

    def records(self, part: Sized) -> None:
        """Write records unchanged; for empty records only the length is written."""
        size = len(part)
        self.length(size)
        if size:
            self._check_size()
            self._pieces_bytes += len(self._bytes)
            self._pieces += (bytes(self._bytes), part)
            self._bytes = bytearray()

    def nullable_records(self, part: Sized | None) -> None:
        """Write records unchanged, or None."""
        if part is None:
            self.length(-1)
        else:
            self.records(part)

    def count(self, count: int) -> None:
        """Write an array's element count; -1 for null."""
        self.work(count)
        self._check_size()
        self.length(count)

    def tags(self) -> None:
        """End a struct without tagged fields."""

    def tagged(self, fields: Sequence[tuple[int, bytes]]) -> None:
        """End a struct with tagged fields, each with its tag."""

    def written(self) -> bytes:
        """Return the whole message, if its records are bytes and not slices of files."""
        return b"".join([*self._pieces, self._bytes]) if self._pieces else bytes(self._bytes)

    def finish_frame(self) -> list[Sized]:
        """Fill in the frame's length, for which the first four bytes are reserved, and return all pieces in order."""
        self._check_size()
        pieces, rest = self._pieces, self._bytes
        if not pieces:
            LENGTH.pack_into(rest, 0, len(rest) - LENGTH_SIZE)
            return [bytes(rest[start : start + CUT_BYTES]) for start in range(0, len(rest), CUT_BYTES)]
        if rest:
            pieces.append(bytes(rest))
        pieces[0] = LENGTH.pack(sum(map(len, pieces)) - LENGTH_SIZE) + pieces[0][LENGTH_SIZE:]
        return pieces

    def _encoded(self, text: str) -> bytes:
        self._check_size()
        encoded = text.encode()
        size = len(encoded)
        if size >> TEXT_SHIFT:
            if size > MAX_STRING_BYTES:
                if not self._cuts_text:
                    refuse_text(size)
                encoded = cut_text(encoded)
            self.work(size >> TEXT_SHIFT)
        return encoded

    def _check_size(self) -> None:
        if self._pieces_bytes + len(self._bytes) > self._max_bytes:
            refuse_size(self._max_bytes)

    def work(self, units: int) -> None:
        """Count units of work. Raises LargeMessageError."""
        self.work_left -= units
        if self.work_left < 0:
            refuse_work()


class FlexibleWriter(Writer):
    """Writes one message of a flexible version."""

    __slots__ = ()
    flexible: ClassVar[bool] = True

    def string(self, text: str) -> None:
        """Write text."""
        encoded = self._encoded(text)
        self.uvarint(len(encoded) + 1)
        self._bytes += encoded

    def nullable_string(self, text: str | None) -> None:
        """Write text or None."""
        if text is None:
            self._bytes.append(0)
        else:
            self.string(text)

    def length(self, length: int) -> None:
        """Write the length of bytes; -1 for null."""
        if length < _ONE_BYTE:
            self._bytes.append(length + 1)
        else:
            self.uvarint(length + 1)

    def tags(self) -> None:
        """End a struct without tagged fields."""
        self._bytes.append(0)

    def tagged(self, fields: Sequence[tuple[int, bytes]]) -> None:
        """End a struct with tagged fields, each with its tag."""
        self.uvarint(len(fields))
        for tag, data in fields:
            self.uvarint(tag)
            self.uvarint(len(data))
            self._bytes += data


def packed(layout: Struct, *values: Any) -> bytes:
    """Pack fixed-size fields. Raises UnwritableError."""
    try:
        return layout.pack(*values)
    except error as problem:
        raise UnwritableError(f"a value that its field cannot hold: {problem}") from None


def or_null(value: Any, null: Any) -> Any:
    """Return the value, or `null` if it is None or unset."""
    return null if value is None or value is UNSET else value


def groups(values: Sequence[Any], keys: Sequence[Any], key: Callable[[Any], Any]) -> list[tuple[Any, Sequence[Any]]]:
    """Split values into runs with equal keys: (the first entry of `keys`, the values)."""
    if len(keys) != len(values):
        raise ValueError(f"{len(values)} values for {len(keys)} keys")
    runs: list[tuple[Any, Sequence[Any]]] = []
    start, last = 0, None
    for number, entry in enumerate(keys):
        topic = key(entry)
        if number == 0:
            last = topic
        elif topic != last:
            runs.append((keys[start], values[start:number]))
            start, last = number, topic
    if values:
        runs.append((keys[start], values[start:]))
    return runs


def topic_id_bytes(topic_id: str | bytes | None) -> bytes:
    """Return the sixteen bytes of a topic id given as bytes, as text (`values.topic_id_text`) or as None."""
    if topic_id is None:
        return NO_TOPIC_ID
    decoded = urlsafe_b64decode(topic_id + "==") if isinstance(topic_id, str) else topic_id
    if len(decoded) != len(NO_TOPIC_ID):
        raise UnwritableError(f"an id of {len(decoded)} bytes")
    return decoded
