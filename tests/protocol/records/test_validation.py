"""A topic's rules: which records are rejected, which headers corrected, and which batches need reencoding."""

import random
from types import ModuleType

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.records.handmade import batch, record
from tests.protocol.records.strategies import ROWS
from warmlog.protocol.errors import (
    BatchTooLargeError,
    CompressionError,
    DecompressedSizeError,
    ErrorCode,
    InvalidRecordError,
    RecordsRefusedError,
)
from warmlog.protocol.records import validation
from warmlog.protocol.records.batch import headers, read_header, rewritten_start, verify_crc
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.compression import Codec, compress, decompress
from warmlog.protocol.records.layout import HEADER_SIZE, NO_TIMESTAMP, STALE_CRC, TimestampType
from warmlog.protocol.records.reader import records_in
from warmlog.protocol.records.record import MAX_FAULTS, MAX_INT64, MIN_INT64
from warmlog.protocol.records.reencode import FREE_SIZE, MAX_RATIO, reencode_batches
from warmlog.protocol.records.validation import BatchRules, NeedsReencodingError, check_batches

NOW = 1_700_000_000_000
HOUR = 3_600_000
AFTER = BatchRules(after_max_ms=HOUR)
BOTH = BatchRules(before_max_ms=HOUR, after_max_ms=HOUR)
APPEND_TIME = BatchRules(append_time=True)
KEYED = BatchRules(need_keys=True)
COMPRESSED = [codec for codec in Codec if codec]


@pytest.fixture(params=["pure", "compiled"], autouse=True)
def both_twins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, compiled: ModuleType) -> None:
    """Run every test here with and without the compiled codec and `accept_batch`."""
    from warmlog.protocol.records import record as pure

    variant = compiled if request.param == "compiled" else pure
    monkeypatch.setattr(validation, "scan_records", variant.scan_records)
    monkeypatch.setattr(validation, "accept_batch", compiled.accept_batch if variant is compiled else None)


def timed(*times: int, codec: Codec = Codec.NONE, key: bytes | None = b"k", **fields: int) -> bytes:
    """Encode a batch of records with these timestamps; header fields may contradict them."""
    records = b"".join(
        record(offset_delta=offset, timestamp_delta=time - times[0], key=key) for offset, time in enumerate(times)
    )
    block = compress(codec, records)
    told = {"base_timestamp": times[0], "max_timestamp": max(times), "record_count": len(times), "attributes": codec}
    return batch(block, **{**told, **fields})


def checked(data: bytes, rules: BatchRules) -> bytes:
    """Return these batches as they would be stored, except offset and leader epoch."""
    try:
        found = check_batches(data, rules, NOW)
    except NeedsReencodingError:
        data = bytes(reencode_batches(data, rules, NOW))
        found = check_batches(data, rules, NOW, reencoded=True)
    stored = b""
    for position, header in found:
        whole = data[position : position + header.size]
        if header.crc == STALE_CRC:
            block = whole[HEADER_SIZE:]
            whole = rewritten_start(header, block, base_offset=0, leader_epoch=-1) + block
        stored += whole
    return stored


def refusal(data: bytes, rules: BatchRules) -> RecordsRefusedError:
    with pytest.raises(RecordsRefusedError) as caught:
        checked(data, rules)
    return caught.value


