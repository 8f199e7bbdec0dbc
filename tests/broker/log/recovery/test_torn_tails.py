"""What is left of a log after damage, against a model: the longest sound prefix, and nothing else.

Only what lies past the recovery point is damaged in the log; indexes, snapshots and checkpoints anywhere.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.broker.log.recovery.ledger import Stored, stored
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.builder import build_batch

START_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=800, index_interval_bytes=150, segment_index_bytes=240)
SIDE_FILES = ("*.index", "*.timeindex", "*.snapshot", "leader-epoch-checkpoint")

Damage = Callable[[bytes], bytes]


def cut(at: float) -> Damage:
    return lambda content: content[: int(at * len(content))]


def flip(at: float, bit: int) -> Damage:
    def apply(content: bytes) -> bytes:
        position = int(at * len(content))
        if position == len(content):
            return content
        return content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :]

    return apply


def blank(at: float, size: int) -> Damage:
    def apply(content: bytes) -> bytes:
        position = int(at * len(content))
        return content[:position] + bytes(min(size, len(content) - position)) + content[position + size :]

    return apply


PLACES = st.floats(0, 1)
LOG_DAMAGE = st.one_of(
    st.builds(cut, PLACES),
    st.builds(flip, PLACES, st.integers(0, 7)),
    st.builds(blank, PLACES, st.integers(1, 600)),
    st.builds(lambda tail: lambda content: content + tail, st.binary(min_size=1, max_size=200)),
    st.builds(lambda size: lambda content: content + bytes(size), st.integers(1, 5000)),
    st.builds(lambda at, tail: lambda content: cut(at)(content) + tail, PLACES, st.binary(min_size=1, max_size=100)),
)
SIDE_DAMAGE = st.one_of(
    st.none(),  # the file is gone
    LOG_DAMAGE,
    st.just(lambda content: bytes(len(content))),
    st.just(lambda content: content + b"\0" * 7),
    st.just(lambda _: b""),
)
WHERE = st.integers(0, 30)


class _Damaged:
    """A log of several segments, flushed up to some batch and killed; then damaged."""

    def __init__(self, root: Path, batches: int, flushed: int) -> None:
        self.directory = root / "words-0"
        log = self.open(clean=True, recovery_point=0)
        for at in range(batches):
            rows = [
                (START_MS + log.offsets.log_end_offset + i, b"k", b"v" * (at * 37 % 90), ()) for i in range(at % 3 + 1)
            ]
            sequence = log.offsets.log_end_offset
            log.appends.append(build_batch(rows, producer_id=7, producer_epoch=0, base_sequence=sequence))
            if at + 1 == min(flushed, batches):
                log.durability.flush()
        self.recovery_point, self.end = log.durability.recovery_point, log.offsets.log_end_offset
        log.close(clean=False)
        self.batches = [batch for path in self.logs() for batch in stored(path.read_bytes())]
        self._safe = {path: self._safe_size(path.read_bytes()) for path in self.logs()}

    def open(self, *, clean: bool, recovery_point: int) -> PartitionLog:
        return PartitionLog.open(
            self.directory, topic="words", partition=0, config=CONFIG, files=OpenFiles(), random=random.Random(1),
            clock=lambda: START_MS, recovery_point=recovery_point, clean=clean,
        )  # fmt: skip

    def logs(self) -> list[Path]:
        return sorted(self.directory.glob("*.log"))

    def tear(self, nth: int, damage: Damage) -> None:
        """Damage a log file past the recovery point."""
        doubtful = [path for path, safe in self._safe.items() if safe < path.stat().st_size]
        if doubtful:
            path = doubtful[nth % len(doubtful)]
            content, safe = path.read_bytes(), self._safe[path]
            path.write_bytes(content[:safe] + damage(content[safe:]))

    def _safe_size(self, content: bytes) -> int:
        return sum(header.size for _, header in headers(content) if header.last_offset < self.recovery_point)

    def spoil(self, nth: int, damage: Damage | None) -> None:
        """Damage any other file, or remove it."""
        files = sorted(path for pattern in SIDE_FILES for path in self.directory.glob(pattern))
        if not files:
            return
        path = files[nth % len(files)]
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage(path.read_bytes()))

    def sound_prefix(self) -> list[Stored]:
        """The batches from the first on that are in the files as they were written, without a gap."""
        expected = list(self.batches)
        found: list[Stored] = []
        for path in self.logs():
            content, position = path.read_bytes(), 0
            if int(path.stem) != (found[-1].last_offset + 1 if found else 0):
                break
            while expected and (size := self._size_of(expected[0])) <= len(content) - position:
                piece = content[position : position + size]
                is_shifted = piece[16:] == expected[0].content and piece[:8] > expected[0].base_offset.to_bytes(8)
                assume(not is_shifted)  # no CRC covers the base offset: a larger one looks like a gap, as to Kafka
                if piece[16:] != expected[0].content or not _is_start(piece, expected[0]):
                    break
                found.append(expected.pop(0))
                position += size
            if position < len(content):
                break
        return found

    @staticmethod
    def _size_of(batch: Stored) -> int:
        return len(batch.content) + 16


def _is_start(piece: bytes, batch: Stored) -> bool:
    """Whether offset and length before the part that the CRC covers are the batch's; its leader epoch may be any."""
    return piece[:12] == batch.base_offset.to_bytes(8) + (len(piece) - 12).to_bytes(4)


