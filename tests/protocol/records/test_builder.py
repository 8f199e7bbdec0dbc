"""Batches from the builder: compared with handmade ones, validated as by the broker, and decoded."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.records.handmade import batch, record
from tests.protocol.records.strategies import ROWS
from warmlog.protocol.records.batch import read_header
from warmlog.protocol.records.builder import BatchBuilder, build_batch, record_size_bound
from warmlog.protocol.records.layout import CONTROL_BIT, TRANSACTIONAL_BIT, Codec
from warmlog.protocol.records.reader import decode_batch
from warmlog.protocol.records.record import Record, Row
from warmlog.protocol.records.reencode import reencode_batches
from warmlog.protocol.records.validation import ANY_BATCH, check_batches


def test_a_batch_matches_the_format_byte_for_byte() -> None:
    built = build_batch(
        [(1000, b"k", b"v", ()), (900, None, b"w", [("h", None)]), (1300, b"k", None, ())],
        base_offset=77,
        leader_epoch=4,
        producer_id=5000,
        producer_epoch=2,
        base_sequence=10,
        attributes=TRANSACTIONAL_BIT,
    )
    records = record(key=b"k") + record(offset_delta=1, timestamp_delta=-100, value=b"w", headers=[(b"h", None)])
    records += record(offset_delta=2, timestamp_delta=300, key=b"k", value=None)
    assert built == batch(
        records,
        base_offset=77,
        leader_epoch=4,
        attributes=1 << 4,
        base_timestamp=1000,
        max_timestamp=1300,
        producer_id=5000,
        producer_epoch=2,
        base_sequence=10,
        record_count=3,
    )


def test_fields_that_are_not_given_are_minus_one() -> None:
    assert build_batch([(1000, None, b"v", ())]) == batch(record())


def test_the_codec_overrides_the_bits_in_the_attributes() -> None:
    header = read_header(build_batch([(5, b"", b"", ())], compression=Codec.LZ4, attributes=CONTROL_BIT | 7))
    assert header.codec is Codec.LZ4
    assert header.is_control


@given(rows=ROWS.filter(bool), codec=st.sampled_from(Codec))
@settings(max_examples=100)
def test_every_batch_passes_the_brokers_check_and_is_read_again(rows: list[Row], codec: Codec) -> None:
    built = build_batch(rows, compression=codec, base_offset=50)
    assert reencode_batches(built, ANY_BATCH, 0) == built
    ((position, header),) = check_batches(built, reencoded=True)
    assert (position, header.size, header.next_offset) == (0, len(built), 50 + len(rows))
    assert header.max_timestamp == max(row[0] for row in rows)
    assert decode_batch(built, 0, header) == [
        Record(50 + index, time, key, value, tuple(headers)) for index, (time, key, value, headers) in enumerate(rows)
    ]


class TestBatchBuilder:
    def test_its_size_is_known_before_it_builds(self) -> None:
        builder = BatchBuilder()
        assert builder.size == 61
        for count in range(1, 200):
            size = builder.append(b"key", b"value" * 30, 1000 + count)
            assert builder.size == 61 + size == 61 + builder.records_size
        assert len(builder.build()) == builder.size

    def test_it_can_build_again_and_be_cleared(self) -> None:
        builder = BatchBuilder()
        builder.append(None, b"v", 1000)
        assert builder.build() == builder.build() == batch(record())
        assert builder.build(base_sequence=7, producer_id=1, producer_epoch=0) != builder.build()
        builder.append(None, b"v", 1000)
        builder.clear()
        builder.append(None, b"v", 1000)
        assert builder.build() == batch(record())

    def test_an_empty_batch_is_not_built(self) -> None:
        with pytest.raises(ValueError, match="at least one record"):
            BatchBuilder().build()
        with pytest.raises(ValueError, match="at least one record"):
            build_batch([])


@given(rows=ROWS)
def test_a_record_is_never_larger_than_its_bound(rows: list[Row]) -> None:
    builder = BatchBuilder()
    for time, key, value, headers in rows:
        before = builder.records_size
        assert builder.append(key, value, time, headers) - before <= record_size_bound(key, value, headers)
