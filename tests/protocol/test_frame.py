"""The frame reader, compared with a simple split of the stream."""

import struct
from itertools import pairwise
from mmap import mmap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmlog.protocol.errors import ErrorCode, FrameError
from warmlog.protocol.frame import (
    FIRST_BUFFER_BYTES,
    FIRST_BYTES,
    KEPT_BYTES,
    LARGE_FRAME_BYTES,
    STEP_BYTES,
    FrameReader,
)


def framed(*frames: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)


def taken(reader: FrameReader) -> list[bytes]:
    return [bytes(frame) for frame in iter(reader.next_frame, None)]


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


small_or_large = st.binary(max_size=60) | st.integers(LARGE_FRAME_BYTES - 3, LARGE_FRAME_BYTES + 3).map(
    lambda size: bytes([size % 251]) * size
)


@given(frames=st.lists(small_or_large, max_size=6), cuts=st.lists(st.integers(0, 1 << 20), max_size=12))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(frames: list[bytes], cuts: list[int]) -> None:
    reader = FrameReader()
    out = []
    for piece in pieces(framed(*frames), cuts):
        reader.feed(piece)
        out += taken(reader)
    assert out == frames
    assert reader.held_bytes == 0


@given(
    frames=st.lists(small_or_large, max_size=6),
    cuts=st.lists(st.integers(0, 1 << 20), max_size=12),
    shares=st.lists(st.integers(1, 1 << 17), min_size=1, max_size=8),
)
def test_receiving_into_the_large_frames_own_buffer_gives_the_same(
    frames: list[bytes], cuts: list[int], shares: list[int]
) -> None:
    reader = FrameReader()
    out = []
    for turn, piece in enumerate(pieces(framed(*frames), cuts)):
        rest = memoryview(piece)
        while rest:
            buffer = reader.buffer_for_next()
            if buffer is None:
                reader.feed(bytes(rest))
                rest = rest[len(rest) :]
            else:
                count = min(len(rest), len(buffer), shares[turn % len(shares)])
                buffer[:count] = rest[:count]
                reader.received(count)
                rest = rest[count:]
            out += taken(reader)
    assert out == frames


@settings(max_examples=20)
@given(frames=st.lists(st.binary(max_size=20), min_size=1, max_size=5))
def test_byte_by_byte(frames: list[bytes]) -> None:
    reader = FrameReader()
    out = []
    for byte in framed(*frames):
        reader.feed(bytes([byte]))
        out += taken(reader)
    assert out == frames


@pytest.mark.parametrize("length", [-1, -(1 << 31), 1001, (1 << 31) - 1])
def test_a_bad_length_is_refused_when_its_four_bytes_are_there_and_ever_after(length: int) -> None:
    reader = FrameReader(max_frame_bytes=1000)
    reader.feed(framed(b"good") + struct.pack(">i", length))
    assert reader.next_frame() == b"good"
    for _ in range(2):
        with pytest.raises(FrameError, match=str(length)) as caught:
            reader.next_frame()
        assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert reader.buffer_for_next() is None
    assert reader.held_bytes == 4


def test_the_limit_itself_is_allowed() -> None:
    reader = FrameReader(max_frame_bytes=1000)
    reader.feed(framed(b"x" * 1000))
    assert reader.next_frame() == b"x" * 1000


def test_an_http_request_is_a_frame_too_long() -> None:
    reader = FrameReader()
    reader.feed(b"GET / HTTP/1.1\r\n")
    with pytest.raises(FrameError):
        reader.next_frame()


def test_a_frame_is_a_read_only_view_of_the_received_bytes() -> None:
    received = framed(b"one", b"two")
    reader = FrameReader()
    reader.feed(received)
    frame = reader.next_frame()
    assert frame is not None
    assert frame.obj is received
    assert frame.readonly


def test_a_large_frame_is_read_only_and_never_written_again() -> None:
    first, second = b"a" * LARGE_FRAME_BYTES, b"b" * LARGE_FRAME_BYTES
    stream = framed(first, second)
    reader = FrameReader()
    reader.feed(stream[:10])
    assert reader.next_frame() is None
    reader.feed(stream[10:])
    kept = reader.next_frame()
    assert kept is not None
    assert kept.readonly
    assert reader.next_frame() == second
    assert kept == first


