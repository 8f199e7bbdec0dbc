"""Filtering of superseded records: both offset maps against a dictionary, and against each other."""

import importlib
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.requires import lacks
from warmlog.protocol.errors import CorruptBatchError, InvalidRecordError, ProtocolError
from warmlog.protocol.records.batch import headers, read_header, verify_crc
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.compaction import filtering
from warmlog.protocol.records.compaction.filtering import FilterRules, OffsetMap, add_batch, filter_batch
from warmlog.protocol.records.layout import (
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    Codec,
)
from warmlog.protocol.records.reader import decode_batch, records_in

START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
NONE_KEPT = FilterRules(START_MS, DAY_MS, frozenset())
ROOM = 1 << 16
MapType = type[OffsetMap]
Rows = list[tuple[int, bytes | None, bytes | None, tuple[()]]]


def compiled_map() -> MapType:
    try:
        found: MapType = importlib.import_module("warmlog.protocol.records.compaction._filtering").OffsetMap
    except ImportError as error:
        lacks(f"the compiled offset map is not built here: {error}")
    return found


@pytest.fixture(scope="session", params=["pure", "compiled"])
def make_map(request: pytest.FixtureRequest) -> MapType:
    return filtering.OffsetMap if request.param == "pure" else compiled_map()


def batch(pairs: Iterable[tuple[str | None, str | None]], **header: Any) -> bytes:
    """Build a batch of keys and values, 1 ms apart."""
    rows = [
        (START_MS + at, None if key is None else key.encode(), None if value is None else value.encode(), ())
        for at, (key, value) in enumerate(pairs)
    ]
    return build_batch(rows, **header)


def with_header(data: bytes, **fields: Any) -> bytes:
    """Return the batch with these header fields and a valid CRC."""
    header = read_header(data)._replace(**fields)
    changed = bytearray(filtering.HEADER.pack(*header) + data[61:])
    changed[17:21] = filtering.crc32c(bytes(changed[CRC_START:])).to_bytes(4)
    return bytes(changed)


def clean(make_map: MapType, log: bytes, rules: FilterRules = NONE_KEPT, *, room: int = ROOM) -> bytes:
    """Compact a run of ordinary batches with a map of their own keys."""
    known, out = make_map(room), bytearray()
    assert known.add_batches(log, 0, len(log), 0) == len(log)
    filtered = known.filter_batches(log, 0, len(log), rules, out)
    assert filtered.position == len(log)
    assert filtered.records_read == sum(header.record_count for _, header in headers(log))
    assert filtered.records_kept == sum(header.record_count for _, header in headers(out))
    for position, header in headers(out):
        verify_crc(out, position, header)
    return bytes(out)


def contents(log: bytes) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in records_in(log)]


# -- kept records ------------------------------------------------------------------------------------------------------


def test_nine_records_of_which_six_remain(make_map: MapType) -> None:
    """Keep the latest record of each of six keys, at its original offset."""
    keys = ["k1", "k2", "k1", "k3", "k4", "k5", "k5", "k2", "k6"]
    log = b"".join(batch([(key, f"v{at}")], base_offset=at) for at, key in enumerate(keys))
    cleaned = contents(clean(make_map, log))
    assert [offset for offset, _, _ in cleaned] == [2, 3, 4, 6, 7, 8]
    assert [key for _, key, _ in cleaned] == [b"k1", b"k3", b"k4", b"k5", b"k2", b"k6"]


def test_a_batch_keeps_its_offsets_its_producer_and_its_sequence(make_map: MapType) -> None:
    first = batch(
        [("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")],
        base_offset=10, leader_epoch=3, producer_id=7, producer_epoch=2, base_sequence=40,
    )  # fmt: skip
    log = first + batch([("a", "2"), ("d", "2")], base_offset=14)
    cleaned = clean(make_map, log)
    assert contents(cleaned) == [(11, b"b", b"1"), (12, b"c", b"1"), (14, b"a", b"2"), (15, b"d", b"2")]
    before, after = read_header(first), read_header(cleaned)
    assert after.record_count == 2
    assert (after.base_offset, after.last_offset, after.leader_epoch) == (10, 13, 3)
    assert (after.producer_id, after.producer_epoch, after.base_sequence) == (7, 2, 40)
    assert (before.max_timestamp, after.max_timestamp) == (START_MS + 3, START_MS + 2)
    assert [record.timestamp for record in records_in(cleaned)][:2] == [START_MS + 1, START_MS + 2]


def test_unchanged_batches_are_identical_byte_for_byte(make_map: MapType) -> None:
    log = b"".join(batch([(f"{at}", "x"), (f"{at}b", "y")], base_offset=2 * at) for at in range(20))
    assert clean(make_map, log) == log