class TestLimits:
    @pytest.mark.parametrize("rules", [AFTER, BOTH])
    def test_a_time_at_the_limit_is_taken_and_one_past_it_refused(self, rules: BatchRules) -> None:
        assert checked(timed(NOW + HOUR), rules) == timed(NOW + HOUR)
        assert refusal(timed(NOW + HOUR + 1), rules).code is ErrorCode.INVALID_TIMESTAMP

    def test_before_as_after(self) -> None:
        assert checked(timed(NOW - HOUR), BOTH) == timed(NOW - HOUR)
        assert refusal(timed(NOW - HOUR - 1), BOTH).code is ErrorCode.INVALID_TIMESTAMP
        assert checked(timed(0), AFTER) == timed(0)

    def test_the_error_names_the_records_and_nothing_is_accepted(self) -> None:
        error = refusal(timed(NOW, NOW - 2 * HOUR, NOW, NOW + 2 * HOUR), BOTH)
        assert [index for index, _ in error.record_errors] == [1, 3]
        assert str(NOW + 2 * HOUR) in error.record_errors[1][1]
        assert "record at index 1" in str(error)
        assert "and 1 more" in str(error)

    def test_a_long_list_ends(self) -> None:
        assert len(refusal(timed(*[NOW + 2 * HOUR] * 300), AFTER).record_errors) == MAX_FAULTS

    def test_records_without_a_timestamp_are_always_allowed(self) -> None:
        sent = timed(NO_TIMESTAMP)
        assert checked(sent, BOTH) == sent
        mixed = timed(NOW, NO_TIMESTAMP, NOW)
        assert checked(mixed, BOTH) == mixed

    def test_unlimited_is_unlimited_to_the_last_bit(self) -> None:
        for time in (MIN_INT64, MAX_INT64):
            assert read_header(checked(timed(time), BatchRules())).max_timestamp == max(time, NO_TIMESTAMP)

    def test_limits_past_64_bits_are_none(self) -> None:
        wide = BatchRules(before_max_ms=MAX_INT64 - 1, after_max_ms=MAX_INT64 - 1)
        assert checked(timed(MAX_INT64), wide) == timed(MAX_INT64)

    def test_a_time_beyond_64_bits_is_no_time(self) -> None:
        with pytest.raises(InvalidRecordError, match="exceeds 64 bits"):
            checked(batch(record(timestamp_delta=1), base_timestamp=MAX_INT64, max_timestamp=MAX_INT64), AFTER)

    @pytest.mark.parametrize("codec", COMPRESSED)
    def test_a_compressed_batch_is_decompressed_if_its_header_is_out_of_range(self, codec: Codec) -> None:
        error = refusal(timed(NOW, NOW + 2 * HOUR, codec=codec), AFTER)
        assert [index for index, _ in error.record_errors] == [1]
        lying = timed(NOW, NOW, codec=codec, max_timestamp=NOW + 2 * HOUR)
        assert checked(lying, AFTER) == timed(NOW, NOW, codec=codec)

    @pytest.mark.parametrize("codec", COMPRESSED)
    def test_the_records_of_a_compressed_batch_decide_and_not_its_header(self, codec: Codec) -> None:
        lying = timed(NOW, NOW + 2 * HOUR, codec=codec, max_timestamp=NOW)
        assert [index for index, _ in refusal(lying, AFTER).record_errors] == [1]

    @pytest.mark.parametrize("codec", Codec)
    def test_without_a_walk_the_header_is_trusted_while_it_can_be_right(self, codec: Codec) -> None:
        careless = BatchRules(walk=False, after_max_ms=HOUR)
        sent = timed(NOW, NOW + 2 * HOUR, max_timestamp=NOW, codec=codec)
        assert check_batches(sent, careless, NOW) == [(0, read_header(sent))]
        assert refusal(timed(NOW, NOW + 2 * HOUR, codec=codec), careless).record_errors[0][0] == 1

    @pytest.mark.parametrize("codec", Codec)
    @pytest.mark.parametrize("told", [NO_TIMESTAMP, NOW - 1, 0])
    def test_without_a_walk_a_max_timestamp_below_the_first_is_corrected(self, codec: Codec, told: int) -> None:
        """sarama up to 1.45.0 leaves it at -1 in compressed batches."""
        careless = BatchRules(walk=False)
        sent = timed(NOW, NOW + 7, NOW + 3, max_timestamp=told, codec=codec)
        assert checked(sent, careless) == timed(NOW, NOW + 7, NOW + 3, codec=codec)


class TestMaxTimestamp:
    @pytest.mark.parametrize("codec", Codec)
    @pytest.mark.parametrize("told", [NOW - 5, NOW + 5, NO_TIMESTAMP, -7, MAX_INT64])
    def test_it_is_the_records(self, told: int, codec: Codec) -> None:
        sent = timed(NOW - 9, NOW, NOW - 3, max_timestamp=told, codec=codec)
        assert checked(sent, BatchRules()) == timed(NOW - 9, NOW, NOW - 3, codec=codec)

    def test_unknown_attribute_bits_are_kept_unless_the_header_is_rewritten(self) -> None:
        assert read_header(checked(timed(NOW, attributes=1 << 9), AFTER)).attributes == 1 << 9
        assert read_header(checked(timed(NOW, attributes=1 << 9, max_timestamp=3), AFTER)).attributes == 0

    @given(times=st.lists(st.integers(-5, 20), min_size=1, max_size=5), told=st.integers(-5, 20))
    def test_for_any_times(self, times: list[int], told: int) -> None:
        stored = checked(timed(*times, max_timestamp=told), BatchRules())
        verify_crc(stored, 0, header := read_header(stored))
        assert header.max_timestamp == max(*times, NO_TIMESTAMP)
        assert [one.timestamp for one in records_in(stored)] == times


