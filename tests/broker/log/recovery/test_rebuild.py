"""The scan that recovery does: the compiled short cut finds what the reference finds, and makes the same entries."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.protocol.records.handmade import batch, record
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.producers import trail
from warmlog.broker.log.producers.replay import Bounds, apply_batch, replay
from warmlog.broker.log.producers.state import ProducerState
from warmlog.broker.log.producers.trail import ProducerTrail
from warmlog.broker.log.recovery import rebuild
from warmlog.broker.log.recovery.rebuild import Scan, scan_segment
from warmlog.broker.log.segments.log_scan import WALK_CHUNK_SIZE
from warmlog.broker.log.segments.segment import Segment
from warmlog.broker.log.segments.tail import Tail
from warmlog.protocol.records import codec

START_MS = 1_700_000_000_000
FEW = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)

needs_short_cut = pytest.mark.skipif(not codec.compiled, reason="the compiled short cut is not built here")


def made(offset: int, draw: random.Random, producers: int) -> tuple[bytes, int]:
    """A batch at an offset, and the offset after it."""
    count = draw.choice([1, 1, 2, 30])
    producer_id = draw.randrange(producers) if producers and draw.random() < 0.9 else -1
    records = b"".join(record(offset_delta=delta, value=bytes(draw.randrange(200))) for delta in range(count))
    made = sealed(
        records,
        base_offset=offset,
        last_offset_delta=count - 1,
        record_count=count,
        leader_epoch=draw.choice([0, 0, 0, 0, 1, 2]),
        base_timestamp=(time := START_MS + draw.randrange(-50, 1000)),
        max_timestamp=time + draw.randrange(50),
        producer_id=producer_id,
        producer_epoch=draw.choice([0, 0, 0, 1]) if producer_id >= 0 else -1,
        base_sequence=offset % 1000 if producer_id >= 0 else -1,
        attributes=16 if producer_id >= 0 and draw.random() < 0.1 else 0,
    )
    return made, offset + count + draw.choice([0, 0, 0, 3])


def sealed(records: bytes, **fields: int) -> bytes:
    """A batch with its CRC, by the library: that of `handmade` goes bit by bit."""
    data = bytearray(batch(records, crc=0, **fields))
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def log_file(seed: int, batches: int, base_offset: int, producers: int = 0) -> bytes:
    """So many batches from an offset on."""
    draw, offset, parts = random.Random(seed), base_offset, []
    for _ in range(batches):
        part, offset = made(offset, draw, producers)
        parts.append(part)
    return b"".join(parts)


def segment_of(directory: Path, data: bytes, base_offset: int) -> Segment:
    segment = Segment(
        OpenFiles(), str(directory), base_offset, size=len(data), next_base_offset=None, index_interval_bytes=512
    )
    Path(segment.path(".log")).write_bytes(data)
    return segment


TAIL_FIELDS = (
    "first_timestamp", "indexed_timestamp", "max_timestamp", "max_timestamp_offset", "next_offset", "offset_entries",
    "size", "time_entries", "unindexed_size",
)  # fmt: skip


def scanned(segment: Segment, config: LogConfig, *, verified: bool) -> tuple[Scan, list[object], int]:
    """A scan, its tail's fields, and the sum of the progress that was reported."""
    told: list[int] = []
    tail = Tail(segment.base_offset, config, created_ms=0, jitter_ms=0)
    scan = scan_segment(segment, tail, verified=verified, advanced=told.append)
    return scan, [getattr(tail, name) for name in TAIL_FIELDS], sum(told)


def states_after(trail: ProducerTrail) -> dict[int, ProducerState]:
    states: dict[int, ProducerState] = {}
    for _, header in trail:
        apply_batch(states, header, None)
    return states


def agree(segment: Segment, config: LogConfig, monkeypatch: pytest.MonkeyPatch, *, verified: bool) -> Scan:
    """Scan by both ways and hold the results to each other."""
    assert rebuild.walk_sound is not None
    short, short_tail, told = scanned(segment, config, verified=verified)
    with monkeypatch.context() as patch:
        patch.setattr(rebuild, "walk_sound", None)
        long, long_tail, _ = scanned(segment, config, verified=verified)
    assert short_tail == long_tail
    assert short._replace(tail=long.tail, trail=long.trail) == long
    assert states_after(short.trail) == states_after(long.trail)
    assert told == short.tail.size
    return short


@needs_short_cut
@FEW
@given(
    seed=st.integers(0, 1 << 30),
    batches=st.integers(0, 40),
    base_offset=st.sampled_from([0, 7, 1 << 40]),
    interval=st.sampled_from([0, 1, 512, 4096]),
    index_bytes=st.sampled_from([0, 24, 4096]),
    verified=st.booleans(),
    damage=st.one_of(st.none(), st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255))),
    cut=st.integers(0, 60),
)
def test_the_short_cut_finds_what_the_reference_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, batches: int, base_offset: int, **drawn: Any
) -> None:
    data = bytearray(log_file(seed, batches, base_offset, producers=seed % 2))
    if drawn["damage"] is not None and data:
        place, flip = drawn["damage"]
        data[int(place * len(data))] ^= flip
    segment = segment_of(tmp_path, bytes(data[: len(data) - drawn["cut"]]), base_offset)
    config = LogConfig(index_interval_bytes=drawn["interval"], segment_index_bytes=drawn["index_bytes"])
    agree(segment, config, monkeypatch, verified=drawn["verified"])


@needs_short_cut
@pytest.mark.parametrize("size", [WALK_CHUNK_SIZE - 200, WALK_CHUNK_SIZE + 1, 3 * WALK_CHUNK_SIZE])
def test_batches_as_large_as_a_piece_or_larger_are_scanned_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    data = b"".join(sealed(record(value=bytes(size)), base_offset=offset) for offset in range(5))
    scan = agree(segment_of(tmp_path, data, 0), LogConfig(), monkeypatch, verified=True)
    assert (scan.reason, scan.tail.next_offset) == (None, 5)


@needs_short_cut
def test_zeros_after_the_last_batch_end_the_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = log_file(3, 20, 0)
    scan = agree(segment_of(tmp_path, data + bytes(5000), 0), LogConfig(), monkeypatch, verified=True)
    assert scan.reason
    assert scan.tail.size == len(data)


@needs_short_cut
@FEW
@given(
    seed=st.integers(0, 1 << 30),
    producers=st.sampled_from([1, 2, 9, 700]),
    batches=st.sampled_from([0, 3, 30, 400]),
    start=st.integers(0, 200),
    damaged=st.booleans(),
)
def test_producers_are_what_they_are_when_every_batch_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, producers: int, batches: int, start: int, damaged: bool
) -> None:
    data = bytearray(log_file(seed, batches, 0, producers))
    if damaged and data:
        data[len(data) * 3 // 4] ^= 0xFF
    segment = segment_of(tmp_path, bytes(data), 0)
    segment.next_base_offset = 1 << 30
    for suffix in (".index", ".timeindex"):
        Path(segment.path(suffix)).write_bytes(b"")
    found: list[dict[int, ProducerState]] = []
    ways: list[Callable[..., object] | None] = [trail.producer_batches, None]
    for way in ways:
        states: dict[int, ProducerState] = {}
        with monkeypatch.context() as patch:
            patch.setattr(trail, "producer_batches", way)
            replay(states, [segment], Bounds(start, 3000))
        found.append(states)
    assert found[0] == found[1]