def test_a_batch_without_records_is_removed_unless_it_must_be_kept(make_map: MapType) -> None:
    log = batch([("a", "1"), ("b", "1")], producer_id=5, producer_epoch=1, base_sequence=9) + batch(
        [("a", "2"), ("b", "2")], base_offset=2
    )
    assert len(list(headers(clean(make_map, log)))) == 1
    kept = clean(make_map, log, NONE_KEPT._replace(keep_empty=frozenset({1})))
    header = read_header(kept)
    assert (header.size, header.record_count, header.base_offset, header.last_offset) == (61, 0, 0, 1)
    assert (header.producer_id, header.base_sequence, header.base_timestamp) == (5, 9, -1)
    assert header.max_timestamp == START_MS + 1
    assert contents(kept) == [(2, b"a", b"2"), (3, b"b", b"2")]
    again = clean(make_map, kept, NONE_KEPT._replace(keep_empty=frozenset({1})))
    assert again == kept
    assert len(list(headers(clean(make_map, kept)))) == 1


def test_records_without_a_key_go(make_map: MapType) -> None:
    assert contents(clean(make_map, batch([(None, "1"), ("a", "2"), (None, None)]))) == [(1, b"a", b"2")]


def test_records_past_the_map_are_kept(make_map: MapType) -> None:
    log = batch([("a", "1"), (None, "1")]) + batch([("a", "2"), ("a", None), (None, "x")], base_offset=2)
    known, out = make_map(ROOM), bytearray()
    known.add_batches(log, 0, read_header(log).size, 0)
    assert known.latest_offset == 1
    known.filter_batches(log, 0, len(log), NONE_KEPT, out)
    assert contents(bytes(out)) == [(0, b"a", b"1"), (2, b"a", b"2"), (3, b"a", None), (4, None, b"x")]


# -- tombstones --------------------------------------------------------------------------------------------------------


def test_a_tombstone_gets_a_delete_horizon_and_is_removed_after_it(make_map: MapType) -> None:
    log = batch([("a", "1"), ("b", "1"), ("a", None)])
    first = clean(make_map, log)
    header = read_header(first)
    assert header.attributes & DELETE_HORIZON_BIT
    assert header.base_timestamp == header.delete_horizon_ms == START_MS + DAY_MS
    assert contents(first) == [(1, b"b", b"1"), (2, b"a", None)]
    assert [record.timestamp for record in records_in(first)] == [START_MS + 1, START_MS + 2]
    assert header.max_timestamp == START_MS + 2
    before = clean(make_map, first, FilterRules(START_MS + DAY_MS - 1, DAY_MS, frozenset()))
    assert before == first  # the horizon is unchanged
    after = clean(make_map, first, FilterRules(START_MS + DAY_MS, DAY_MS, frozenset()))
    assert contents(after) == [(1, b"b", b"1")]
    assert read_header(after).delete_horizon_ms == START_MS + DAY_MS
    assert [record.timestamp for record in records_in(after)] == [START_MS + 1]


def test_a_horizon_before_the_records_times_and_far_after_them(make_map: MapType) -> None:
    for now_ms in (0, 1, START_MS - 5, 1 << 61):
        cleaned = clean(make_map, batch([("a", None), ("b", "x" * 300)]), FilterRules(now_ms, 0, frozenset()))
        assert read_header(cleaned).delete_horizon_ms == now_ms
        assert [record.timestamp for record in records_in(cleaned)] == [START_MS, START_MS + 1]


def test_log_append_time_remains_the_timestamp_of_every_record(make_map: MapType) -> None:
    data = with_header(batch([("a", "1"), ("a", None), ("b", "1")]), attributes=LOG_APPEND_TIME_BIT, max_timestamp=42)
    cleaned = clean(make_map, data)
    assert [(record.key, record.timestamp) for record in records_in(cleaned)] == [(b"a", 42), (b"b", 42)]
    assert read_header(cleaned).max_timestamp == 42


# -- batches that are not ordinary -------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_a_compressed_batch_is_decompressed_and_compressed_again(make_map: MapType, codec: Codec) -> None:
    rows = [(f"k{at % 7}", f"value {at}") for at in range(50)]
    data = batch(rows, compression=codec)
    known = make_map(ROOM)
    assert known.add_batches(data, 0, len(data), 0) == 0
    add_batch(known, data, read_header(data), 0)
    assert known.latest_offset == 49
    made = filter_batch(known, data, read_header(data), NONE_KEPT)
    header = read_header(made)
    verify_crc(made, 0, header)
    assert (header.codec, header.record_count, header.last_offset) == (codec, 7, 49)
    assert contents(bytes(made)) == [(at, b"k%d" % (at % 7), b"value %d" % at) for at in range(43, 50)]
    untouched = batch([("k9", "x")], compression=codec)
    assert filter_batch(known, untouched, read_header(untouched), NONE_KEPT) is untouched