class TestAppendTime:
    @pytest.mark.parametrize("codec", Codec)
    def test_every_record_has_it_and_the_producers_times_may_be_any(self, codec: Codec) -> None:
        stored = checked(timed(NOW + 9 * HOUR, 0, codec=codec, max_timestamp=-3), APPEND_TIME)
        header = read_header(stored)
        assert (header.timestamp_type, header.max_timestamp) == (TimestampType.LOG_APPEND_TIME, NOW)
        assert header.base_timestamp == NOW + 9 * HOUR
        assert [one.timestamp for one in records_in(stored)] == [NOW, NOW]

    def test_the_bytes_of_records_are_unchanged(self) -> None:
        assert checked(timed(5, 6), APPEND_TIME)[HEADER_SIZE:] == timed(5, 6)[HEADER_SIZE:]

    def test_of_several_batches(self) -> None:
        stored = checked(timed(5) + timed(6, codec=Codec.LZ4), APPEND_TIME)
        assert [header.max_timestamp for _, header in headers(stored)] == [NOW, NOW]


class TestKeys:
    @pytest.mark.parametrize("codec", Codec)
    def test_a_record_without_one_is_refused(self, codec: Codec) -> None:
        error = refusal(timed(NOW, NOW, key=None, codec=codec), KEYED)
        assert error.code is ErrorCode.INVALID_RECORD
        assert [index for index, _ in error.record_errors] == [0, 1]

    @pytest.mark.parametrize("codec", Codec)
    def test_an_empty_one_is_a_key(self, codec: Codec) -> None:
        assert checked(timed(NOW, key=b"", codec=codec), KEYED) == timed(NOW, key=b"", codec=codec)

    def test_a_missing_key_is_reported_first_and_a_wrong_timestamp_sets_the_code(self) -> None:
        rules = BatchRules(need_keys=True, after_max_ms=HOUR)
        assert refusal(timed(NOW + 2 * HOUR, key=None), rules).code is ErrorCode.INVALID_RECORD
        mixed = record(key=None) + record(offset_delta=1, timestamp_delta=2 * HOUR, key=b"k")
        data = batch(mixed, record_count=2, base_timestamp=NOW, max_timestamp=NOW + 2 * HOUR)
        assert refusal(data, rules).code is ErrorCode.INVALID_TIMESTAMP


class TestCodec:
    @pytest.mark.parametrize("target", Codec)
    @pytest.mark.parametrize("source", Codec)
    def test_a_batch_is_stored_in_the_topics(self, source: Codec, target: Codec) -> None:
        rules = BatchRules(codec=target)
        sent = build_batch([(NOW, b"k", b"value" * 20, ()), (NOW + 3, None, b"", (("h", b"1"),))], compression=source)
        stored = checked(sent, rules)
        header = read_header(stored)
        assert header.codec is target
        assert list(records_in(stored)) == list(records_in(sent))
        assert header.size == len(stored)
        if source is target:
            assert stored == sent
        if target is Codec.NONE:
            assert stored == build_batch(
                [(NOW, b"k", b"value" * 20, ()), (NOW + 3, None, b"", (("h", b"1"),))], compression=target
            )

    @given(rows=ROWS.filter(bool))
    def test_there_and_back(self, rows: list[object]) -> None:
        sent = build_batch(rows)  # type: ignore[arg-type]  # the strategy's rows are rows
        for codec in COMPRESSED:
            packed = checked(sent, BatchRules(codec=codec))
            assert checked(packed, BatchRules(codec=Codec.NONE)) == sent

    @pytest.mark.parametrize(("codec", "levels"), [(Codec.GZIP, (1, 9)), (Codec.LZ4, (9, 17)), (Codec.ZSTD, (-50, 19))])
    def test_a_level_is_heard(self, codec: Codec, levels: tuple[int, int]) -> None:
        content = b"".join(crc32c(b"%d" % (number % 97)).to_bytes(4) * 3 for number in range(4000))
        quick, thorough = (compress(codec, content, level=level) for level in levels)
        assert len(thorough) < len(quick)
        assert decompress(codec, quick) == decompress(codec, thorough) == content

    def test_the_producers_own_is_kept_unless_the_topic_has_one(self) -> None:
        sent = timed(NOW, codec=Codec.SNAPPY)
        assert checked(sent, BatchRules()) == sent
        assert check_batches(sent, BatchRules(walk=False), NOW) == [(0, read_header(sent))]
        with pytest.raises(NeedsReencodingError):
            check_batches(sent, BatchRules(codec=Codec.LZ4, walk=False), NOW)

    def test_a_block_that_decompresses_beyond_the_limit_is_rejected(self) -> None:
        sent = build_batch([(NOW, None, bytes(5000), ())], compression=Codec.GZIP)
        with pytest.raises(BatchTooLargeError):
            checked(sent, BatchRules(codec=Codec.NONE, max_batch_size=1000))