def found_in(log: PartitionLog) -> list[tuple[int, bytes]]:
    batches: list[Stored] = []
    while (offset := batches[-1].last_offset + 1 if batches else 0) < log.offsets.log_end_offset:
        try:
            piece = log.reads.read(offset, 1, min_one_batch=True).slice
        except IndexCorruptError as error:  # of a segment that recovery did not look into: rebuilt at its first use
            log.reads.rebuild_indexes(error.base_offset)
            piece = log.reads.read(offset, 1, min_one_batch=True).slice
        assert piece is not None
        batches += stored(piece.read_all())
    return [batch.identity for batch in batches]


@given(
    batches=st.integers(1, 25),
    flushed=st.integers(1, 25),
    torn=st.lists(st.tuples(WHERE, LOG_DAMAGE), max_size=2),
    spoilt=st.lists(st.tuples(WHERE, SIDE_DAMAGE), max_size=4),
    checkpoint=st.sampled_from(["right", "missing", "too small"]),
)
@example(batches=5, flushed=4, torn=[], spoilt=[(1, cut(0.5))], checkpoint="right")  # a sealed time index lost its end
@example(batches=14, flushed=13, torn=[], spoilt=[(5, flip(0.1875, 7))], checkpoint="right")  # a negative position
@settings(max_examples=150, deadline=None)
def test_what_is_left_is_the_longest_sound_prefix(
    batches: int,
    flushed: int,
    torn: list[tuple[int, Damage]],
    spoilt: list[tuple[int, Damage | None]],
    checkpoint: str,
) -> None:
    root = Path(mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    try:
        damaged = _Damaged(root, batches, flushed)
        for nth, damage in torn:
            damaged.tear(nth, damage)
        for nth, side_damage in spoilt:
            damaged.spoil(nth, side_damage)
        expected = damaged.sound_prefix()
        point = {"right": damaged.recovery_point, "missing": 0, "too small": damaged.recovery_point // 2}[checkpoint]
        # without a recovery point, empty segments between others may come from elsewhere, and stay
        assume(point or all(path.stat().st_size for path in damaged.logs()[:-1]))
        _check(damaged, expected, point)
    finally:
        rmtree(root)


def _check(damaged: _Damaged, expected: list[Stored], recovery_point: int) -> None:
    log = damaged.open(clean=False, recovery_point=recovery_point)
    end = expected[-1].last_offset + 1 if expected else 0
    assert log.offsets.log_end_offset == end >= damaged.recovery_point
    assert found_in(log) == [batch.identity for batch in expected]
    states = {state.producer_id: state.last_offset for state in log.producers.capture()}
    assert states == ({7: end - 1} if expected else {})
    for batch in expected:
        at = log.reads.offset_for_time(batch.records[0][1])
        assert at is not None
        assert at.offset == batch.base_offset
    log.appends.append(build_batch([(START_MS + end, b"k", b"next", ())]))
    log.close()
    again = damaged.open(clean=True, recovery_point=log.durability.recovery_point)
    assert again.recovery is None
    assert len(found_in(again)) == len(expected) + 1
    again.close()
