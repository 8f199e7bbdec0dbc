"""Records as Arrow columns: both builders against the record codec, and against each other."""

import importlib
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.records.strategies import ROWS, broken
from tests.requires import lacks
from warmlog.protocol.errors import InvalidRecordError
from warmlog.protocol.records.arrow import columns
from warmlog.protocol.records.arrow.columns import BytesColumn, ColumnBuilder, Columns, HeaderColumn, Wanted
from warmlog.protocol.records.batch import read_header
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import HEADER_SIZE
from warmlog.protocol.records.record import MAX_INT64, Record, decode_records

BuilderType = type[ColumnBuilder]
BASE_OFFSET = 1_000
HEADER_KEY_NO_UTF8 = b"\xff\xfe"


def compiled_builder() -> BuilderType:
    try:
        found: BuilderType = importlib.import_module("warmlog.protocol.records.arrow._columns").ColumnBuilder
    except ImportError as error:
        lacks(f"the compiled column builder is not built here: {error}")
    return found


@pytest.fixture(scope="session", params=["pure", "compiled"])
def make_builder(request: pytest.FixtureRequest) -> BuilderType:
    return columns.ColumnBuilder if request.param == "pure" else compiled_builder()


def numbers(code: str, buffer: Any) -> list[int]:
    return list(array(code, bytes(buffer)))


