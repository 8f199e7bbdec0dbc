"""The compiled and the pure record codec behave the same on valid, corrupted and random bytes."""

from collections.abc import Callable
from types import ModuleType

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.records.handmade import record
from tests.protocol.records.strategies import ROWS, broken
from warmlog.protocol.records import record as pure

FIELDS = ("offset", "timestamp", "key", "value", "headers")


def outcome(call: Callable[[], object]) -> object:
    """Return the result of a call, or the type and text of its error."""
    try:
        return call()
    except (ValueError, TypeError, pure.InvalidRecordError) as error:
        return type(error), str(error)


def both(compiled: ModuleType, use: Callable[[ModuleType], object]) -> object:
    """Check that both codecs have the same outcome, and return it."""
    reference = outcome(lambda: use(pure))
    assert outcome(lambda: use(compiled)) == reference
    return reference


def encode(variant: ModuleType, rows: list[pure.Row]) -> tuple[bytes, int, int, int, int]:
    encoder = variant.RecordEncoder()
    size = encoder.extend(rows)
    return encoder.records(), size, encoder.count, encoder.base_timestamp, encoder.max_timestamp


@given(rows=ROWS)
@settings(max_examples=100)
def test_written_values_are_read(compiled: ModuleType, rows: list[pure.Row]) -> None:
    written = both(compiled, lambda variant: encode(variant, rows))
    assert isinstance(written, tuple)
    data, size, count, base, latest = written
    assert (len(data), len(rows)) == (size, count)
    assert latest == max((row[0] for row in rows), default=-1)
    both(compiled, lambda variant: variant.walk_records(data, 0, size, count))
    records = both(compiled, lambda variant: variant.decode_records(data, 0, size, count, 500, base))
    assert records == [
        pure.Record(500 + index, time, key, value, tuple(headers))
        for index, (time, key, value, headers) in enumerate(rows)
    ]


def read(compiled: ModuleType, data: bytes, count: int, base_offset: int, base_time: int) -> None:
    both(compiled, lambda variant: variant.walk_records(data, 0, len(data), count))
    both(compiled, lambda variant: variant.decode_records(data, 0, len(data), count, base_offset, base_time))


@given(data=st.data(), rows=ROWS, more=st.integers(-1, 1))
@settings(max_examples=200)
def test_broken_records_are_refused_alike(
    compiled: ModuleType, data: st.DataObject, rows: list[pure.Row], more: int
) -> None:
    whole = encode(pure, rows)[0]
    read(compiled, data.draw(broken(whole)), len(rows) + more, 0, 1000)


@given(noise=st.binary(max_size=80), count=st.integers(-1, 12))
@settings(max_examples=200)
def test_noise_is_refused_alike(compiled: ModuleType, noise: bytes, count: int) -> None:
    read(compiled, noise, count, 0, 0)


@given(
    number=st.binary(min_size=1, max_size=12),
    place=st.integers(0, 5),
    base_offset=st.integers(-(2**63), 2**63 - 1),
    base_time=st.integers(-(2**63), 2**63 - 1),
)
@settings(max_examples=200)
def test_every_number_is_read_alike_in_every_place(
    compiled: ModuleType, number: bytes, place: int, base_offset: int, base_time: int
) -> None:
    numbers = [b"\0", b"\0", b"\1", b"\1", b"\0"]
    if place < len(numbers):
        numbers[place] = number
    body = b"\0" + b"".join(numbers) + bytes(3)
    data = (number if place == len(numbers) else bytes([2 * len(body)])) + body
    read(compiled, data, 1, base_offset, base_time)


def test_every_single_byte_changed_is_refused_or_read_alike(compiled: ModuleType) -> None:
    whole = record(key=b"k", headers=[(b"h", b"x")]) + record(offset_delta=1, timestamp_delta=300)
    for position in range(len(whole)):
        for byte in range(256):
            changed = whole[:position] + bytes([byte]) + whole[position + 1 :]
            read(compiled, changed, 2, 0, 0)


@given(
    fields=st.tuples(
        st.none() | st.binary(max_size=3) | st.text(max_size=2),
        st.none() | st.binary(max_size=3) | st.integers(),
        st.integers(-(2**64), 2**64) | st.none() | st.booleans(),
        st.none()
        | st.integers(0, 1)
        | st.lists(st.tuples(st.text(max_size=2), st.none() | st.binary(max_size=2) | st.text(max_size=1)), max_size=2),
    )
)
@settings(max_examples=150)
def test_rows_of_wrong_types_are_refused_alike(compiled: ModuleType, fields: tuple[object, ...]) -> None:
    key, value, time, headers = fields
    both(compiled, lambda variant: encode(variant, [(time, key, value, headers)]))  # type: ignore[list-item]
