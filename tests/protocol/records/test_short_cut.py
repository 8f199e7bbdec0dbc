"""The compiled short cut accepts what the reference accepts, says the same of it, and nothing else."""

from struct import pack_into
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ProtocolError
from protocol.records import batch as batches
from protocol.records.batch import check_batches
from protocol.records.builder import build_batch
from protocol.records.layout import CRC_POSITION, CRC_START, HEADER_SIZE, UNUSUAL_BITS, BatchHeader
from tests.protocol.records.handmade import crc32c_by_bits
from tests.protocol.records.strategies import ROWS

GOOD = build_batch([(5, b"key", b"value", (("h", b"1"),)), (6, None, b"x", ()), (9, b"k", None, ())])


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `check_batches` go the long way."""
    monkeypatch.setattr(batches, "accept_batch", None)


def by_reference(data: bytes, *, walk: bool) -> BatchHeader | None:
    """The header of one plain batch, or None where the reference refuses the bytes or they are something else."""
    try:
        found = check_batches(data, walk=walk)
    except ProtocolError:
        return None
    return found[0][1] if len(found) == 1 and not found[0][1].attributes & UNUSUAL_BITS else None


def agree(compiled: ModuleType, data: bytes) -> None:
    for walk in (False, True):
        assert compiled.accept_batch(data, walk, release_gil=False) == by_reference(data, walk=walk)
        assert compiled.accept_batch(memoryview(data), walk, release_gil=True) == by_reference(data, walk=walk)


def with_its_crc(data: bytearray) -> bytes:
    pack_into(">I", data, CRC_POSITION, crc32c_by_bits(bytes(data[CRC_START:])))
    return bytes(data)


@pytest.mark.usefixtures("reference")
class TestAgreement:
    @given(rows=ROWS.filter(bool))
    def test_on_good_batches(self, compiled: ModuleType, rows: list[object]) -> None:
        agree(compiled, build_batch(rows))  # type: ignore[arg-type]  # the strategy's rows are rows

    def test_on_every_byte_changed_with_and_without_a_crc_that_fits(self, compiled: ModuleType) -> None:
        for position in range(len(GOOD)):
            for value in (0x00, 0x01, 0x7F, 0x80, 0xFF):
                changed = bytearray(GOOD)
                changed[position] = value
                agree(compiled, bytes(changed))
                agree(compiled, with_its_crc(changed))

    def test_on_every_cut_and_on_what_follows(self, compiled: ModuleType) -> None:
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
