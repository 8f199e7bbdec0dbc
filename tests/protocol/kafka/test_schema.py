"""Tables of fields as both engines read and write them, and the bounds of what is read."""

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.kafka.messages import MESSAGES, TABLES, body, drawn, parsed, with_defaults
from warmlog.protocol.kafka.codec.bounds import (
    MAX_ELEMENTS,
    MAX_STRING_BYTES,
    MAX_UNKNOWN_TAGS,
    MalformedError,
    UnwritableError,
)
from warmlog.protocol.kafka.codec.engine import ENGINE, PURE, Engine
from warmlog.protocol.kafka.codec.schema import (
    BYTES,
    DATA,
    FLOAT64,
    INT32,
    STRING,
    UINT16,
    UUID,
    Array,
    Field,
    Primitive,
    Struct,
    array,
)

NUMBERS = Struct(Field("numbers", Array(INT32), nullable=1))
NESTED = Struct(Field("outer", array(Field("inner", Array(STRING), nullable=0))))
CURSOR = Struct(Field("cursor", Struct(Field("topic", STRING), Field("partition", INT32)), nullable=0, default=None))
NUMERIC = Struct(Field("port", UINT16), Field("rate", FLOAT64))
TAGGED = Struct(Field("a", STRING, tag=3, default=""), Field("b", INT32, tag=1, default=0))
NOTHING = Struct()
ENGINES = [PURE] if ENGINE is PURE else [PURE, ENGINE]

engines = pytest.mark.parametrize("engine", ENGINES, ids=[engine.name for engine in ENGINES])
forms = pytest.mark.parametrize("flexible", [False, True], ids=["classic", "flexible"])


def uvarint(value: int) -> bytes:
    data = b""
    while value >= 0x80:
        data += bytes([value & 0x7F | 0x80])
        value >>= 7
    return data + bytes([value])


def one_field(kind: Primitive, nullable: int = 0) -> Struct:
    return Struct(Field("it", kind, nullable=nullable))


def read(engine: Engine, table: Struct, data: bytes | memoryview, *, flexible: bool, version: int = 0) -> Any:
    """The mapping; all of the data must be taken."""
    value, end = engine.reader(table, version, flexible=flexible).read(memoryview(data))
    assert end == len(data)
    return value


def write(engine: Engine, table: Struct, values: Any, *, flexible: bool) -> bytes:
    return engine.writer(table, 0, flexible=flexible).write(values)


@given(data=st.data(), message=st.sampled_from(MESSAGES))
def test_written_values_are_read_back(data: st.DataObject, message: tuple[str, Any, int]) -> None:
    name, api, version = message
    values = drawn(TABLES[name], version, data)
    assert parsed(name, api, version, body(name, api, version, values)) == with_defaults(TABLES[name], version, values)


@engines
@forms
@pytest.mark.parametrize("cursor", [None, {"topic": "orders", "partition": 3}])
def test_a_nullable_struct_starts_with_a_presence_byte(
    engine: Engine, flexible: bool, cursor: dict[str, Any] | None
) -> None:
    data = write(engine, CURSOR, {"cursor": cursor}, flexible=flexible)
    assert data[0] == (0xFF if cursor is None else 1)
    assert read(engine, CURSOR, data, flexible=flexible) == {"cursor": cursor}


@engines
def test_unsigned_and_floating_numbers_are_big_endian(engine: Engine) -> None:
    data = write(engine, NUMERIC, {"port": 65_535, "rate": 1.5}, flexible=False)
    assert data == b"\xff\xff" + b"\x3f\xf8\x00\x00\x00\x00\x00\x00"
    assert read(engine, NUMERIC, data, flexible=False) == {"port": 65_535, "rate": 1.5}


@engines
@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\x1f", b"\x80" * 5000])
@pytest.mark.parametrize("kind", [STRING, DATA, BYTES])
def test_a_varint_of_more_than_32_bits_is_malformed(engine: Engine, kind: Primitive, data: bytes) -> None:
    with pytest.raises(MalformedError, match="varint"):
        read(engine, one_field(kind), data, flexible=True)


