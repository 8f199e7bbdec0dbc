"""The walk over batches by their lengths alone."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.protocol.records.batch import batch_spans, headers
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import BATCH_LENGTH_POSITION, HEADER_SIZE, LOG_OVERHEAD, MIN_BATCH_LENGTH

ONE = build_batch([(0, b"key", b"value", ())])
LARGE = build_batch([(0, None, bytes(1000), ())])


def with_length(length: int) -> bytes:
    batch = bytearray(ONE)
    struct.pack_into(">i", batch, BATCH_LENGTH_POSITION, length)
    return bytes(batch)


@given(st.lists(st.sampled_from([ONE, LARGE]), max_size=5))
def test_whole_batches_are_found_as_by_their_headers(batches: list[bytes]) -> None:
    records = b"".join(batches)
    assert list(batch_spans(records)) == [(position, header.size) for position, header in headers(records)]


def test_the_last_batch_may_be_cut_within_its_records_but_not_within_its_header() -> None:
    assert list(batch_spans(ONE + LARGE[:-1])) == [(0, len(ONE)), (len(ONE), len(LARGE))]
    assert list(batch_spans(ONE + LARGE[:HEADER_SIZE])) == [(0, len(ONE)), (len(ONE), len(LARGE))]
    assert list(batch_spans(ONE + LARGE[: HEADER_SIZE - 1])) == [(0, len(ONE))]
    assert list(batch_spans(b"")) == []


@pytest.mark.parametrize("length", [-(1 << 31), -LOG_OVERHEAD, -1, 0, 1, MIN_BATCH_LENGTH - 1])
def test_nothing_behind_a_length_that_cannot_be_is_read(length: int) -> None:
    assert list(batch_spans(ONE + with_length(length) + ONE)) == [(0, len(ONE)), (len(ONE), 0)]


def test_a_length_beyond_the_buffer_ends_the_walk() -> None:
    assert list(batch_spans(with_length((1 << 31) - 1) + ONE)) == [(0, (1 << 31) - 1 + LOG_OVERHEAD)]
