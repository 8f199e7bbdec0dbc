"""Both record codecs against handmade bytes, and each rule of the format separately."""

import struct
from collections.abc import Iterator
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.records.handmade import record, varint
from warmlog.protocol.errors import InvalidRecordError
from warmlog.protocol.records import record as pure
from warmlog.protocol.records.record import Record

# Length 22, attributes, timestamp delta 300, offset delta 0, key "k1", value "hello", two headers: "h" is "x", and
# "ü" has no value.
KNOWN_RECORD = bytes.fromhex("2c 00 d804 00 04 6b31 0a 68656c6c6f 04 02 68 02 78 04 c3bc 01")
KNOWN_ROW = (1_300, b"k1", b"hello", (("h", b"x"), ("ü", None)))
MAX_INT64 = 2**63 - 1


def decoded(
    variant: ModuleType, data: bytes, count: int = 1, *, base_offset: int = 0, base_time: int = 0
) -> list[Record]:
    records: list[Record] = variant.decode_records(data, 0, len(data), count, base_offset, base_time)
    return records


def encoded(variant: ModuleType, *rows: tuple[object, ...]) -> bytes:
    encoder = variant.RecordEncoder()
    encoder.extend(rows)
    data: bytes = encoder.records()
    return data


def refused(variant: ModuleType, data: bytes, count: int, match: str) -> None:
    """Check that both walking and decoding raise."""
    with pytest.raises(InvalidRecordError, match=match):
        variant.walk_records(data, 0, len(data), count)
    with pytest.raises(InvalidRecordError, match=match):
        decoded(variant, data, count)


