"""Tables of fields, and the bounds of what is read."""

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.kafka.primitives import (
    MAX_ELEMENTS,
    MAX_TAGGED_FIELDS,
    UNREADABLE,
    FlexibleReader,
    FlexibleWriter,
    MalformedError,
    Reader,
    Writer,
)
from protocol.kafka.schema import FLOAT64, INT32, STRING, UINT16, Array, Field, Struct, array
from tests.protocol.kafka.messages import MESSAGES, TABLES, body, drawn, parsed, with_defaults

NUMBERS = Struct(Field("numbers", Array(INT32), nullable=1))
NESTED = Struct(Field("outer", array(Field("inner", Array(STRING), nullable=0))))
CURSOR = Struct(Field("cursor", Struct(Field("topic", STRING), Field("partition", INT32)), nullable=0, default=None))
NUMERIC = Struct(Field("port", UINT16), Field("rate", FLOAT64))
TAGGED = Struct(Field("a", STRING, tag=3, default=""), Field("b", INT32, tag=1, default=0))


@pytest.mark.parametrize(("reader", "writer"), [(Reader, Writer), (FlexibleReader, FlexibleWriter)])
@pytest.mark.parametrize("cursor", [None, {"topic": "orders", "partition": 3}])
def test_a_nullable_struct_is_preceded_by_a_byte_that_says_whether_it_is_there(
    reader: type[Reader], writer: type[Writer], cursor: dict[str, Any] | None
) -> None:
    out = writer(b"")
    CURSOR.write(out, 0, {"cursor": cursor})
    assert out.written()[0] == (0xFF if cursor is None else 1)
    assert CURSOR.read(reader(memoryview(out.written())), 0) == {"cursor": cursor}


def test_unsigned_and_floating_numbers_are_big_endian() -> None:
    writer = Writer(b"")
    NUMERIC.write(writer, 0, {"port": 65_535, "rate": 1.5})
    assert writer.written() == b"\xff\xff" + b"\x3f\xf8\x00\x00\x00\x00\x00\x00"
    assert NUMERIC.read(Reader(memoryview(writer.written())), 0) == {"port": 65_535, "rate": 1.5}


@given(data=st.data(), message=st.sampled_from(MESSAGES))
def test_what_is_written_is_read_again(data: st.DataObject, message: tuple[str, Any, int]) -> None:
    name, api, version = message
    values = drawn(TABLES[name], version, data)
    assert parsed(name, api, version, body(name, api, version, values)) == with_defaults(TABLES[name], version, values)


@given(value=st.integers(0, (1 << 32) - 1))
def test_varints_of_every_length(value: int) -> None:
    writer = FlexibleWriter(b"")
    writer.uvarint(value)
    reader = FlexibleReader(memoryview(writer.written()))
    assert (reader.uvarint(), reader.position) == (value, reader.end)


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\x1f"])
def test_a_varint_of_more_than_32_bits_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError, match="varint"):
        FlexibleReader(memoryview(data)).uvarint()


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (Reader, b"\x7f\xff\xff\xff"),
        (Reader, b"\x7f\xff\xff\xff" + bytes(1000)),
        (Reader, b"\xff\xff\xff\xfe"),
        (Reader, b"\xff\xff\xff\xff"),
        (FlexibleReader, b"\xff\xff\xff\xff\x0f"),
        (FlexibleReader, b"\xff\xff\xff\xff\x0f" + bytes(1000)),
        (FlexibleReader, b"\x00"),
        (FlexibleReader, b"\x7f\x00"),
    ],
)
def test_an_impossible_count_is_refused_before_anything_is_allocated(kind: type[Reader], data: bytes) -> None:
    NUMBERS.reader(0, flexible=kind.flexible)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedError):
            NUMBERS.read(kind(memoryview(data)), 0)
        assert tracemalloc.get_traced_memory()[1] < 20_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("reader", "writer"), [(Reader, Writer), (FlexibleReader, FlexibleWriter)])
def test_all_arrays_of_a_frame_share_one_limit(reader: type[Reader], writer: type[Writer]) -> None:
    whole = writer(b"")
    NESTED.write(whole, 0, {"outer": [{"inner": None}, {"inner": [""] * 5}, {"inner": [""] * 4}]})
    view = memoryview(whole.written())
    exact, less = reader(view), reader(view)
    exact.elements_left, less.elements_left = 12, 11
    assert NESTED.read(exact, 0)["outer"][1]["inner"] == ("",) * 5
    assert exact.elements_left == 0
    with pytest.raises(MalformedError, match="more than"):
        NESTED.read(less, 0)