@engines
@pytest.mark.parametrize(
    ("flexible", "data"),
    [
        (False, b"\x7f\xff\xff\xff"),
        (False, b"\x7f\xff\xff\xff" + bytes(1000)),
        (False, b"\xff\xff\xff\xfe"),
        (False, b"\xff\xff\xff\xff"),
        (True, b"\xff\xff\xff\xff\x0f"),
        (True, b"\xff\xff\xff\xff\x0f" + bytes(1000)),
        (True, b"\x00"),
        (True, b"\x7f\x00"),
    ],
)
def test_an_impossible_count_is_refused_before_anything_is_allocated(
    engine: Engine, flexible: bool, data: bytes
) -> None:
    reader = engine.reader(NUMBERS, 0, flexible=flexible)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedError, match="array"):
            reader.read(memoryview(data))
        assert tracemalloc.get_traced_memory()[1] < 20_000
    finally:
        tracemalloc.stop()


@engines
@forms
@pytest.mark.parametrize("count", [MAX_ELEMENTS // 2 - 1, MAX_ELEMENTS // 2])
def test_all_arrays_of_a_frame_share_one_limit(engine: Engine, flexible: bool, count: int) -> None:
    data = write(engine, NESTED, {"outer": [{"inner": [""] * count}] * 2}, flexible=flexible)
    if 2 + 2 * count <= MAX_ELEMENTS:
        assert read(engine, NESTED, data, flexible=flexible)["outer"][1]["inner"] == ("",) * count
    else:
        with pytest.raises(MalformedError, match="more than 100000 array elements"):
            read(engine, NESTED, data, flexible=flexible)


@engines
@pytest.mark.parametrize("length", [b"\xff\xfe", b"\x7f\xff", b"\x00\x02"])
def test_a_length_beyond_the_frame_is_malformed(engine: Engine, length: bytes) -> None:
    with pytest.raises(MalformedError, match="a length of"):
        read(engine, one_field(STRING), length + b"a", flexible=False)


@engines
@pytest.mark.parametrize("length", [b"\x03", b"\xff\xff\xff\xff\x0f", b"\x80\x04", b"\xff\x01"])
@pytest.mark.parametrize("kind", [STRING, DATA, BYTES])
@pytest.mark.parametrize("nullable", [0, 1])
def test_a_flexible_length_beyond_the_frame_is_malformed(
    engine: Engine, length: bytes, kind: Primitive, nullable: int
) -> None:
    with pytest.raises(MalformedError, match="a length of"):
        read(engine, one_field(kind, nullable), length + b"a", flexible=True)


@engines
@forms
@pytest.mark.parametrize("kind", [STRING, DATA, BYTES, Array(INT32)])
def test_null_where_it_may_not_be_is_malformed(engine: Engine, flexible: bool, kind: Any) -> None:
    null = b"\x00" if flexible else b"\xff\xff\xff\xff"
    with pytest.raises(MalformedError, match="null where"):
        read(engine, one_field(kind, nullable=1), null, flexible=flexible)


@engines
@forms
def test_text_that_is_not_utf8_is_refused(engine: Engine, flexible: bool) -> None:
    data = (b"\x03" if flexible else b"\x00\x02") + b"\xc3\x28"
    with pytest.raises(UnicodeDecodeError):
        read(engine, one_field(STRING), data, flexible=flexible)


@engines
@forms
@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 128, 16_382, 16_383, 16_384, MAX_STRING_BYTES])
def test_lengths_around_the_borders_of_a_varint(engine: Engine, flexible: bool, size: int) -> None:
    table = Struct(Field("text", STRING), Field("data", DATA, nullable=0), Field("none", DATA, nullable=0))
    values = {"text": "x" * size, "data": b"y" * size, "none": None}
    view = memoryview(write(engine, table, values, flexible=flexible))
    found = read(engine, table, view, flexible=flexible)
    assert found == values
    assert found["data"].obj is view.obj