def test_a_discarded_batch_leaves_nothing_or_a_header(make_map: MapType) -> None:
    data = batch([("a", "1")], attributes=TRANSACTIONAL_BIT, producer_id=1, producer_epoch=0, base_sequence=0)
    known, header = make_map(ROOM), read_header(data)
    assert filter_batch(known, data, header, NONE_KEPT, discard=True) == b""
    kept = filter_batch(known, data, header, NONE_KEPT._replace(keep_empty=frozenset({0})), discard=True)
    assert read_header(kept).record_count == 0
    assert read_header(kept).is_transactional


def test_a_marker_of_nothing_gets_a_horizon(make_map: MapType) -> None:
    marker = build_batch(
        [(START_MS, struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 3), ())],
        attributes=CONTROL_BIT | TRANSACTIONAL_BIT, producer_id=1, producer_epoch=0,
    )  # fmt: skip
    known, header = make_map(ROOM), read_header(marker)
    assert known.add_batches(marker, 0, len(marker), 0) == 0
    assert filter_batch(known, marker, header, NONE_KEPT) == marker
    begun = filter_batch(known, marker, header, NONE_KEPT, marks_empty_transaction=True)
    found = read_header(begun)
    verify_crc(begun, 0, found)
    assert found.delete_horizon_ms == START_MS + DAY_MS
    record = decode_batch(begun, 0, found)[0]
    assert (record.timestamp, record.key) == (START_MS, struct.pack(">hh", 0, 1))
    assert filter_batch(known, begun, found, NONE_KEPT, marks_empty_transaction=True) == begun


# -- the map -----------------------------------------------------------------------------------------------------------


def test_a_full_map_reports_up_to_which_offset_it_is_complete(make_map: MapType) -> None:
    known = make_map(make_map.ENTRY_SIZE * 10, 0.5)
    assert known.max_entries == 5
    log = batch([("a", "1"), ("b", "1"), ("a", "2")]) + batch([(f"{at}", "1") for at in range(9)], base_offset=3)
    size = read_header(log).size
    assert known.add_batches(log, 0, len(log), 0) == size
    assert known.is_full
    assert (len(known), known.latest_offset) == (5, 5)
    out = bytearray()
    known.filter_batches(log, 0, len(log), NONE_KEPT, out)
    assert [offset for offset, _, _ in contents(bytes(out))] == [1, 2, *range(3, 12)]
    known.clear(5)
    assert (len(known), known.is_full, known.latest_offset) == (0, False, 5)
    assert known.add_batches(log, size, len(log), 6) == size
    assert known.latest_offset == 10


def test_a_buffer_too_small_for_one_key_is_rejected(make_map: MapType) -> None:
    with pytest.raises(ValueError, match="too small"):
        make_map(10)


def test_keys_are_found_as_bytes(make_map: MapType) -> None:
    known = make_map(ROOM)
    known.add_batches(data := batch([("", "1"), ("a", "2"), ("a" * 100, "3")], base_offset=7), 0, len(data), 0)
    assert [known.find(key) for key in (b"", b"a", b"a" * 100, b"b")] == [7, 8, 9, -1]


def test_many_keys(make_map: MapType) -> None:
    known = make_map(make_map.ENTRY_SIZE * 4000)
    data = batch([(f"key {at}", "") for at in range(3600)])
    assert known.add_batches(data, 0, len(data), 0) == len(data)
    assert [known.find(b"key %d" % at) for at in range(3600)] == list(range(3600))


# -- corrupt batches ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [16, 17, 21, *range(23, 90, 3)])
def test_a_flipped_bit_raises_and_is_not_copied(make_map: MapType, position: int) -> None:
    data = bytearray(batch([("a", "1"), ("b", "2"), ("c", "3" * 30)]))
    data[position] ^= 4
    known, out = make_map(ROOM), bytearray()
    with pytest.raises(ProtocolError):
        known.add_batches(data, 0, len(data), 0)
    with pytest.raises(ProtocolError):
        known.filter_batches(data, 0, len(data), NONE_KEPT, out)
    assert not out


def test_a_cut_batch_ends_the_run(make_map: MapType) -> None:
    whole = batch([("a", "1")])
    log = whole + batch([("a", "2")], base_offset=1)[:-1]
    known, out = make_map(ROOM), bytearray()
    assert known.add_batches(log, 0, len(log), 0) == len(whole)
    assert known.filter_batches(log, 0, len(log), NONE_KEPT, out).position == len(whole)
    for position, end in ((0, len(log) + 1), (5, 4), (-1, 5)):
        with (
            pytest.raises(ValueError, match=r".") if make_map is not OffsetMap else pytest.raises(Exception, match=r".")
        ):
            known.add_batches(log, position, end, 0)


