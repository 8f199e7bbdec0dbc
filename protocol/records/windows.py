"""Read the records of a block part by part, in windows of whole records: a block of any size takes bounded memory.

    parts       |----|----|----|----|----|----|----|----|----|
    records     |-|--|-|--|---------------------------|-|--|-|
    windows     |.........|            stub           |......|

A block of up to `WINDOW` bytes is one window. A record that is larger than that is replaced by a stub with the same
deltas and key, an empty value and no headers; `Window.large` yields the bytes of the record itself.

Invariants:
1. The windows hold `count` records, and no bytes remain after them; otherwise InvalidRecordError is raised, by
`record_windows` or when the last window is decoded.
2. A large record is read or skipped before the next window.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from warmlog.protocol.records.record import (
    BAD_FIELD_LENGTH,
    BAD_LENGTH,
    CUT,
    LAST_SHIFT_64,
    MAX_UINT64,
    MIN_RECORD_SIZE,
    Buffer,
    _Broken,
    _read_varint,
    _write_varint,
    refuse_record,
    refuse_rest,
)

__all__ = ["WINDOW", "LargeRecord", "Window", "record_windows"]

WINDOW = 4 << 20  # bytes; most blocks are smaller, so that walking their records to split them is rare
_MAX_VARINT = 5  # bytes
_MAX_VARLONG = 10
_NULL, _EMPTY = _write_varint(-1), _write_varint(0)


class LargeRecord:
    """A record that does not fit into a window. Its bytes can be read once, before the next window."""

    __slots__ = ("_attributes", "_fields", "_rest", "_source", "_timestamp_delta")

    def __init__(self, source: "_Source", attributes: bytes, timestamp_delta: int, fields: bytes, rest: int) -> None:
        """Store the fields before the timestamp delta, those between it and the value, and the size of the rest."""
        self._source = source
        self._attributes = attributes
        self._timestamp_delta = timestamp_delta
        self._fields = fields
        self._rest = rest

    def parts(self, shift_ms: int = 0) -> Iterator[Buffer]:
        """Yield the record, with `shift_ms` added to its timestamp delta. Raises the errors of `record_windows`."""
        start = self._attributes + _write_varint(self._timestamp_delta + shift_ms) + self._fields
        yield _write_varint(len(start) + self._rest) + start
        yield from self.rest()

    def rest(self) -> Iterator[Buffer]:
        """Yield the unread bytes, from the value on. Raises the errors of `record_windows`."""
        while self._rest:
            part = self._source.take_some(self._rest)
            self._rest -= len(part)
            yield part


@dataclass(slots=True)
class Window:
    """A window of `count` whole records. If `large` is set, `records` is the stub of that record."""

    records: Buffer
    count: int
    large: LargeRecord | None = None


def record_windows(parts: Iterator[Buffer], count: int) -> Iterator[Window]:
    """Yield the windows of `count` records, at least one.

    Records are validated only as far as splitting requires it. Raises InvalidRecordError, and the errors of `parts`.
    """
    source = _Source(parts, count)
    while not source.fill(WINDOW):
        number, end = source.whole_records()
        if number:
            yield Window(source.take(end), number)
            source.index += number
        else:
            yield from source.large_record()
    yield Window(source.take(len(source)), count - source.index)


class _Source:
    """The bytes of a block not yet yielded; `index` is the number of records before them."""

    def __init__(self, parts: Iterator[Buffer], count: int) -> None:
        self.index = 0
        self._parts = parts
        self._count = count
        self._read: list[Buffer] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def fill(self, size: int) -> bool:
        """Read until at least `size` bytes are available; return whether the block ends before."""
        while self._size < size:
            part = next(self._parts, None)
            if part is None:
                return True
            self._read.append(part)
            self._size += len(part)
        return False

    def take(self, size: int) -> Buffer:
        """Remove and return `size` available bytes."""
        data = self._joined()
        self._put_back(data, size)
        return data if size == len(data) else memoryview(data)[:size]

    def take_some(self, size: int) -> Buffer:
        """Remove and return up to `size` bytes. Raises InvalidRecordError at the end of the block."""
        if self.fill(1):
            self.refuse(CUT)
        part = self._read.pop(0)
        self._size -= len(part)
        if len(part) > size:
            rest = memoryview(part)[size:]
            self._read.insert(0, rest)
            self._size += len(rest)
            part = memoryview(part)[:size]
        return part

    def whole_records(self) -> tuple[int, int]:
        """Return the number of whole records available, and their size. Raises InvalidRecordError."""
        data = self._joined()
        left = self._count - self.index
        if not left:
            refuse_rest(len(data), self._count)
        position = number = 0
        try:
            while number < left and len(data) - position >= _MAX_VARINT:
                length, start = _read_varint(data, position, len(data))
                if length < MIN_RECORD_SIZE - 1:
                    self.refuse(BAD_LENGTH, number)
                if length > len(data) - start:
                    break
                position = start + length
                number += 1
        except _Broken as broken:
            self.refuse(broken.args[0], number)
        return number, position

    def large_record(self) -> Iterator[Window]:
        """Yield the stub of the first record, which is not completely available, and then skip its rest."""
        try:
            data = self._joined()
            length, start = _read_varint(data, 0, len(data))
            timestamp_delta, position = _read_varint(data, start + 1, len(data), LAST_SHIFT_64, MAX_UINT64)
            deltas = position
            _, position = _read_varint(data, position, len(data))
            key_length, position = _read_varint(data, position, len(data))
            key_end = position + max(key_length, 0)
            self.fill(min(key_end + _MAX_VARINT, start + length))
            data = self._joined()
            value_length, value = _read_varint(data, key_end, min(len(data), start + length))
        except _Broken as broken:
            self.refuse(broken.args[0])
        if key_length < -1 or not -1 <= value_length <= start + length - value:
            self.refuse(BAD_FIELD_LENGTH)
        self.take(value)
        body = data[start:deltas] + data[deltas:key_end] + (_NULL if value_length < 0 else _EMPTY) + _EMPTY
        large = LargeRecord(self, data[start : start + 1], timestamp_delta, data[deltas:value], start + length - value)
        yield Window(_write_varint(len(body)) + body, 1, large)
        for _ in large.rest():
            pass
        self.index += 1

    def refuse(self, reason: int, number: int = 0) -> None:
        refuse_record(self.index + number, self._count, reason)

    def _joined(self) -> bytes:
        if len(self._read) != 1 or not isinstance(self._read[0], bytes):
            self._read = [b"".join(self._read)]
        data = self._read[0]
        assert isinstance(data, bytes)
        return data

    def _put_back(self, data: bytes, start: int) -> None:
        self._read = [memoryview(data)[start:]] if start < len(data) else []
        self._size = len(data) - start