@engines
@forms
def test_text_longer_than_kafka_takes_is_neither_read_nor_written(engine: Engine, flexible: bool) -> None:
    table, size = one_field(STRING), MAX_STRING_BYTES + 1
    with pytest.raises(UnwritableError, match="a string of 32768 bytes"):
        write(engine, table, {"it": "x" * size}, flexible=flexible)
    if flexible:  # no classic length is as large
        with pytest.raises(MalformedError, match="a string of 32768 bytes"):
            read(engine, table, uvarint(size + 1) + b"x" * size + b"\0", flexible=True)


@engines
@forms
def test_a_value_that_does_not_fit_the_field_is_rejected(engine: Engine, flexible: bool) -> None:
    for table, value in ((NUMBERS, [1 << 31]), (NUMBERS, [1 << 70]), (NUMERIC, -1)):
        with pytest.raises(UnwritableError):
            write(engine, table, {"numbers": value, "port": value, "rate": 0.0}, flexible=flexible)
    with pytest.raises(UnwritableError):
        write(engine, one_field(UUID, nullable=1), {"it": b"short"}, flexible=flexible)


@engines
def test_unknown_tagged_fields_are_skipped_and_known_ones_read_in_any_order(engine: Engine) -> None:
    data = b"\x04" + b"\x09\x02??" + b"\x03\x03\x03hi" + b"\x81\x01\x00" + b"\x01\x04\x00\x00\x00\x09"
    assert read(engine, TAGGED, data, flexible=True) == {"a": "hi", "b": 9}


@engines
def test_tagged_fields_are_sorted_by_tag_and_omitted_if_default(engine: Engine) -> None:
    assert write(engine, TAGGED, {"a": "hi", "b": 9}, flexible=True) == b"\x02\x01\x04\x00\x00\x00\x09\x03\x03\x03hi"
    assert write(engine, TAGGED, {"a": "", "b": 0}, flexible=True) == b"\x00"
    long = write(engine, TAGGED, {"a": "x" * 300}, flexible=True)
    assert long == b"\x01\x03" + uvarint(302) + uvarint(301) + b"x" * 300


@engines
@pytest.mark.parametrize(
    "data",
    [
        b"\x01\x01\x05\x00\x00\x00\x09\x00",  # longer than the field
        b"\x01\x03\x02\x03hi",  # shorter
        b"\x01\x63\x7f",  # beyond the frame
        b"\x01",  # missing
    ],
)
def test_malformed_tagged_fields_are_rejected(engine: Engine, data: bytes) -> None:
    with pytest.raises(MalformedError):
        read(engine, TAGGED, data, flexible=True)


@engines
@pytest.mark.parametrize("structs", [1, 100])
def test_unknown_tagged_fields_of_all_structs_share_one_limit(engine: Engine, structs: int) -> None:
    table = Struct(Field("them", array(Field("number", INT32))))
    each = MAX_UNKNOWN_TAGS // structs
    element = bytes(4) + uvarint(each) + b"\x63\x00" * each
    data = uvarint(structs + 1) + element * structs
    assert len(read(engine, table, data + b"\x00", flexible=True)["them"]) == structs
    with pytest.raises(MalformedError, match="more than 10000 unknown tagged fields"):
        read(engine, table, data + b"\x01\x63\x00", flexible=True)


@engines
def test_known_tagged_fields_count_as_elements(engine: Engine) -> None:
    count = MAX_ELEMENTS + 1
    with pytest.raises(MalformedError, match="more than 100000 array elements"):
        read(engine, TAGGED, uvarint(count) + b"\x01\x04\x00\x00\x00\x09" * count, flexible=True)


@engines
def test_bytes_after_a_message_are_ignored(engine: Engine) -> None:
    assert engine.reader(NOTHING, 0, flexible=True).read(memoryview(b"?\x00??"), 1) == ({}, 2)


@engines
@forms
def test_a_message_that_ends_within_a_number_is_malformed(engine: Engine, flexible: bool) -> None:
    with pytest.raises(MalformedError, match="ends too early"):
        read(engine, NUMERIC, bytes(9), flexible=flexible)


@engines
def test_a_field_without_default_is_required(engine: Engine) -> None:
    with pytest.raises(KeyError, match="numbers"):
        write(engine, NUMBERS, {"number": ()}, flexible=False)
