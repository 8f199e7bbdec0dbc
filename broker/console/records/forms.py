"""Decode batches for the console, and show bytes: printable UTF-8 as text, others as hexadecimal digits."""

import unicodedata
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from warmlog.broker.console.records.pieces import Pieces
from warmlog.broker.console.records.values import BytesForm, HeaderForm, RecordForm
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records.batch import headers, verify_crc
from warmlog.protocol.records.layout import BatchHeader
from warmlog.protocol.records.markers import end_marker
from warmlog.protocol.records.reader import decode_batch
from warmlog.protocol.records.record import Buffer, Record

MAX_DECODED_BYTES: Final = 16 << 20  # decompressed bytes: of a batch, and of all keys and values of a slice
PREVIEW_BYTES: Final = 1024  # of a key, a value or a header
MAX_HEADERS: Final = 50  # of a record
MAX_SHOWN_BYTES: Final = 1 << 20  # of a list
PRINTABLE_CONTROLS: Final = frozenset("\t\n\r")

Keeps = Callable[[Record], bool]
F = TypeVar("F")
_Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]


class ShownRecord(NamedTuple):
    """A record, the base offset of its batch, and the kind of transaction marker, if it is one."""

    record: Record
    batch: int
    control: str | None


@dataclass(frozen=True, slots=True)
class Decoded(Generic[F]):
    """The records of a slice that match the query.

    `next_offset` follows the last batch that was read; None if there was none. `skipped` lists unreadable batches.
    `size` is that of all decompressed keys and values.
    """

    records: Sequence[F]
    next_offset: int | None
    skipped: list[str]
    size: int


class Wanted(NamedTuple, Generic[F]):
    """Up to `most` of the records with offsets in [first, end) that `keeps` accepts: the oldest, or the `newest`.

    `form` immediately converts each record to its shown form, so that only one whole value is in memory at a time.
    """

    first: int
    end: int
    keeps: Keeps | None
    most: int
    form: Callable[[ShownRecord], F]
    newest: bool = False


def decode_slice(data: Buffer, wanted: Wanted[F]) -> Decoded[F]:
    """Decode the records that are wanted, until MAX_DECODED_BYTES were decompressed.

    Call it in a thread; it pauses between pieces of work.
    """
    chosen = _Chosen(wanted)
    skipped: list[str] = []
    next_offset = None
    for position, header in _whole_batches(data):
        if header.base_offset >= wanted.end or chosen.is_full or chosen.size > MAX_DECODED_BYTES:
            break
        next_offset = header.next_offset
        if header.last_offset < wanted.first:
            continue
        try:
            verify_crc(data, position, header)
            chosen.decode(data, position, header)
        except ProtocolError as error:
            skipped.append(f"batch {header.base_offset} to {header.last_offset}: {error}")
    return Decoded(chosen.records, next_offset, skipped, chosen.size)


class _Enough(Exception):  # noqa: N818  # not an error
    """No further records of the batch are wanted."""


class _Chosen(Generic[F]):
    """The wanted records of a slice."""

    _header: BatchHeader

    def __init__(self, wanted: Wanted[F]) -> None:
        self.records = deque[F](maxlen=wanted.most)
        self.size = 0
        self._batch = deque[F](maxlen=wanted.most)  # records of the batch being decoded
        self._wanted = wanted
        self._pieces = Pieces()

    @property
    def is_full(self) -> bool:
        """Whether no further record is wanted."""
        return not self._wanted.newest and len(self.records) + len(self._batch) >= self._wanted.most

    def decode(self, data: Buffer, position: int, header: BatchHeader) -> None:
        """Add the wanted records of a batch, all or none. Raises ProtocolError."""
        self._header = header
        self._batch.clear()
        with suppress(_Enough):
            decode_batch(
                data, position, header,
                max_decompressed_size=MAX_DECODED_BYTES, make=self._take, max_headers=MAX_HEADERS,
            )  # fmt: skip
        self.records.extend(self._batch)
        self._batch.clear()

    def _take(self, offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: _Headers) -> None:
        """Keep a wanted record. Raises _Enough after the last one."""
        if offset >= self._wanted.end or self.is_full:
            raise _Enough
        self._pieces.pause()
        self.size += len(key or b"") + len(value or b"")
        if offset < self._wanted.first:
            return
        record, keeps = Record(offset, timestamp, key, value, headers), self._wanted.keeps
        if keeps is None or (not self._header.is_control and keeps(record)):
            shown = ShownRecord(record, self._header.base_offset, _control(self._header, record))
            self._batch.append(self._wanted.form(shown))


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


def fitting(forms: Sequence[RecordForm]) -> int:
    """Return how many of these records, at least one, fit into an answer."""
    size = 0
    for count, form in enumerate(forms):
        size += _shown_bytes(form)
        if count and size > MAX_SHOWN_BYTES:
            return count
    return len(forms)


def _shown_bytes(form: RecordForm) -> int:
    fields = [form.key, form.value, *(each.value for each in form.headers)]
    return sum(each.shown for each in fields if each is not None) + sum(len(each.key) for each in form.headers)


def record_form(shown: ShownRecord, preview: int = PREVIEW_BYTES) -> RecordForm:
    """Return a record with the first bytes of its fields."""
    record = shown.record
    return RecordForm(
        offset=record.offset,
        timestamp=record.timestamp,
        batch=shown.batch,
        key=bytes_form(record.key, preview),
        value=bytes_form(record.value, preview),
        headers=tuple(
            HeaderForm(key=key[:PREVIEW_BYTES], value=bytes_form(value, preview)) for key, value in record.headers
        ),
        control=shown.control,
    )


def bytes_form(data: bytes | None, preview: int = PREVIEW_BYTES) -> BytesForm | None:
    """Return the first bytes as text or hexadecimal digits."""
    if data is None:
        return None
    head = bytes(data[:preview])
    text = _printable(head, is_cut=len(data) > preview)
    if text is not None:
        return BytesForm(size=len(data), shown=len(text.encode()), text=text)
    return BytesForm(size=len(data), shown=len(head), hex=head.hex())


def _printable(data: bytes, *, is_cut: bool) -> str | None:
    """Return bytes as text, without a character that is cut off at the end; None if they are not printable UTF-8."""
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
