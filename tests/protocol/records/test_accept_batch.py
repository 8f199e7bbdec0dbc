"""`accept_batch` accepts exactly the plain batches that the reference accepts, with the same header.

`accept_stamped` accepts those with base offset 0, and stamps them as the reference does.
"""

from struct import pack_into
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.records.handmade import batch, crc32c_by_bits, record
from tests.protocol.records.strategies import ROWS
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.records import validation
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import CRC_POSITION, CRC_START, HEADER_SIZE, STALE_CRC, UNUSUAL_BITS, BatchHeader
from warmlog.protocol.records.received import stamped_batch
from warmlog.protocol.records.record import MAX_INT64
from warmlog.protocol.records.validation import BatchRules, NeedsReencodingError, check_batches

GOOD = build_batch([(5, b"key", b"value", (("h", b"1"),)), (6, None, b"x", ()), (9, b"k", None, ())])


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `check_batches` use the reference."""
    monkeypatch.setattr(validation, "accept_batch", None)


NOW = 1_700_000_000_000
OFFSET, EPOCH = 1 << 40, 77
#: Walked or not, without limits and with them, and with a key for every record.
RULES = (
    BatchRules(walk=False),
    BatchRules(),
    BatchRules(before_max_ms=3000, after_max_ms=5000),
    BatchRules(walk=False, before_max_ms=3000, after_max_ms=MAX_INT64 - 1),
    BatchRules(before_max_ms=MAX_INT64 - 1, after_max_ms=0, need_keys=True),
)


def by_reference(data: bytes, rules: BatchRules, now_ms: int) -> BatchHeader | None:
    """Return the header of one plain batch, or None if the reference rejects, changes or reencodes it."""
    try:
        found = check_batches(data, rules, now_ms)
    except (ProtocolError, NeedsReencodingError):
        return None
    header = found[0][1]
    return header if len(found) == 1 and header.crc != STALE_CRC and not header.attributes & UNUSUAL_BITS else None


def agree(compiled: ModuleType, data: bytes, now_ms: int = 7) -> None:
    for rules in RULES:
        arguments = (now_ms, rules.before_max_ms, rules.after_max_ms, rules.need_keys)
        expected = by_reference(data, rules, now_ms)
        assert compiled.accept_batch(data, rules.walk, False, *arguments) == expected
        assert compiled.accept_batch(memoryview(data), rules.walk, True, *arguments) == expected
        accepted = compiled.accept_stamped(memoryview(data), OFFSET, EPOCH, rules.walk, False, *arguments)
        if expected is None or expected.base_offset:
            assert accepted is None
        else:
            buffers = stamped_batch(memoryview(data), 0, len(data), OFFSET, EPOCH)
            header = expected if expected.producer_id >= 0 else None
            assert accepted == (buffers, OFFSET + expected.last_offset_delta, expected.max_timestamp, header)


def with_its_crc(data: bytearray) -> bytes:
    pack_into(">I", data, CRC_POSITION, crc32c_by_bits(bytes(data[CRC_START:])))
    return bytes(data)


@pytest.mark.usefixtures("reference")
class TestAgreement:
    @given(rows=ROWS.filter(bool))
    def test_on_good_batches(self, compiled: ModuleType, rows: list[object]) -> None:
        agree(compiled, build_batch(rows), NOW)  # type: ignore[arg-type]  # the strategy's rows are rows

    @given(base=st.integers(-3, 12), largest=st.integers(-3, 12), deltas=st.lists(st.integers(-9, 9), max_size=4))
    def test_on_every_kind_of_times(self, compiled: ModuleType, base: int, largest: int, deltas: list[int]) -> None:
        records = b"".join(
            record(offset_delta=offset, timestamp_delta=delta, key=b"k" if delta else None)
            for offset, delta in enumerate([0, *deltas])
        )
        data = batch(records, record_count=len(deltas) + 1, base_timestamp=base, max_timestamp=largest)
        for now_ms in (0, 7, 3005, MAX_INT64):
            agree(compiled, data, now_ms)

    def test_on_times_at_the_ends_of_64_bits(self, compiled: ModuleType) -> None:
        for base in (-(1 << 63), MAX_INT64):
            for delta in (-1, 0, 1):
                agree(compiled, batch(record(timestamp_delta=delta), base_timestamp=base, max_timestamp=base))

    def test_on_every_byte_changed_with_and_without_a_crc_that_fits(self, compiled: ModuleType) -> None:
        for position in range(len(GOOD)):
            for value in (0x00, 0x01, 0x7F, 0x80, 0xFF):
                changed = bytearray(GOOD)
                changed[position] = value
                agree(compiled, bytes(changed))
                agree(compiled, with_its_crc(changed))

    def test_on_every_truncation_and_on_trailing_bytes(self, compiled: ModuleType) -> None:
        for size in range(len(GOOD)):
            agree(compiled, GOOD[:size])
        agree(compiled, GOOD + b"x")
        agree(compiled, GOOD + GOOD)

    @given(noise=st.binary(max_size=40), count=st.integers(0, 5))
    def test_on_noise_behind_a_good_header(self, compiled: ModuleType, noise: bytes, count: int) -> None:
        data = bytearray(GOOD[:HEADER_SIZE] + noise)
        pack_into(">i", data, 8, len(data) - 12)
        pack_into(">i", data, 23, count - 1)
        pack_into(">i", data, 57, count)
        agree(compiled, with_its_crc(data))

    @pytest.mark.parametrize("extra", [*range(18), 3900, 4010, *range(4020, 4034), 5000])
    def test_on_any_size_and_alignment(self, compiled: ModuleType, extra: int) -> None:
        good = build_batch([(5, None, bytes(number % 251 for number in range(extra)), ())])
        agree(compiled, good)
        for skipped in range(1, 9):
            shifted = memoryview(bytes(skipped) + good)[skipped:]
            assert compiled.accept_batch(shifted, True, False) == check_batches(good)[0][1]
            assert compiled.accept_stamped(shifted, 5, 1, True, False, NOW, MAX_INT64, MAX_INT64, False) == (
                stamped_batch(memoryview(good), 0, len(good), 5, 1),
                5,
                5,
                None,
            )
        agree(compiled, good[:-1] + bytes([good[-1] ^ 1]))
        agree(compiled, good[:HEADER_SIZE] + bytes([good[HEADER_SIZE] ^ 0x80]) + good[HEADER_SIZE + 1 :])

    def test_on_batches_of_producers_and_with_other_base_offsets(self, compiled: ModuleType) -> None:
        for producer_id in (-1, 0, 9):
            for base_offset in (0, 1, -1):
                sequenced = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 3}
                agree(compiled, batch(record(), base_offset=base_offset, **sequenced))

    def test_not_on_offsets_that_would_not_fit(self, compiled: ModuleType) -> None:
        assert compiled.accept_stamped(GOOD, MAX_INT64, 0, True, False, NOW, MAX_INT64, MAX_INT64, False) is None