def test_an_array_of_more_elements_than_a_frame_may_have_is_refused() -> None:
    data = (MAX_ELEMENTS + 1).to_bytes(4) + bytes(4 * MAX_ELEMENTS + 4)
    with pytest.raises(MalformedError, match="more than 100000 array"):
        NUMBERS.read(Reader(memoryview(data)), 0)


@pytest.mark.parametrize("length", [b"\xff\xfe", b"\x7f\xff", b"\x00\x02"])
def test_a_length_beyond_the_frame_is_malformed(length: bytes) -> None:
    with pytest.raises(MalformedError, match="a length of"):
        Reader(memoryview(length + b"a")).nullable_string()


@pytest.mark.parametrize("length", [b"\x03", b"\xff\xff\xff\xff\x0f", b"\x80\x04", b"\xff\x01"])
@pytest.mark.parametrize("read", [FlexibleReader.string, FlexibleReader.nullable_string, FlexibleReader.nullable_data])
def test_a_flexible_length_beyond_the_frame_is_malformed(length: bytes, read: Any) -> None:
    with pytest.raises(MalformedError, match="a length of"):
        read(FlexibleReader(memoryview(length + b"a")))


@pytest.mark.parametrize("reader", [Reader(memoryview(b"\xff\xff\xff\xff")), FlexibleReader(memoryview(b"\x00"))])
def test_null_where_it_may_not_be_is_malformed(reader: Reader) -> None:
    for read in (reader.string, reader.data, reader.count):
        reader.position = 0
        with pytest.raises(MalformedError, match="null"):
            read()


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 128, 16_382, 16_383, 16_384, 3_000_000])
def test_lengths_around_the_borders_of_a_varint(size: int) -> None:
    writer = FlexibleWriter(b"")
    writer.string("x" * size)
    writer.nullable_data(b"y" * size)
    writer.nullable_data(None)
    view = memoryview(writer.written())
    reader = FlexibleReader(view)
    assert reader.string() == "x" * size
    data = reader.nullable_data()
    assert data == b"y" * size
    assert data.obj is view.obj
    assert reader.nullable_data() is None
    assert reader.position == reader.end


def test_unknown_tagged_fields_are_skipped_and_known_ones_read_in_any_order() -> None:
    data = b"\x04" + b"\x09\x02??" + b"\x03\x03\x03hi" + b"\x81\x01\x00" + b"\x01\x04\x00\x00\x00\x09"
    reader = FlexibleReader(memoryview(data))
    assert TAGGED.read(reader, 0) == {"a": "hi", "b": 9}
    assert reader.position == len(data)


def test_tagged_fields_are_written_by_tag_and_only_where_they_say_something() -> None:
    writer = FlexibleWriter(b"")
    TAGGED.write(writer, 0, {"a": "hi", "b": 9})
    TAGGED.write(writer, 0, {"a": "", "b": 0})
    assert writer.written() == b"\x02\x01\x04\x00\x00\x00\x09\x03\x03\x03hi\x00"


@pytest.mark.parametrize(
    "data",
    [
        b"\x01\x01\x05\x00\x00\x00\x09\x00",  # longer than the field
        b"\x01\x03\x02\x03hi",  # shorter
        b"\x01\x63\x7f",  # beyond the frame
        b"\x91\x4e",  # 10,001
    ],
)
def test_tagged_fields_that_lie_are_refused(data: bytes) -> None:
    with pytest.raises(UNREADABLE):
        TAGGED.read(FlexibleReader(memoryview(data)), 0)


def test_ten_thousand_tagged_fields_are_the_limit() -> None:
    writer = FlexibleWriter(b"")
    writer.uvarint(MAX_TAGGED_FIELDS)
    writer.raw(b"\x63\x00" * MAX_TAGGED_FIELDS)
    FlexibleReader(memoryview(writer.written())).tags()
    with pytest.raises(MalformedError, match="10001 tagged"):
        FlexibleReader(memoryview(b"\x91\x4e" + b"\x63\x00" * 10_001)).tags()


def test_data_in_its_classic_form_is_a_view() -> None:
    view = memoryview(b"\x00\x00\x00\x02hi")
    data = Reader(view).data()
    assert data == b"hi"
    assert data.obj is view.obj


def test_a_field_without_default_must_be_given() -> None:
    with pytest.raises(KeyError, match="numbers"):
        NUMBERS.write(Writer(b""), 0, {"number": ()})
