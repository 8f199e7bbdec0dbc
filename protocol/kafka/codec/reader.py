"""Read the elements of messages in pure Python, for `interpreter.py`.

                    classic                       flexible
    string          int16 length, -1 null         uvarint length + 1, 0 null
    bytes, records  int32 length, -1 null         uvarint length + 1, 0 null
    array           int32 count, -1 null          uvarint count + 1, 0 null
    end of struct   nothing                       uvarint count of tagged fields, each: uvarint tag, uvarint size, data
    integers are big-endian; a uuid is 16 bytes; a boolean is one byte, true unless it is 0

Invariants (the compiled engine has the same):
1. A length or a count is compared with the rest of the frame before anything is allocated for it.
2. Elements and unknown tags are counted over the whole frame, regardless of their structs (`bounds.py`).
3. Data is a view of the frame, never a copy.
4. Invalid input raises MalformedError, or UnicodeDecodeError for text that is not UTF-8.
5. Bytes after a message are ignored, as in Kafka.
"""

from collections.abc import Callable
from struct import Struct, error
from typing import Any, ClassVar

from warmlog.protocol.kafka.codec.bounds import (
    COPY_SHIFT,
    MAX_ELEMENTS,
    MAX_STRING_BYTES,
    MAX_UNKNOWN_TAGS,
    MAX_UVARINT_SHIFT,
    NO_LIMIT,
    TEXT_SHIFT,
    InvalidRequestError,
    refuse_count,
    refuse_elements,
    refuse_length,
    refuse_null,
    refuse_short,
    refuse_string,
    refuse_tag_size,
    refuse_tags,
    refuse_varint,
    refuse_work,
)
from warmlog.protocol.kafka.codec.schema import Only

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_ONE_BYTE = 0x7F  # smaller lengths take one byte: a length is written plus one


def _no_names(_: bytes) -> None:
    return None