@given(noise=st.binary(min_size=1, max_size=60), count=st.integers(-3, 5))
@settings(max_examples=200)
def test_noise_for_records_is_refused_by_both_or_neither(noise: bytes, count: int) -> None:
    outcomes = []
    for make in (OffsetMap, compiled_map()):
        data = with_header(
            batch([("a", "b")])[:61] + noise,
            batch_length=49 + len(noise), record_count=count, last_offset_delta=5,
        )  # fmt: skip
        out = bytearray()
        try:
            known = make(ROOM)
            known.add_batches(data, 0, len(data), 0)
            known.filter_batches(data, 0, len(data), NONE_KEPT, out)
        except (CorruptBatchError, InvalidRecordError):
            outcomes.append(None)
        else:
            outcomes.append(bytes(out))
    assert outcomes[0] == outcomes[1]


# -- against a dictionary ----------------------------------------------------------------------------------------------

KEYS = st.none() | st.sampled_from([f"k{at}" for at in range(8)])
PAIRS = st.tuples(KEYS, st.none() | st.text(max_size=8))


def concatenated(batches: Sequence[list[tuple[str | None, str | None]]]) -> bytes:
    log, offset = b"", 0
    for pairs in batches:
        log += batch(pairs, base_offset=offset)
        offset += len(pairs)
    return log


@given(
    batches=st.lists(st.lists(PAIRS, min_size=1, max_size=6), min_size=1, max_size=10),
    latest=st.integers(-1, 60),
    delays=st.lists(st.integers(0, 10), min_size=1, max_size=3),
)
@settings(max_examples=150)
def test_against_a_dictionary(
    batches: list[list[tuple[str | None, str | None]]], latest: int, delays: list[int]
) -> None:
    for make in (OffsetMap, compiled_map()):
        log = concatenated(batches)
        model = contents(log)
        now_ms, horizons = START_MS, dict[int, int]()  # of a batch's tombstones, by its base offset
        for delay in delays:
            now_ms += delay
            part = [header for _, header in headers(log) if header.last_offset <= latest]
            end = sum(header.size for header in part)
            known, out = make(ROOM), bytearray()
            known.add_batches(log, 0, end, 0)
            known.filter_batches(log, 0, len(log), FilterRules(now_ms, 7, frozenset()), out)
            known_end = known.latest_offset
            last = {key: offset for offset, key, _ in model if key is not None and offset <= known_end}
            base_of = {
                record.offset: header.base_offset
                for position, header in headers(log)
                for record in decode_batch(log, position, header)
            }
            model = [
                (offset, key, value)
                for offset, key, value in model
                if offset > known_end
                or (
                    key is not None
                    and last[key] == offset
                    and (value is not None or now_ms < horizons.get(base_of[offset], 1 << 62))
                )
            ]
            for offset, _, value in model:
                if value is None:
                    horizons.setdefault(base_of[offset], now_ms + 7)
            log = bytes(out)
            assert contents(log) == model


@given(
    batches=st.lists(st.lists(PAIRS, min_size=1, max_size=6), min_size=1, max_size=10),
    room=st.integers(1, 12),
    first_offset=st.integers(0, 20),
    keep_empty=st.frozensets(st.integers(0, 60)),
    now=st.integers(0, 3),
)
@settings(max_examples=200)
def test_the_compiled_and_the_pure_map_agree(
    batches: list[list[tuple[str | None, str | None]]],
    room: int,
    first_offset: int,
    keep_empty: frozenset[int],
    now: int,
) -> None:
    log = concatenated(batches)
    rules = FilterRules(START_MS + now, now, keep_empty)
    outcomes: list[Any] = []
    for make in (OffsetMap, compiled_map()):
        known, out = make(make.ENTRY_SIZE * (room + 2), (room + 0.5) / (room + 2)), bytearray()
        assert known.max_entries == room
        added = known.add_batches(log, 0, len(log), first_offset)
        facts = (added, known.latest_offset, known.is_full, len(known))
        filtered = known.filter_batches(log, 0, len(log), rules, out)
        second = bytearray()
        known.filter_batches(out, 0, len(out), rules._replace(now_ms=START_MS + 5), second)
        outcomes.append((facts, filtered, bytes(out), bytes(second)))
    assert outcomes[0] == outcomes[1]


def test_a_callable_is_chosen() -> None:
    chosen: Callable[[int], Any] = importlib.import_module("warmlog.protocol.records.compaction.offset_map").OffsetMap
    assert len(chosen(ROOM)) == 0
