"""What Kafka's messages are made of: integers, strings, arrays' counts, tagged fields.

Owns: how each primitive stands on the wire, classic and flexible (KIP-482), and the bounds of what is read. Must not
know: any message, or which version of one is flexible.

                    classic                       flexible
    string          int16 length, -1 null         uvarint length + 1, 0 null
    bytes, records  int32 length, -1 null         uvarint length + 1, 0 null
    array           int32 count, -1 null          uvarint count + 1, 0 null
    end of struct   nothing                       uvarint count of tagged fields, each: uvarint tag, uvarint size, data
    nullable struct int8 -1 null, 1 present       the same
    numbers big-endian; a float is an IEEE 754 double; a uuid is 16 bytes; a bool one byte

Invariants:
1. Nothing is allocated for a length or a count before it was held against what the frame still has.
2. One frame makes at most MAX_ELEMENTS array elements, all its arrays together. A struct has at most MAX_TAGGED_FIELDS;
   those that are not known are skipped.
3. Reading past the end raises IndexError, struct.error or MalformedError; text that is no UTF-8 UnicodeDecodeError.
   UNREADABLE names them all, and `api.Codec.decode` makes one error of them.
4. Data (records) is a view of the frame, never a copy.
5. Of what is put into a reply with `Writer.slice` only len() is used.
"""

import struct
from collections.abc import Callable, Mapping, Sized
from struct import Struct
from typing import Any, ClassVar, NoReturn

from protocol.frame import LENGTH, LENGTH_SIZE
from protocol.kafka.codec.bounds import MAX_ELEMENTS, NO_TOPIC_ID, MalformedError

__all__ = [
    "MAX_ELEMENTS",
    "NO_TOPIC_ID",
    "UNREADABLE",
    "FlexibleReader",
    "FlexibleWriter",
    "MalformedError",
    "Reader",
    "Writer",
]

MAX_TAGGED_FIELDS = 10_000

_INT8 = Struct(">b")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_UINT16 = Struct(">H")
_FLOAT64 = Struct(">d")
_ONE_BYTE = 0x7F  # below it a length fits one byte: it is written plus one
_UVARINT_MAX_SHIFT = 28  # five bytes carry 32 bits
_NO_KNOWN_TAGS: Mapping[int, tuple[str, Callable[[Any], Any]]] = {}


UNREADABLE = (MalformedError, IndexError, struct.error, UnicodeDecodeError)


