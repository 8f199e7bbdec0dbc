"""Decode batches for the console, and show bytes: printable UTF-8 as text, all else in hexadecimal digits."""

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from warmlog.broker.console.records.pieces import Pieces
from warmlog.broker.console.records.values import BytesForm, HeaderForm, RecordForm
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records.batch import headers, verify_crc
from warmlog.protocol.records.layout import BatchHeader
from warmlog.protocol.records.markers import end_marker
from warmlog.protocol.records.reader import decode_batch
from warmlog.protocol.records.record import Buffer, Record

MAX_DECODED_BYTES: Final = 16 << 20  # of a batch, decompressed
PREVIEW_BYTES: Final = 1024  # of a key, a value or a header
MAX_HEADERS: Final = 50  # of a record
MAX_SHOWN_BYTES: Final = 1 << 20  # of a list
PRINTABLE_CONTROLS: Final = frozenset("\t\n\r")

Keeps = Callable[[Record], bool]
_Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]


class Found(NamedTuple):
    """A record, the base offset of its batch, and the marker of a transaction that it is."""

    record: Record
    batch: int
    control: str | None


class Decoded(NamedTuple):
    """The records of a slice that were looked for.

    `next_offset` follows the last whole batch; None: there was none. `skipped` says which batches were not readable.
    """

    records: list[Found]
    next_offset: int | None
    skipped: list[str]


def decode_slice(data: Buffer, first: int, end: int, keeps: Keeps | None, most: int) -> Decoded:
    """Decode up to `most` records with offsets in [first, end). In a thread; it pauses between pieces of work."""
    chosen = _Chosen(first, end, keeps, most)
    skipped: list[str] = []
    next_offset = None
    for position, header in _whole_batches(data):
        if header.base_offset >= end or chosen.is_full:
            break
        next_offset = header.next_offset
        if header.last_offset < first:
            continue
        chosen.header, before = header, len(chosen.records)
        try:
            verify_crc(data, position, header)
            _decode(data, position, header, chosen)
        except _Enough:
            continue
        except ProtocolError as error:
            del chosen.records[before:]
            skipped.append(f"batch {header.base_offset} to {header.last_offset}: {error}")
    return Decoded(chosen.records, next_offset, skipped)


def _decode(data: Buffer, position: int, header: BatchHeader, chosen: "_Chosen") -> None:
    decode_batch(
        data, position, header,
        max_decompressed_size=MAX_DECODED_BYTES, make=chosen.take, max_headers=MAX_HEADERS,
    )  # fmt: skip


class _Enough(Exception):  # noqa: N818  # not an error
    """The rest of a batch is not wanted."""


class _Chosen:
    """The records of a slice that are wanted. `header` is the one of their batch."""

    header: BatchHeader

    def __init__(self, first: int, end: int, keeps: Keeps | None, most: int) -> None:
        self.records: list[Found] = []
        self._first, self._end, self._keeps, self._most = first, end, keeps, most
        self._pieces = Pieces()

    @property
    def is_full(self) -> bool:
        """Whether there are as many as wanted."""
        return len(self.records) >= self._most

    def take(self, offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: _Headers) -> None:
        """Keep a record that is wanted. Raises _Enough after the last one."""
        if offset >= self._end or self.is_full:
            raise _Enough
        self._pieces.pause()
        if offset < self._first:
            return
        record = Record(offset, timestamp, key, value, headers)
        if self._keeps is None or (not self.header.is_control and self._keeps(record)):
            self.records.append(Found(record, self.header.base_offset, _control(self.header, record)))


def _whole_batches(data: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the batches of a slice, whose last one may be cut off."""
    try:
        for position, header in headers(data):
            if position + header.size > len(data):
                return
            yield position, header
    except ProtocolError:
        return  # the rest of a batch that is cut off within its header


def _control(header: BatchHeader, record: Record) -> str | None:
    if not header.is_control:
        return None
    try:
        marker = end_marker([record])
    except ProtocolError:
        marker = None
    return "control" if marker is None else marker.outcome.name.lower()


class Shown(NamedTuple):
    """The first records of a list, as many as an answer may hold."""

    forms: tuple[RecordForm, ...]
    left: int


def show_records(records: Sequence[Found]) -> Shown:
    """Return records up to MAX_SHOWN_BYTES, at least one. In a thread; it pauses between pieces of work."""
    pieces = Pieces()
    forms: list[RecordForm] = []
    size = 0
    for each in records:
        form = record_form(each)
        size += _shown_bytes(form)
        if forms and size > MAX_SHOWN_BYTES:
            break
        forms.append(form)
        pieces.pause()
    return Shown(tuple(forms), len(records) - len(forms))


def _shown_bytes(form: RecordForm) -> int:
    fields = [form.key, form.value, *(each.value for each in form.headers)]
    return sum(each.shown for each in fields if each is not None) + sum(len(each.key) for each in form.headers)


def record_form(found: Found, preview: int = PREVIEW_BYTES) -> RecordForm:
    """Return a record with the first bytes of its fields."""
    record = found.record
    return RecordForm(
        offset=record.offset,
        timestamp=record.timestamp,
        batch=found.batch,
        key=bytes_form(record.key, preview),
        value=bytes_form(record.value, preview),
        headers=tuple(
            HeaderForm(key=key[:PREVIEW_BYTES], value=bytes_form(value, preview)) for key, value in record.headers
        ),
        control=found.control,
    )


def bytes_form(data: bytes | None, preview: int = PREVIEW_BYTES) -> BytesForm | None:
    """Return the first bytes as text or in hexadecimal digits."""
    if data is None:
        return None
    head = bytes(data[:preview])
    text = _printable(head, is_cut=len(data) > preview)
    if text is not None:
        return BytesForm(size=len(data), shown=len(text.encode()), text=text)
    return BytesForm(size=len(data), shown=len(head), hex=head.hex())


def _printable(data: bytes, *, is_cut: bool) -> str | None:
    """Return the text that bytes are, without a character that was cut off; None if they are something else."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not is_cut or error.reason != "unexpected end of data":
            return None
        text = data[: error.start].decode()
    if text.isascii() and text.isprintable():
        return text
    if any(unicodedata.category(each) in {"Cc", "Cf"} and each not in PRINTABLE_CONTROLS for each in text):
        return None  # NUL and other controls, and characters that reverse the direction of text
    return text