class Reader:
    """Reads a message of a classic version from a frame, starting at `position`.

    names: looks up the name of a topic id. limit: units of work after which LargeMessageError is raised.
    """

    __slots__ = ("elements_left", "end", "frame", "names", "position", "refused", "tags_left", "work_left")
    flexible: ClassVar[bool] = False

    def __init__(
        self,
        frame: memoryview,
        position: int = 0,
        names: Callable[[bytes], str | None] = _no_names,
        limit: int = NO_LIMIT,
    ) -> None:
        self.frame = frame
        self.position = position
        self.end = len(frame)
        self.elements_left = MAX_ELEMENTS
        self.tags_left = MAX_UNKNOWN_TAGS
        self.work_left = limit
        self.names = names
        self.refused: tuple[Only, Any] | None = None

    def refuse(self, only: Only, value: Any) -> None:
        """Make `finish` refuse the request."""
        self.refused = self.refused or (only, value)

    def finish(self, request: Any) -> Any:
        """Return a request that was read, or raise InvalidRequestError."""
        if self.refused is not None:
            only, value = self.refused
            raise InvalidRequestError(request, only.code, only.message.format(value))
        return request

    def fixed(self, layout: Struct) -> tuple[Any, ...]:
        """Read fixed-size fields."""
        position = self.position
        try:
            values = layout.unpack_from(self.frame, position)
        except error:
            refuse_short()
        self.position = position + layout.size
        return values

    def numbers(self, count: int, code: str, size: int) -> tuple[Any, ...]:
        """Read the elements of an array of numbers."""
        if count * size > self.end - self.position:
            refuse_short()
        return self.fixed(Struct(f">{count}{code}"))

    def uvarint(self) -> int:
        """Read at most five bytes, seven bits each, the lowest first."""
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > MAX_UVARINT_SHIFT:
                refuse_varint(too_long=True)
        if value >> 32:
            refuse_varint(too_long=False)
        return value

    def string(self) -> str:
        """Read text; null is an error."""
        text = self.nullable_string()
        if text is None:
            refuse_null("a string")
        return text

    def nullable_string(self) -> str | None:
        """Read text or None."""
        return self.classic_string()

    def classic_string(self) -> str | None:
        """Read text or None in the classic layout, which every header uses for the client id."""
        (length,) = self.fixed(_INT16)
        return None if length == -1 else self._text(length)

    def data(self) -> memoryview:
        """Read bytes as a view of the frame; null is an error."""
        view = self.nullable_data()
        if view is None:
            refuse_null("bytes")
        return view

    def nullable_data(self) -> memoryview | None:
        """Read bytes as a view of the frame, or None."""
        length = self._length()
        return None if length == -1 else self._take(length)

    def copied(self) -> bytes:
        """Read bytes as a copy; null is an error."""
        return self._copy(self.data())

    def nullable_copied(self) -> bytes | None:
        """Read bytes as a copy, or None."""
        view = self.nullable_data()
        return None if view is None else self._copy(view)

    def count(self) -> int:
        """Read an array's element count; null is an error."""
        count = self.nullable_count()
        if count < 0:
            refuse_null("an array")
        return count

    def nullable_count(self) -> int:
        """Read an array's element count, -1 for null."""
        count = self._length()
        # an element takes at least one byte
        if count > self.end - self.position or count < -1:
            refuse_count(count, self.end - self.position)
        if count > self.elements_left:
            refuse_elements()
        if count > 0:
            self.elements_left -= count
            self._work(count)
        return count

    def topic_name(self, topic_id: bytes) -> str:
        """Look up the name of a topic id; empty if it has none."""
        return self.names(topic_id) or ""

    def tags(self) -> None:
        """Skip the tagged fields of a struct that has no known ones."""

    def tag_count(self) -> int:
        """Read the number of a struct's tagged fields."""
        return 0

    def tag(self) -> tuple[int, int]:
        """Read the head of a tagged field: its tag and its end position."""
        tag = self.uvarint()
        size = self.uvarint()
        if size > self.end - self.position:
            refuse_length(size, self.end - self.position)
        self._work(1)
        return tag, self.position + size

    def end_tag(self, tag: int, start: int, end: int) -> None:
        """Check that a known tagged field had the stated size."""
        if self.elements_left < 1:
            refuse_elements()
        self.elements_left -= 1
        if self.position != end:
            refuse_tag_size(tag, self.position - start, end - start)

    def skip_tag(self, end: int) -> None:
        """Skip an unknown tagged field."""
        if self.tags_left < 1:
            refuse_tags()
        self.tags_left -= 1
        self.position = end

    def _byte(self) -> int:
        if self.position >= self.end:
            refuse_short()
        byte = self.frame[self.position]
        self.position += 1
        return byte

    def _length(self) -> int:
        """Read the length of data or the count of an array; -1 for null."""
        (length,) = self.fixed(_INT32)
        return int(length)

    def _take(self, length: int) -> memoryview:
        start = self.position
        end = start + length
        if length < 0 or end > self.end:
            refuse_length(length, self.end - start)
        self.position = end
        return self.frame[start:end]

    def _text(self, length: int) -> str:
        if length >> TEXT_SHIFT:
            if length > MAX_STRING_BYTES and length <= self.end - self.position:
                refuse_string(length)
            self._work(length >> TEXT_SHIFT)
        return str(self._take(length), "utf-8")

    def _copy(self, view: memoryview) -> bytes:
        self._work(len(view) >> COPY_SHIFT)
        return bytes(view)

    def _work(self, units: int) -> None:
        self.work_left -= units
        if self.work_left < 0:
            refuse_work()


class FlexibleReader(Reader):
    """Reads a message of a flexible version. One-byte lengths, by far the most common, are read inline."""

    __slots__ = ()
    flexible: ClassVar[bool] = True

    def string(self) -> str:
        """Read text; null is an error."""
        start = self.position + 1
        if start <= self.end:
            end = start + self.frame[start - 1] - 1
            if start <= end < start + _ONE_BYTE and end <= self.end:
                self.position = end
                return str(self.frame[start:end], "utf-8")
        return super().string()

    def nullable_string(self) -> str | None:
        """Read text or None."""
        length = self._length()
        return None if length == -1 else self._text(length)

    def tags(self) -> None:
        """Skip the tagged fields of a struct that has no known ones."""
        for _ in range(self.tag_count()):
            self.skip_tag(self.tag()[1])

    def tag_count(self) -> int:
        """Read the number of a struct's tagged fields."""
        position = self.position
        if position < self.end and self.frame[position] == 0:
            self.position = position + 1
            return 0
        return self.uvarint()

    def _length(self) -> int:
        position = self.position
        if position < self.end:
            length = self.frame[position]
            if length < 0x80:
                self.position = position + 1
                return length - 1
        return self.uvarint() - 1