def test_a_length_alone_takes_no_memory() -> None:
    reader = FrameReader()
    reader.feed(struct.pack(">i", 1 << 20) + bytes(FIRST_BYTES - 1))
    assert reader.next_frame() is None
    assert reader.announced_bytes == 0
    assert reader.buffer_for_next() is None
    assert reader.held_bytes == 4 + FIRST_BYTES - 1


def test_a_large_frame_announces_its_size_before_allocating_exactly_that() -> None:
    reader = FrameReader()
    reader.feed(struct.pack(">i", 1 << 20) + bytes(FIRST_BYTES))
    assert reader.next_frame() is None
    assert reader.announced_bytes == 1 << 20
    assert reader.held_bytes == 4 + FIRST_BYTES
    buffer = reader.buffer_for_next()
    assert buffer is not None
    assert len(buffer) == (1 << 20) - FIRST_BYTES
    assert reader.held_bytes == 1 << 20
    assert reader.announced_bytes == 0


def test_the_memory_of_a_very_large_frame_grows_with_the_received_bytes() -> None:
    size = FIRST_BUFFER_BYTES + 3 * STEP_BYTES
    frame = bytes(range(251)) * (size // 251 + 1)
    reader = FrameReader(max_frame_bytes=len(frame))
    reader.feed(struct.pack(">i", len(frame)) + frame[:FIRST_BYTES])
    assert reader.next_frame() is None
    sent = FIRST_BYTES
    while sent < len(frame):
        announced, before = reader.announced_bytes, reader.held_bytes
        buffer = reader.buffer_for_next()
        assert buffer is not None
        assert reader.announced_bytes == 0
        assert reader.held_bytes <= max(before + announced, FIRST_BUFFER_BYTES)
        assert reader.held_bytes <= max(sent * 2, FIRST_BUFFER_BYTES)
        count = min(len(buffer), 1_000_003)
        buffer[:count] = frame[sent : sent + count]
        reader.received(count)
        sent += count
    assert reader.next_frame() == frame
    assert reader.held_bytes == 0


@pytest.mark.parametrize("left", [0, 3, 5, KEPT_BYTES])
def test_returned_frames_are_not_kept_for_what_follows_them(left: int) -> None:
    reader = FrameReader()
    stream = framed(b"x" * 60_000, b"y" * 60_000)
    reader.feed(stream[: 60_004 + left])
    assert taken(reader) == [b"x" * 60_000]
    assert reader.held_bytes == left
    reader.feed(stream[60_004 + left :])
    assert taken(reader) == [b"y" * 60_000]


@given(cuts=st.lists(st.integers(0, 1 << 24), max_size=6))
@settings(max_examples=10)
def test_a_very_large_frame_may_be_fed_as_well(cuts: list[int]) -> None:
    frame = bytes(range(251)) * (FIRST_BUFFER_BYTES * 5 // 251)
    reader = FrameReader()
    out = []
    for piece in pieces(framed(b"a", frame, b"b"), cuts):
        reader.feed(piece)
        out += taken(reader)
    assert out == [b"a", frame, b"b"]


def test_what_has_arrived_of_a_very_large_frame_stays_where_it_is() -> None:
    """To clear and copy tens of megabytes in one go would hold up everybody."""
    reader = FrameReader(1 << 30)
    reader.feed((FIRST_BUFFER_BYTES * 16).to_bytes(4) + bytes(FIRST_BYTES))
    assert reader.next_frame() is None
    buffers = set()
    while (frame := reader.next_frame()) is None:
        buffer = reader.buffer_for_next()
        assert buffer is not None
        buffers.add(id(buffer.obj))
        reader.received(len(buffer))
    assert buffers == {id(frame.obj)}
    assert isinstance(frame.obj, mmap), "memory that is clear when it is first used"


def test_a_cut_small_frame_has_no_buffer_of_its_own() -> None:
    reader = FrameReader()
    reader.feed(framed(b"abc")[:-1])
    assert reader.next_frame() is None
    assert reader.buffer_for_next() is None
    assert reader.announced_bytes == 0


@given(frame=small_or_large, data=st.data())
def test_within_a_frame_from_its_first_byte_to_its_last(frame: bytes, data: st.DataObject) -> None:
    stream = framed(frame)
    reader = FrameReader()
    assert not reader.is_within_frame
    cut = data.draw(st.integers(1, len(stream) - 1))
    reader.feed(stream[:cut])
    assert reader.next_frame() is None
    assert reader.is_within_frame
    reader.feed(stream[cut:])
    assert reader.next_frame() == frame
    assert not reader.is_within_frame