class TestReencoding:
    def test_valid_batches_are_returned_unchanged(self) -> None:
        sent = timed(NOW, codec=Codec.GZIP) + timed(NOW)
        assert reencode_batches(sent, KEYED, NOW) == sent

    def test_a_bomb_is_refused(self) -> None:
        for codec in COMPRESSED:
            sent = build_batch([(NOW, b"k", bytes(2_000_000), ())], compression=codec)
            with pytest.raises(DecompressedSizeError, match=r"\d bytes"):
                reencode_batches(sent, KEYED, NOW, max_decompressed_size=1_000_000)

    def test_a_batch_may_open_to_a_multiple_of_its_size(self) -> None:
        small = build_batch([(NOW, b"k", bytes(FREE_SIZE), ())], compression=Codec.ZSTD)
        with pytest.raises(DecompressedSizeError, match=f"limit of {FREE_SIZE} bytes") as caught:
            reencode_batches(small, KEYED, NOW)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        noise = random.Random(0).randbytes(2 * FREE_SIZE // MAX_RATIO)
        large = build_batch([(NOW, b"k", noise + bytes(FREE_SIZE), ())], compression=Codec.ZSTD)
        assert reencode_batches(large, KEYED, NOW) == large

    @pytest.mark.parametrize("codec", COMPRESSED)
    def test_an_invalid_block_is_rejected(self, codec: Codec) -> None:
        with pytest.raises(CompressionError):
            checked(batch(b"no such block", attributes=codec), KEYED)

    @pytest.mark.parametrize("codec", COMPRESSED)
    @pytest.mark.parametrize("rules", [BatchRules(), KEYED, APPEND_TIME])
    def test_a_wrong_count_inside_is_refused(self, codec: Codec, rules: BatchRules) -> None:
        for count in (1, 3, 100):
            with pytest.raises(InvalidRecordError):
                checked(timed(NOW, NOW, codec=codec, record_count=count), rules)

    def test_one_bad_batch_refuses_the_others(self) -> None:
        good, bad = timed(NOW, codec=Codec.GZIP), timed(NOW, key=None)
        assert refusal(good + bad, KEYED).record_errors[0][0] == 0
        assert refusal(bad + good, KEYED).record_errors[0][0] == 0


class TestScan:
    @given(rows=ROWS)
    def test_compiled_and_pure_codec_report_the_same(self, compiled: ModuleType, rows: list[object]) -> None:
        from warmlog.protocol.records import record as pure

        encoder = pure.RecordEncoder()
        encoder.extend(rows)  # type: ignore[arg-type]  # the strategy's rows are rows
        data = encoder.records()
        for limits in ((MIN_INT64, MAX_INT64, False), (NOW - 100, NOW + 100, True)):
            arguments = (data, 0, len(data), encoder.count, encoder.base_timestamp, *limits)
            found = pure.scan_records(*arguments)
            assert compiled.scan_records(*arguments) == found
            assert found[0] == encoder.max_timestamp

    def test_of_a_large_part_too(self, compiled: ModuleType) -> None:
        from warmlog.protocol.records import record as pure

        late = record(offset_delta=1, timestamp_delta=50, key=b"k")
        for rest, fault in ((late, (1, 55)), (late + b"x", None), (late[:-1], None)):
            data = record(value=bytes(1 << 20)) + rest
            arguments = (data, 0, len(data), 2, 5, 0, 20, True)
            if fault is None:
                for variant in (pure, compiled):
                    with pytest.raises(InvalidRecordError):
                        variant.scan_records(*arguments)
            else:
                assert pure.scan_records(*arguments) == compiled.scan_records(*arguments) == (55, [(0, None), fault])
