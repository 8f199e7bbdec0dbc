"""Decode batches for the console, and show bytes: printable UTF-8 as text, all else in hexadecimal digits."""

import unicodedata
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from warmlog.broker.console.record_values import BytesForm, HeaderForm, RecordForm
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records.batch import headers, verify_crc
from warmlog.protocol.records.layout import BatchHeader
from warmlog.protocol.records.markers import end_marker
from warmlog.protocol.records.reader import decode_batch
from warmlog.protocol.records.record import Buffer, Record

MAX_DECODED_BYTES: Final = 16 << 20  # of a batch, decompressed
PREVIEW_BYTES: Final = 1024  # of a key, a value or a header
MAX_HEADERS: Final = 50  # of a record
PRINTABLE_CONTROLS: Final = frozenset("\t\n\r")

Keeps = Callable[[Record], bool]


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
    """Decode the records with offsets in [first, end), up to the batch with which there are `most`. In a thread."""
    found: list[Found] = []
    skipped: list[str] = []
    next_offset = None
    for position, header in _whole_batches(data):
        if header.base_offset >= end or len(found) >= most:
            break
        next_offset = header.next_offset
        if header.last_offset < first:
            continue
        try:
            verify_crc(data, position, header)
            records = decode_batch(data, position, header, max_decompressed_size=MAX_DECODED_BYTES)
        except ProtocolError as error:
            skipped.append(f"batch {header.base_offset} to {header.last_offset}: {error}")
            continue
        found += [
            Found(record, header.base_offset, _control(header, record))
            for record in records
            if first <= record.offset < end and (keeps is None or (not header.is_control and keeps(record)))
        ]
    return Decoded(found, next_offset, skipped)


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
            HeaderForm(key=key[:PREVIEW_BYTES], value=bytes_form(value, preview))
            for key, value in record.headers[:MAX_HEADERS]
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