def is_valid(validity: Any, index: int) -> bool:
    return validity is None or bool(bytes(validity)[index // 8] >> index % 8 & 1)


def values_of(column: BytesColumn) -> list[bytes | None]:
    ends, data = numbers("i", column.offsets), bytes(column.data)
    assert len(ends) == column.count + 1
    assert ends[-1] == len(data)
    found = [data[ends[at] : ends[at + 1]] if is_valid(column.validity, at) else None for at in range(column.count)]
    assert found.count(None) == column.null_count
    return found


def headers_of(column: HeaderColumn) -> list[list[tuple[str, bytes | None]] | None]:
    keys, values = values_of(column.keys), values_of(column.values)
    pairs = [((key or b"").decode(), value) for key, value in zip(keys, values, strict=True)]
    ends = numbers("i", column.offsets)
    found = [pairs[ends[at] : ends[at + 1]] if is_valid(column.validity, at) else None for at in range(column.count)]
    assert found.count(None) == column.null_count
    return found


def rows_of(taken: Columns) -> list[tuple[Any, ...]]:
    """Return the contents of the columns as one tuple per record."""
    fixed = [numbers("q", taken.offsets), numbers("q", taken.timestamps_us), numbers("i", taken.timestamp_types)]
    variable = [values_of(column) if column else [] for column in (taken.keys, taken.values)]
    present: list[list[Any]] = [*fixed, *(column for column in variable if column)]
    if taken.headers:
        present.append(headers_of(taken.headers))
    assert {len(column) for column in present} == {taken.count}
    return list(zip(*present, strict=True))


def expected(records: list[Record], *, appended: bool = False) -> list[tuple[Any, ...]]:
    return [
        (one.offset, one.timestamp * 1000, int(appended), one.key, one.value, list(one.headers) or None)
        for one in records
    ]


def arguments(batch: bytes) -> tuple[Any, ...]:
    header = read_header(batch)
    return (
        batch,
        HEADER_SIZE,
        len(batch),
        header.record_count,
        header.base_offset,
        header.base_timestamp,
        header.append_time_ms,
    )


def batch_of(*values: bytes | None, base_offset: int = BASE_OFFSET) -> bytes:
    return build_batch([(at, None, value, ()) for at, value in enumerate(values)], base_offset=base_offset)


@given(groups=st.lists(ROWS.filter(bool), min_size=1, max_size=4))
def test_columns_match_the_record_codec(make_builder: BuilderType, groups: list[Any]) -> None:
    builder = make_builder(headers=True)
    records: list[Record] = []
    for rows in groups:
        call = arguments(build_batch(rows, base_offset=BASE_OFFSET + len(records)))
        decoded = decode_records(*call)
        assert builder.add(*call) == len(decoded)
        records += decoded
        assert builder.count == len(records)
    said = rows_of(builder.take())
    times = [min(record.timestamp, columns.MAX_TIMESTAMP_MS) * 1000 for record in records]
    assert [row[1] for row in said] == times
    assert [row[:1] + row[2:] for row in said] == [row[:1] + row[2:] for row in expected(records)]
    assert (builder.count, builder.size) == (0, 0)
    assert rows_of(builder.take()) == []


@given(data=st.data(), rows=ROWS.filter(bool), after=ROWS.filter(bool))
def test_a_batch_that_is_refused_leaves_no_trace(make_builder: BuilderType, data: Any, rows: Any, after: Any) -> None:
    good = arguments(build_batch(after, base_offset=BASE_OFFSET))
    bad = list(arguments(build_batch(rows)))
    bad[0] = bad[0][:HEADER_SIZE] + data.draw(broken(bad[0][HEADER_SIZE:]))
    bad[2] = len(bad[0])
    builder, alone = make_builder(headers=True), make_builder(headers=True)
    builder.add(*good)
    alone.add(*good)
    try:
        decoded: list[Record] | str = decode_records(*bad)
    except InvalidRecordError as error:
        decoded = str(error)
    if isinstance(decoded, str):
        with pytest.raises(InvalidRecordError) as refused:
            builder.add(*bad)
        assert str(refused.value) == decoded
    else:
        builder.add(*bad)
        alone.add(*bad)
    builder.add(*good)
    alone.add(*good)
    assert builder.size == alone.size
    assert rows_of(builder.take()) == rows_of(alone.take())


@given(rows=ROWS.filter(bool), first=st.integers(0, 12), last=st.integers(0, 12), times=st.tuples(*[st.integers()] * 2))
def test_only_matching_records_are_added(
    make_builder: BuilderType, rows: Any, first: int, last: int, times: tuple[int, int]
) -> None:
    low, high = (max(-MAX_INT64, min(time, MAX_INT64)) for time in times)
    wanted = Wanted(BASE_OFFSET + first, BASE_OFFSET + last, low, high)
    call = arguments(build_batch(rows, base_offset=BASE_OFFSET))
    builder = make_builder()
    kept = [
        record.offset
        for record in decode_records(*call)
        if wanted.first_offset <= record.offset <= wanted.last_offset and low <= record.timestamp <= high
    ]
    assert builder.add(*call, wanted) == len(kept)
    assert [row[0] for row in rows_of(builder.take())] == kept


@given(rows=ROWS.filter(bool))
def test_compiled_and_pure_builder_return_the_same_buffers(rows: Any) -> None:
    call = arguments(build_batch(rows))
    builders = [columns.ColumnBuilder(headers=True), compiled_builder()(headers=True)]
    for builder in builders:
        builder.add(*call)
        builder.add(*call)
    pure, quick = builders
    assert pure.size == quick.size
    assert plain(pure.take()) == plain(quick.take())


def plain(value: Any) -> Any:
    """Return the columns with every buffer copied to bytes."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value if value is None or isinstance(value, int) else bytes(value)


def test_columns_that_were_not_asked_for_are_not_there(make_builder: BuilderType) -> None:
    builder = make_builder(keys=False, values=False)
    builder.add(*arguments(batch_of(b"a", b"b")))
    assert builder.size == 0
    taken = builder.take()
    assert (taken.count, taken.keys, taken.values, taken.headers) == (2, None, None, None)


def test_the_brokers_time_stands_for_all_of_its_batch(make_builder: BuilderType) -> None:
    builder = make_builder()
    call = (*arguments(batch_of(b"a", b"b"))[:-1], 77)
    builder.add(*call)
    assert [row[1:3] for row in rows_of(builder.take())] == [(77_000, 1)] * 2


def test_a_time_beyond_microseconds_is_the_last_that_there_is(make_builder: BuilderType) -> None:
    builder = make_builder()
    builder.add(*arguments(build_batch([(1 << 62, None, None, ())])))
    ((_, time, *_),) = rows_of(builder.take())
    assert time == columns.MAX_TIMESTAMP_MS * 1000


def test_a_header_key_that_is_no_text_is_read_as_the_codec_reads_it(make_builder: BuilderType) -> None:
    batch = build_batch([(0, b"k", None, (("ab", b"x"), ("é", None)))]).replace(b"ab", HEADER_KEY_NO_UTF8)
    builder = make_builder(headers=True)
    builder.add(*arguments(batch))
    (row,) = rows_of(builder.take())
    assert row[-1] == [("\ufffd\ufffd", b"x"), ("é", None)] == list(decode_records(*arguments(batch))[0].headers)


def test_returned_columns_do_not_change(make_builder: BuilderType) -> None:
    builder = make_builder()
    builder.add(*arguments(batch_of(*[b"first"] * 100)))
    first = builder.take()
    before = plain(first)
    builder.add(*arguments(batch_of(*[None, b"other"] * 100)))
    del builder
    assert plain(first) == before


def test_a_range_outside_the_buffer_is_the_callers_mistake(make_builder: BuilderType) -> None:
    builder = make_builder()
    with pytest.raises(ValueError, match="are outside the buffer"):
        builder.add(b"12345678", 0, 9, 1, 0, 0)


def test_offsets_and_times_beyond_64_bits_are_refused(make_builder: BuilderType) -> None:
    batch = batch_of(b"a", b"b")
    builder = make_builder()
    with pytest.raises(InvalidRecordError, match="exceeds 64 bits"):
        builder.add(batch, HEADER_SIZE, len(batch), 2, MAX_INT64, 0)
    with pytest.raises(InvalidRecordError, match="exceeds 64 bits"):
        builder.add(batch, HEADER_SIZE, len(batch), 2, 0, MAX_INT64)
    assert builder.count == 0


def test_columns_that_would_pass_two_gigabytes_are_refused_before_they_are_read(make_builder: BuilderType) -> None:
    builder = make_builder()
    with pytest.raises(ValueError, match="2 GiB"):
        builder.add(b"", 0, 1 << 31, 1, 0, 0)
    assert builder.count == 0
