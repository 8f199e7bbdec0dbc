"""Received batches before validation: which ones are plain, and how they are stored."""

from struct import pack_into
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.records.conftest import compiled_codec
from tests.protocol.records.handmade import batch, record
from warmlog.protocol.records import received
from warmlog.protocol.records.batch import read_header, stamp
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import HEADER_SIZE, STAMPED_SIZE
from warmlog.protocol.records.received import MAX_COPIED_SIZE

SMALL = build_batch([(5, b"key", b"value", (("h", b"1"),)), (6, None, b"x", ())])
LARGE = build_batch([(5, b"key", bytes(MAX_COPIED_SIZE), ())])
AT_LIMIT = build_batch([(5, None, bytes(2 * MAX_COPIED_SIZE - len(LARGE) + 3), ())])


@pytest.fixture(scope="session", params=["pure", "compiled"])
def variant(request: pytest.FixtureRequest) -> ModuleType:
    return received if request.param == "pure" else compiled_codec()


def test_one_uncompressed_batch_outside_transactions_is_plain(variant: ModuleType) -> None:
    for data in (SMALL, LARGE, bytearray(SMALL), memoryview(SMALL)):
        assert variant.plain_batch_producer(data) == -1


@pytest.mark.parametrize("attributes", [0, 1, 4, 7, 0x08, 0x10, 0x20, 0x40, 0x18, 0x4000, -0x8000])
def test_a_codec_a_transaction_and_bits_of_the_broker_are_not_plain(variant: ModuleType, attributes: int) -> None:
    data = batch(record(), attributes=attributes)
    assert (variant.plain_batch_producer(data) is None) is bool(attributes & 0x7F)


def test_a_plain_batch_tells_its_producer(variant: ModuleType) -> None:
    for producer_id in (0, 7, 2**63 - 1):
        data = batch(record(), producer_id=producer_id, producer_epoch=0, base_sequence=0)
        assert variant.plain_batch_producer(data) == producer_id


def test_no_batch_a_part_of_one_and_several_are_not_plain(variant: ModuleType) -> None:
    for size in range(len(SMALL)):
        assert variant.plain_batch_producer(SMALL[:size]) is None
    assert variant.plain_batch_producer(SMALL + b"x") is None
    assert variant.plain_batch_producer(SMALL + SMALL) is None


def test_an_old_format_is_not_plain(variant: ModuleType) -> None:
    for magic in (0, 1, 3, 0xFF):
        data = bytearray(SMALL)
        data[16] = magic
        assert variant.plain_batch_producer(data) is None


@given(data=st.binary(max_size=HEADER_SIZE + 9), length=st.integers(-20, 90), is_current=st.booleans())
def test_any_bytes_are_plain_for_both_or_for_none(
    compiled: ModuleType, data: bytes, length: int, *, is_current: bool
) -> None:
    changed = bytearray(data)
    if len(changed) >= HEADER_SIZE and is_current:
        pack_into(">i", changed, 8, length)
        changed[16], changed[22] = 2, 0
    assert compiled.plain_batch_producer(changed) == received.plain_batch_producer(changed)


@pytest.mark.parametrize("data", [SMALL, AT_LIMIT, LARGE], ids=["small", "at the limit", "large"])
@pytest.mark.parametrize("stamped", [(0, 0), (77, 9), (2**63 - 1, 2**31 - 1), (2**40, -1)])
def test_a_stored_batch_is_the_received_one_stamped(variant: ModuleType, data: bytes, stamped: tuple[int, int]) -> None:
    base_offset, leader_epoch = stamped
    whole = b"??" + data + b"rest"
    buffers = variant.stamped_batch(memoryview(whole), 2, 2 + len(data), base_offset, leader_epoch)
    in_place = bytearray(data)
    stamp(in_place, base_offset=base_offset, leader_epoch=leader_epoch)
    assert b"".join(buffers) == in_place
    assert whole == b"??" + data + b"rest", "received bytes are not modified"
    header = read_header(b"".join(buffers))
    assert (header.base_offset, header.leader_epoch) == stamped


def test_a_small_batch_is_copied_and_of_a_large_one_its_start_only(variant: ModuleType) -> None:
    assert len(AT_LIMIT) == MAX_COPIED_SIZE
    for data, sizes in ((SMALL, [len(SMALL)]), (AT_LIMIT, [MAX_COPIED_SIZE]), (LARGE, [16, len(LARGE) - 16])):
        assert [len(each) for each in variant.stamped_batch(memoryview(data), 0, len(data), 1, 2)] == sizes
    assert sizes[0] == STAMPED_SIZE


@pytest.mark.parametrize(("start", "end"), [(-1, 61), (0, 60), (1, 61), (10, 9), (0, len(SMALL) + 1), (len(SMALL), 0)])
def test_a_range_that_holds_no_batch_is_an_error(variant: ModuleType, start: int, end: int) -> None:
    with pytest.raises(ValueError, match=f"no batch in bytes {start} to {end} of {len(SMALL)}"):
        variant.stamped_batch(memoryview(SMALL), start, end, 0, 0)