class Reader:
    """Reads a message of a classic version out of one frame, from `position` on."""

    __slots__ = ("elements_left", "end", "frame", "position")
    flexible: ClassVar[bool] = False

    def __init__(self, frame: memoryview, position: int = 0) -> None:
        self.frame = frame
        self.position = position
        self.end = len(frame)
        self.elements_left = MAX_ELEMENTS

    def boolean(self) -> bool:
        """One byte; anything but 0 is true."""
        position = self.position
        self.position = position + 1
        return self.frame[position] != 0

    def int8(self) -> int:
        """One byte, signed."""
        position = self.position
        self.position = position + 1
        value: int = _INT8.unpack_from(self.frame, position)[0]
        return value

    def int16(self) -> int:
        """Two bytes, signed."""
        position = self.position
        self.position = position + 2
        value: int = _INT16.unpack_from(self.frame, position)[0]
        return value

    def int32(self) -> int:
        """Four bytes, signed."""
        position = self.position
        self.position = position + 4
        value: int = _INT32.unpack_from(self.frame, position)[0]
        return value

    def int64(self) -> int:
        """Eight bytes, signed."""
        position = self.position
        self.position = position + 8
        value: int = _INT64.unpack_from(self.frame, position)[0]
        return value

    def uint16(self) -> int:
        """Read two bytes, unsigned."""
        position = self.position
        self.position = position + 2
        value: int = _UINT16.unpack_from(self.frame, position)[0]
        return value

    def float64(self) -> float:
        """Read a double of eight bytes."""
        position = self.position
        self.position = position + 8
        value: float = _FLOAT64.unpack_from(self.frame, position)[0]
        return value

    def presence(self) -> bool:
        """Read the byte before a nullable struct: negative if the struct is null, as in Kafka's generated readers."""
        return self.int8() >= 0

    def uuid(self) -> bytes:
        """The sixteen bytes of a topic id."""
        return bytes(self._take(16))

    def uvarint(self) -> int:
        """At most five bytes, seven bits each, the lowest first."""
        byte = self.frame[self.position]
        self.position += 1
        if byte < 0x80:
            return byte
        value, shift = byte & 0x7F, 7
        while True:
            byte = self.frame[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > _UVARINT_MAX_SHIFT:
                raise MalformedError("a varint of more than five bytes")
        if value >> 32:
            raise MalformedError("a varint of more than 32 bits")
        return value

    def string(self) -> str:
        """Text; null is an error."""
        text = self.nullable_string()
        if text is None:
            _refuse_null("string")
        return text

    def nullable_string(self) -> str | None:
        """Text or None."""
        return self.classic_string()

    def classic_string(self) -> str | None:
        """Text or None as classic versions write it. Flexible headers, too, have their client id like this."""
        start = self.position + 2
        (length,) = _INT16.unpack_from(self.frame, self.position)
        end = start + length
        if length == -1:
            self.position = start
            return None
        if length < 0 or end > self.end:
            raise MalformedError(f"a length of {length} where {self.end - start} bytes are left")
        self.position = end
        return str(self.frame[start:end], "utf-8")

    def data(self) -> memoryview:
        """Bytes, a view of the frame; null is an error."""
        view = self.nullable_data()
        if view is None:
            _refuse_null("bytes")
        return view

    def nullable_data(self) -> memoryview | None:
        """Bytes, a view of the frame, or None."""
        length = self.int32()
        return None if length == -1 else self._take(length)

    def count(self) -> int:
        """How many elements an array has; null is an error."""
        count = self.nullable_count()
        if count < 0:
            _refuse_null("array")
        return count

    def nullable_count(self) -> int:
        """How many elements an array has, -1 for null."""
        return self._checked(self.int32())

    def tags(self) -> None:
        """The end of a struct of which no tagged field is wanted."""

    def tags_into(
        self, values: dict[str, Any], known: Mapping[int, tuple[str, Callable[[Any], Any]]] = _NO_KNOWN_TAGS
    ) -> None:
        """The end of a struct: tagged fields of `known`, tag to (name, how to read it), go into `values`."""

    def _take(self, length: int) -> memoryview:
        start = self.position
        end = start + length
        if length < 0 or end > self.end:
            raise MalformedError(f"a length of {length} where {self.end - start} bytes are left")
        self.position = end
        return self.frame[start:end]

    def _checked(self, count: int) -> int:
        # an element takes a byte at least
        if count > self.end - self.position or count < -1:
            raise MalformedError(f"an array of {count} where {self.end - self.position} bytes are left")
        if count > self.elements_left:
            raise MalformedError(f"more than {MAX_ELEMENTS} array elements")
        self.elements_left -= max(count, 0)
        return count


class FlexibleReader(Reader):
    """Reads a message of a flexible version. Lengths and counts of one byte, which nearly all are, are read in line."""

    __slots__ = ()
    flexible: ClassVar[bool] = True

    def string(self) -> str:
        """Text; null is an error."""
        start = self.position + 1
        end = start + self.frame[self.position] - 1
        if not start <= end < start + _ONE_BYTE or end > self.end:
            return super().string()
        self.position = end
        return str(self.frame[start:end], "utf-8")

    def nullable_string(self) -> str | None:
        """Text or None."""
        if self.frame[self.position] == 0:
            self.position += 1
            return None
        return str(self._take(self.uvarint() - 1), "utf-8")

    def nullable_data(self) -> memoryview | None:
        """Bytes, a view of the frame, or None."""
        frame = self.frame
        start = self.position + 1
        length = frame[start - 1]
        if length >= 0x80:  # records seldom fit one byte, mostly two
            if frame[start] < 0x80:
                length += (frame[start] - 1) << 7
                start += 1
            else:
                length = self.uvarint()
                start = self.position
        end = start + length - 1
        if end > self.end:
            raise MalformedError(f"a length of {length - 1} where {self.end - start} bytes are left")
        self.position = end if length else start
        return frame[start:end] if length else None

    def count(self) -> int:
        """How many elements an array has; null is an error."""
        position = self.position
        count = self.frame[position] - 1
        if not 0 <= count < _ONE_BYTE or position + count >= self.end or count > self.elements_left:
            return super().count()
        self.position = position + 1
        self.elements_left -= count
        return count

    def nullable_count(self) -> int:
        """How many elements an array has, -1 for null."""
        return self._checked(self.uvarint() - 1)

    def tags(self) -> None:
        """The end of a struct of which no tagged field is wanted."""
        if self.frame[self.position] == 0:
            self.position += 1
        else:
            self.tags_into({})

    def tags_into(
        self, values: dict[str, Any], known: Mapping[int, tuple[str, Callable[[Any], Any]]] = _NO_KNOWN_TAGS
    ) -> None:
        """The end of a struct: tagged fields of `known`, tag to (name, how to read it), go into `values`."""
        count = self.uvarint()
        if count > MAX_TAGGED_FIELDS:
            raise MalformedError(f"a struct with {count} tagged fields")
        for _ in range(count):
            self._tagged_field(values, known)

    def _tagged_field(self, values: dict[str, Any], known: Mapping[int, tuple[str, Callable[[Any], Any]]]) -> None:
        tag = self.uvarint()
        size = self.uvarint()
        start = self.position
        self._take(size)
        if tag in known:
            name, read = known[tag]
            self.position = start
            values[name] = read(self)
            if self.position != start + size:
                raise MalformedError(f"tagged field {tag} takes {self.position - start} bytes, not its {size}")


class Writer:
    """Writes one reply of a classic version: bytes, and slices that stay as they were given."""

    __slots__ = ("_bytes", "_pieces", "throttle_ms")
    flexible: ClassVar[bool] = False

    def __init__(self, start: bytes, throttle_ms: int = 0) -> None:
        self._bytes = bytearray(start)
        self._pieces: list[Any] = []  # bytes, slice, bytes, ...
        self.throttle_ms = throttle_ms

    def raw(self, data: bytes) -> None:
        """Bytes that are laid out already."""
        self._bytes += data

    def boolean(self, value: bool) -> None:
        """One byte."""
        self._bytes.append(value)

    def int8(self, value: int) -> None:
        """One byte, signed."""
        self._bytes += _INT8.pack(value)

    def int16(self, value: int) -> None:
        """Two bytes, signed."""
        self._bytes += _INT16.pack(value)

    def int32(self, value: int) -> None:
        """Four bytes, signed."""
        self._bytes += _INT32.pack(value)

    def int64(self, value: int) -> None:
        """Eight bytes, signed."""
        self._bytes += _INT64.pack(value)

    def uint16(self, value: int) -> None:
        """Write two bytes, unsigned."""
        self._bytes += _UINT16.pack(value)

    def float64(self, value: float) -> None:
        """Write a double of eight bytes."""
        self._bytes += _FLOAT64.pack(value)

    def presence(self, present: bool) -> None:
        """Write the byte before a nullable struct."""
        self.int8(1 if present else -1)

    def uuid(self, value: bytes) -> None:
        """The sixteen bytes of a topic id."""
        assert len(value) == 16
        self._bytes += value

    def uvarint(self, value: int) -> None:
        """Seven bits a byte, the lowest first."""
        while value >= 0x80:
            self._bytes.append(value & 0x7F | 0x80)
            value >>= 7
        self._bytes.append(value)

    def string(self, text: str) -> None:
        """Text."""
        encoded = text.encode()
        self._bytes += _INT16.pack(len(encoded))
        self._bytes += encoded

    def nullable_string(self, text: str | None) -> None:
        """Text or None."""
        if text is None:
            self._bytes += b"\xff\xff"
        else:
            self.string(text)

    def length(self, length: int) -> None:
        """What precedes bytes; -1 for null."""
        self._bytes += _INT32.pack(length)

    def data(self, data: bytes | memoryview) -> None:
        """Bytes."""
        self.length(len(data))
        self._bytes += data

    def nullable_data(self, data: bytes | memoryview | None) -> None:
        """Bytes or None."""
        if data is None:
            self.length(-1)
        else:
            self.data(data)

    def count(self, count: int) -> None:
        """How many elements follow; -1 for null."""
        self._bytes += _INT32.pack(count)

    nullable_count = count

    def tags(self) -> None:
        """The end of a struct without tagged fields."""

    def slice(self, part: Sized) -> None:
        """Records, as they are; an empty one leaves nothing behind."""
        if len(part):
            self._pieces += (bytes(self._bytes), part)
            self._bytes = bytearray()

    def written(self) -> bytes:
        """All of it, where there was no slice."""
        assert not self._pieces
        return bytes(self._bytes)

    def finish_frame(self) -> list[Sized]:
        """Everything in order. Its first four bytes are there for the frame's length, which goes into them."""
        pieces, rest = self._pieces, self._bytes
        if not pieces:
            LENGTH.pack_into(rest, 0, len(rest) - LENGTH_SIZE)
            return [bytes(rest)]
        if rest:
            pieces.append(bytes(rest))
        pieces[0] = LENGTH.pack(sum(map(len, pieces)) - LENGTH_SIZE) + pieces[0][LENGTH_SIZE:]
        return pieces


class FlexibleWriter(Writer):
    """Writes one reply of a flexible version."""

    __slots__ = ()
    flexible: ClassVar[bool] = True

    def string(self, text: str) -> None:
        """Text."""
        encoded = text.encode()
        if len(encoded) < _ONE_BYTE:
            self._bytes.append(len(encoded) + 1)
        else:
            self.uvarint(len(encoded) + 1)
        self._bytes += encoded

    def nullable_string(self, text: str | None) -> None:
        """Text or None."""
        if text is None:
            self._bytes.append(0)
        else:
            self.string(text)

    def length(self, length: int) -> None:
        """What precedes bytes; -1 for null."""
        self.uvarint(length + 1)

    def count(self, count: int) -> None:
        """How many elements follow; -1 for null."""
        self.uvarint(count + 1)

    nullable_count = count

    def tags(self) -> None:
        """The end of a struct without tagged fields."""
        self._bytes.append(0)


def _refuse_null(what: str) -> NoReturn:
    raise MalformedError(f"null where a {what} must be")