class TestKnownBytes:
    def test_a_record_is_read_field_by_field(self, variant: ModuleType) -> None:
        assert decoded(variant, KNOWN_RECORD, base_offset=7, base_time=1000) == [
            Record(offset=7, timestamp=1300, key=b"k1", value=b"hello", headers=(("h", b"x"), ("ü", None)))
        ]
        variant.walk_records(KNOWN_RECORD, 0, len(KNOWN_RECORD), 1)

    def test_a_record_is_written_field_by_field(self, variant: ModuleType) -> None:
        first = record(value=None)
        second = bytes.fromhex("2c 00 d804 02 04 6b31 0a 68656c6c6f 04 02 68 02 78 04 c3bc 01")
        assert encoded(variant, (1000, None, None, ()), KNOWN_ROW) == first + second

    def test_null_and_empty_are_distinct(self, variant: ModuleType) -> None:
        rows = [(5, None, b"", ()), (5, b"", None, (("", b""), ("", None)))]
        data = encoded(variant, *rows)
        assert data == record(value=b"") + record(
            offset_delta=1, key=b"", value=None, headers=[(b"", b""), (b"", None)]
        )
        assert [(r.timestamp, r.key, r.value, r.headers) for r in decoded(variant, data, 2, base_time=5)] == rows

    def test_the_smallest_record_has_seven_bytes(self, variant: ModuleType) -> None:
        assert len(encoded(variant, (0, None, None, ()))) == 7

    @pytest.mark.parametrize(
        ("text", "digest"),
        [
            # From Kafka's UtilsTest.testMurmur2.
            (b"21", -973932308),
            (b"foobar", -790332482),
            (b"a-little-bit-long-string", -985981536),
            (b"a-little-bit-longer-string", -1486304829),
            (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
            (b"abc", 479470107),
        ],
    )
    def test_murmur2_gives_javas_numbers(self, variant: ModuleType, text: bytes, digest: int) -> None:
        assert variant.murmur2(text) == digest


class TestNumbers:
    @pytest.mark.parametrize("delta", [0, 1, -1, 63, -64, 64, -65, 8191, 8192, -8193, 2**31, -(2**62), 2**63 - 1])
    def test_times_of_any_distance_are_read(self, variant: ModuleType, delta: int) -> None:
        assert decoded(variant, record(timestamp_delta=delta))[0].timestamp == delta
        assert decoded(variant, record(timestamp_delta=-(2**63)), base_time=2**63 - 1)[0].timestamp == -1

    @pytest.mark.parametrize("delta", [0, 1, 63, 64, 8191, 8192, 2**20, 2**28, 2**31 - 1, -1, -(2**31)])
    def test_offset_deltas_of_32_bits_are_read(self, variant: ModuleType, delta: int) -> None:
        assert decoded(variant, record(offset_delta=delta), base_offset=2**40)[0].offset == 2**40 + delta

    @pytest.mark.parametrize("later", [0, 1, 63, 64, 8191, 8192, 2**35, MAX_INT64 - 1000])
    def test_times_are_written_as_they_are_read(self, variant: ModuleType, later: int) -> None:
        data = encoded(variant, (1000, None, None, ()), (1000 + later, None, None, ()))
        assert [r.timestamp for r in decoded(variant, data, 2, base_time=1000)] == [1000, 1000 + later]

    def test_a_number_written_with_surplus_zeros_is_read(self, variant: ModuleType) -> None:
        body = b"\0" + b"\x80\x00" + b"\x80\x80\x00" + b"\x81\x00" + b"\x01" + b"\x80\x80\x80\x80\x00"
        assert decoded(variant, varint(len(body)) + body) == [Record(offset=0, timestamp=0, key=None, value=None)]

    @pytest.mark.parametrize(
        "number",
        [b"\x80\x80\x80\x80\x80\x00", b"\xff\xff\xff\xff\x1f", b"\x80\x80\x80\x80\x10", b"\xff" * 12],
    )
    def test_more_than_32_bits_are_refused(self, variant: ModuleType, number: bytes) -> None:
        body = b"\0\0" + number + varint(-1) + varint(-1) + b"\0" + bytes(20)
        refused(variant, varint(len(body)) + body, 1, "record at index 0 of 1: a varint has too many bytes")
        refused(variant, number + bytes(20), 1, "too many bytes")

    @pytest.mark.parametrize("number", [b"\x80" * 9 + b"\x02", b"\x80" * 10 + b"\x00", b"\xff" * 12])
    def test_more_than_64_bits_are_refused(self, variant: ModuleType, number: bytes) -> None:
        body = b"\0" + number + b"\0" + varint(-1) + varint(-1) + b"\0"
        refused(variant, varint(len(body)) + body, 1, "too many bytes")

    def test_a_time_that_the_record_ends_inside_is_refused(self, variant: ModuleType) -> None:
        refused(variant, varint(6) + b"\0" + b"\x80" * 5 + bytes(20), 1, "it is cut off")

    def test_offsets_and_times_beyond_64_bits_are_refused(self, variant: ModuleType) -> None:
        with pytest.raises(InvalidRecordError, match="exceeds 64 bits"):
            decoded(variant, record(offset_delta=1), base_offset=MAX_INT64)
        with pytest.raises(InvalidRecordError, match="exceeds 64 bits"):
            decoded(variant, record(timestamp_delta=1), base_time=MAX_INT64)
        with pytest.raises(InvalidRecordError, match="exceeds 64 bits"):
            decoded(variant, record(offset_delta=-1), base_offset=-(2**63))


class TestInvalidRecords:
    @pytest.mark.parametrize("length", [-1, -(2**31), 0, 5, 2**31 - 1])
    def test_a_length_that_does_not_fit_is_refused(self, variant: ModuleType, length: int) -> None:
        refused(variant, record(length=length), 1, "record at index 0 of 1: its length does not match")

    def test_a_record_shorter_than_its_length_is_refused(self, variant: ModuleType) -> None:
        refused(variant, record(after=b"x"), 1, "left over after its last field")

    def test_a_record_longer_than_its_length_is_refused(self, variant: ModuleType) -> None:
        refused(variant, record(length=6, value=b"more") + bytes(7), 1, "the length of a key, value or header")

    @pytest.mark.parametrize("length", [-2, -(2**31), 4, 2**31 - 1])
    def test_a_key_or_value_that_does_not_fit_is_refused(self, variant: ModuleType, length: int) -> None:
        for body in (b"\0\0\0" + varint(length) + b"ab\0", b"\0\0\0" + varint(-1) + varint(length) + b"ab\0"):
            refused(variant, varint(len(body)) + body, 1, "the length of a key, value or header")

    @pytest.mark.parametrize("count", [-1, -(2**31), 4, 1_000_000, 2**31 - 1])
    def test_a_header_count_that_does_not_fit_is_refused(self, variant: ModuleType, count: int) -> None:
        refused(variant, record(header_count=count, after=bytes(6)), 1, "its header count does not match")

    def test_a_header_count_too_small_is_refused(self, variant: ModuleType) -> None:
        refused(variant, record(headers=[(b"a", b"b"), (b"c", b"d")], header_count=1), 1, "left over")
        refused(variant, record(headers=[(b"a", b"b")], header_count=0), 1, "left over")

    def test_a_header_count_too_large_by_one_is_refused(self, variant: ModuleType) -> None:
        refused(variant, record(headers=[(b"a", b"b")], header_count=2), 1, "it is cut off")

    def test_a_header_without_a_key_is_refused(self, variant: ModuleType) -> None:
        refused(variant, record(header_count=1, after=varint(-1) + varint(-1)), 1, "a key, value or header")

    def test_a_record_cut_at_any_byte_is_refused(self, variant: ModuleType) -> None:
        for end in range(7, len(KNOWN_RECORD)):
            refused(variant, KNOWN_RECORD[:end], 1, "does not match")
            body = KNOWN_RECORD[1:end]
            refused(variant, varint(len(body)) + body, 1, "record at index 0 of 1")

    @pytest.mark.parametrize("count", [-1, 3, 2**31 - 1])
    def test_a_count_that_the_bytes_cannot_hold_is_refused(self, variant: ModuleType, count: int) -> None:
        refused(variant, record() + record(offset_delta=1), count, f"16 bytes cannot hold {count} records")

    def test_a_count_too_small_leaves_bytes_over(self, variant: ModuleType) -> None:
        refused(variant, record() + record(offset_delta=1), 1, "8 bytes are left over after 1 records")
        refused(variant, b"x", 0, "1 bytes are left over after 0 records")

    def test_a_count_too_large_by_one_is_refused(self, variant: ModuleType) -> None:
        data = record(value=bytes(20)) + record(offset_delta=1)
        refused(variant, data, 3, "record at index 2 of 3: it is cut off")

    @pytest.mark.parametrize("deltas", [(1, 2), (0, 0), (0, 2), (1, 0), (0, -1)])
    def test_walking_asks_for_consecutive_offsets(self, variant: ModuleType, deltas: tuple[int, int]) -> None:
        data = b"".join(record(offset_delta=delta) for delta in deltas)
        with pytest.raises(InvalidRecordError, match="its offset does not follow"):
            variant.walk_records(data, 0, len(data), 2)

    def test_reading_takes_the_gaps_that_compaction_leaves(self, variant: ModuleType) -> None:
        data = record(offset_delta=3) + record(offset_delta=9)
        assert [r.offset for r in decoded(variant, data, 2, base_offset=100)] == [103, 109]


class TestRanges:
    def test_records_are_read_from_inside_a_buffer(self, variant: ModuleType) -> None:
        around = b"\xff" * 9 + KNOWN_RECORD + b"\xff" * 9
        for buffer in (around, bytearray(around), memoryview(around), memoryview(bytearray(around))):
            variant.walk_records(buffer, 9, 9 + len(KNOWN_RECORD), 1)
            assert variant.decode_records(buffer, 9, 9 + len(KNOWN_RECORD), 1, 0, 0)[0].key == b"k1"

    def test_bytes_behind_the_end_are_not_read(self, variant: ModuleType) -> None:
        with pytest.raises(InvalidRecordError, match="does not match"):
            variant.walk_records(KNOWN_RECORD, 0, len(KNOWN_RECORD) - 1, 1)

    @pytest.mark.parametrize(("start", "end"), [(-1, 5), (5, 4), (0, 24), (24, 24)])
    def test_a_range_outside_the_buffer_is_the_callers_mistake(self, variant: ModuleType, start: int, end: int) -> None:
        with pytest.raises(ValueError, match="are outside the buffer of 23 bytes"):
            variant.walk_records(KNOWN_RECORD, start, end, 1)
        with pytest.raises(ValueError, match="are outside the buffer of 23 bytes"):
            variant.decode_records(KNOWN_RECORD, start, end, 1, 0, 0)

    def test_no_records_are_read_from_no_bytes(self, variant: ModuleType) -> None:
        variant.walk_records(b"", 0, 0, 0)
        assert variant.decode_records(b"", 0, 0, 0, 0, 0) == []

    def test_decoded_records_outlive_the_buffer(self, variant: ModuleType) -> None:
        buffer = bytearray(KNOWN_RECORD)
        (found,) = variant.decode_records(buffer, 0, len(buffer), 1, 0, 0)
        buffer[:] = bytes(len(buffer))
        buffer.clear()
        assert (found.key, found.value) == (b"k1", b"hello")


class TestMaking:
    def test_a_caller_makes_its_own_records(self, variant: ModuleType) -> None:
        made = variant.decode_records(KNOWN_RECORD, 0, 23, 1, 7, 1000, None, lambda *fields: fields, ("topic", 3))
        assert made == [("topic", 3, 7, 1300, b"k1", b"hello", (("h", b"x"), ("ü", None)))]

    def test_the_brokers_time_replaces_every_records_own(self, variant: ModuleType) -> None:
        data = record(timestamp_delta=1) + record(offset_delta=1, timestamp_delta=MAX_INT64)
        assert [r.timestamp for r in variant.decode_records(data, 0, len(data), 2, 0, 1000, 77)] == [77, 77]

    def test_headers_after_a_number_are_left_out(self, variant: ModuleType) -> None:
        data = record(headers=[(b"a", b"1"), (b"b", None), (b"c", b"3")]) + record(offset_delta=1, value=b"next")
        for most, names in ((0, []), (2, ["a", "b"]), (3, ["a", "b", "c"]), (9, ["a", "b", "c"])):
            first, second = variant.decode_records(data, 0, len(data), 2, 0, 0, None, Record, (), most)
            assert [key for key, _ in first.headers] == names
            assert second.value == b"next"

    def test_exceptions_from_make_propagate(self, variant: ModuleType) -> None:
        with pytest.raises(ZeroDivisionError):
            variant.decode_records(KNOWN_RECORD, 0, 23, 1, 0, 0, None, lambda *_: 1 // 0)

    def test_a_header_key_that_is_no_utf8_stops_nobody(self, variant: ModuleType) -> None:
        (found,) = decoded(variant, record(headers=[(b"\xff\xfe", b"x")]))
        assert found.headers == (("\ufffd\ufffd", b"x"),)


class TestEncoder:
    def test_it_counts_records_and_bytes(self, variant: ModuleType) -> None:
        encoder = variant.RecordEncoder()
        assert (encoder.count, encoder.records_size, encoder.base_timestamp, encoder.max_timestamp) == (0, 0, -1, -1)
        assert encoder.append(b"k", b"v", 50) == 9
        assert encoder.append(b"k", b"v", 20, ()) == 18
        assert encoder.extend([(30, None, None, ())]) == len(encoder.records()) == 25
        assert (encoder.count, encoder.records_size, encoder.base_timestamp, encoder.max_timestamp) == (3, 25, 50, 50)
        encoder.clear()
        assert (encoder.count, encoder.records_size, encoder.base_timestamp, encoder.max_timestamp) == (0, 0, -1, -1)
        assert encoder.records() == b""

    def test_a_cleared_encoder_is_empty(self, variant: ModuleType) -> None:
        encoder = variant.RecordEncoder()
        encoder.append(b"key", b"value" * 1000, 50)
        encoder.clear()
        encoder.append(None, b"v", 99)
        assert encoder.records() == record()
        assert encoder.base_timestamp == 99

    @pytest.mark.parametrize(
        ("fields", "error", "match"),
        [
            (("k", b"v", 0), TypeError, "key must be bytes or None, not str"),
            ((b"k", bytearray(b"v"), 0), TypeError, "value must be bytes or None, not bytearray"),
            ((b"k", b"v", 1.0), TypeError, "timestamp must be an int, not float"),
            ((b"k", b"v", None), TypeError, "timestamp must be an int, not NoneType"),
            ((b"k", b"v", -2), ValueError, "not -2"),
            ((b"k", b"v", 2**63), ValueError, "timestamp must be -1 or milliseconds"),
            ((b"k", b"v", -(2**70)), ValueError, "timestamp must be -1 or milliseconds"),
            ((b"k", b"v", 0, {"a": b"b"}), TypeError, "headers must be a tuple or list, not dict"),
            ((b"k", b"v", 0, [["a", b"b"]]), TypeError, "each header must be a tuple of str and bytes or None"),
            ((b"k", b"v", 0, [("a", b"b", b"c")]), TypeError, "each header must be a tuple"),
            ((b"k", b"v", 0, [(b"a", b"b")]), TypeError, "each header must be a tuple"),
            ((b"k", b"v", 0, [("a", "b")]), TypeError, "header value must be bytes or None, not str"),
            ((b"k", b"v", 0, [("\ud800", b"b")]), UnicodeEncodeError, "surrogates"),
        ],
    )
    def test_a_refused_record_leaves_no_trace(
        self, variant: ModuleType, fields: tuple[object, ...], error: type[Exception], match: str
    ) -> None:
        for held in ([], [(5, b"k", b"v", ())]):
            encoder = variant.RecordEncoder()
            encoder.extend(held)
            facts = (encoder.count, encoder.records(), encoder.base_timestamp, encoder.max_timestamp)
            with pytest.raises(error, match=match):
                encoder.append(*fields)
            assert (encoder.count, encoder.records(), encoder.base_timestamp, encoder.max_timestamp) == facts

    @pytest.mark.parametrize("row", [(5, b"k", b"v"), [5, b"k", b"v", ()], None, (5, b"k", b"v", (), ())])
    def test_a_row_is_a_tuple_of_four(self, variant: ModuleType, row: object) -> None:
        encoder = variant.RecordEncoder()
        with pytest.raises(TypeError, match="each row must be a tuple"):
            encoder.extend([(5, b"k", b"v", ()), row])
        assert encoder.count == 1

    def test_more_than_a_batch_can_hold_is_refused_before_it_is_copied(self, variant: ModuleType) -> None:
        encoder = variant.RecordEncoder()
        encoder.append(None, b"v", 5)
        with pytest.raises(ValueError, match="the records of one batch exceed 2147483586 bytes"):
            encoder.append(None, bytes(2**31 - 1), 5)
        assert encoder.records() == record()

    def test_times_too_far_apart_are_refused(self, variant: ModuleType) -> None:
        encoder = variant.RecordEncoder()
        encoder.append(None, None, -1)
        with pytest.raises(ValueError, match="timestamp must be"):
            encoder.append(None, None, MAX_INT64)
        assert encoder.count == 1

    def test_headers_that_change_while_they_are_read_are_taken_once(self, variant: ModuleType) -> None:
        class Growing(list[tuple[str, bytes]]):
            def __iter__(self) -> Iterator[tuple[str, bytes]]:
                self.append(("more", bytes(100)))
                return iter(self[:])

        encoder = variant.RecordEncoder()
        encoder.append(None, None, 5, Growing([("a", b"b")]))
        assert decoded(variant, encoder.records(), base_time=5)[0].headers[0] == ("a", b"b")

    def test_a_header_for_every_size_of_number(self, variant: ModuleType) -> None:
        headers = tuple((f"{size}", bytes(size)) for size in (0, 63, 64, 8191, 8192)) + (("n" * 70, None),) * 70
        data = encoded(variant, (1, b"k" * 64, b"v" * 20_000, headers))
        (found,) = decoded(variant, data, base_time=1)
        assert (found.key, found.value, found.headers) == (b"k" * 64, b"v" * 20_000, headers)


@given(data=st.binary(max_size=40))
def test_murmur2_is_a_signed_32_bit_number_and_the_same_in_both(compiled: ModuleType, data: bytes) -> None:
    digest = pure.murmur2(data)
    assert -(2**31) <= digest < 2**31
    assert compiled.murmur2(data) == digest


@given(keys=st.lists(st.none() | st.binary(max_size=9)), partitions=st.integers(1, 5))
def test_rows_are_divided_by_the_partitions_of_their_keys(
    compiled: ModuleType, keys: list[bytes | None], partitions: int
) -> None:
    rows = [(at, key, None, ()) for at, key in enumerate(keys)]
    found = pure.rows_by_partition(rows, partitions)
    assert found[:-1] == [
        [row for row in rows if row[1] is not None and (pure.murmur2(row[1]) & 0x7FFFFFFF) % partitions == partition]
        for partition in range(partitions)
    ]
    assert found[-1] == [row for row in rows if row[1] is None]
    assert compiled.rows_by_partition(rows, partitions) == found


def test_rows_need_a_partition(variant: ModuleType) -> None:
    with pytest.raises(ValueError, match="at least one partition"):
        variant.rows_by_partition([(0, b"k", None, ())], 0)


@given(text=st.text())
def test_javas_hash_is_that_of_its_definition_in_both(compiled: ModuleType, text: str) -> None:
    units = struct.unpack(f"<{len(text.encode('utf-16-le')) // 2}H", text.encode("utf-16-le"))
    expected = sum(unit * 31**place for place, unit in enumerate(reversed(units))) & 0xFFFFFFFF
    assert pure.java_hash(text) & 0xFFFFFFFF == expected
    assert compiled.java_hash(text) == pure.java_hash(text)
