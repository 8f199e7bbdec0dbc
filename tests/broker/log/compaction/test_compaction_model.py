"""Compaction between random appends, rolls and restarts, compared with a dictionary."""

import random
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.broker.log.compaction.compacting import (
    START_MS,
    Pair,
    compact,
    contents,
    fill,
)
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.protocol.records.layout import Codec

PAIRS = st.tuples(st.sampled_from([f"k{at}" for at in range(6)]), st.none() | st.text("abc", max_size=5))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(PAIRS, min_size=1, max_size=9)),
        st.tuples(st.just("compact"), st.integers(2, 8)),
        st.tuples(st.just("roll"), st.none()),
        st.tuples(st.just("wait"), st.integers(1, 60)),
        st.tuples(st.just("reopen"), st.booleans()),
    ),
    min_size=3,
    max_size=25,
)


@given(steps=STEPS, size=st.integers(1, 4), codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4]))
@settings(max_examples=60, deadline=None)
def test_against_a_dictionary(steps: list[tuple[str, Any]], size: int, codec: Codec) -> None:
    root = Path(mkdtemp())
    try:
        _Checked(root, size, codec).run(steps)
    finally:
        rmtree(root)


class _Checked:
    """Compare a log with a model: readers find the last value of each key, in the order of offsets."""

    def __init__(self, root: Path, size: int, codec: Codec) -> None:
        self.directory = root / "words-0"
        self.now_ms = START_MS
        self.size, self.codec = size, codec
        self.config = LogConfig(segment_bytes=600, index_interval_bytes=100, delete_retention_ms=100)
        self.everything: dict[int, Pair] = {}
        self.checkpoint = 0
        self.log = self.open(clean=True)

    def open(self, *, clean: bool, recovery_point: int = 0) -> PartitionLog:
        return PartitionLog.open(
            self.directory, topic="words", partition=0, config=self.config, files=OpenFiles(), random=random.Random(1),
            clock=lambda: self.now_ms, recovery_point=recovery_point, clean=clean,
        )  # fmt: skip

    def run(self, steps: list[tuple[str, Any]]) -> None:
        do: dict[str, Callable[[Any], None]] = {
            "append": self.append, "compact": self.compact, "roll": lambda _: self.log.rolls.roll(), "wait": self.wait,
            "reopen": self.reopen,
        }  # fmt: skip
        for name, argument in steps:
            do[name](argument)
            self.check()
        self.log.close(clean=False)

    def append(self, pairs: list[Pair]) -> None:
        for at, pair in enumerate(pairs):
            self.everything[self.log.offsets.log_end_offset + at] = pair
        fill(self.log, pairs, size=self.size, compression=self.codec)

    def compact(self, entries: int) -> None:
        summary = compact(self.log, self.checkpoint, entries=entries)
        if summary is not None:
            assert summary.clean_offset > self.checkpoint
            self.checkpoint = summary.clean_offset

    def wait(self, ms: int) -> None:
        self.now_ms += ms

    def reopen(self, clean: bool) -> None:
        self.log.close(clean=clean)
        self.log = self.open(clean=clean, recovery_point=self.log.durability.recovery_point)

    def check(self) -> None:
        found = contents(self.log)
        assert all(self.everything[offset] == (key, value) for offset, key, value in found)
        assert [offset for offset, _, _ in found] == sorted({offset for offset, _, _ in found})
        last = {key: offset for offset, (key, _) in self.everything.items()}
        kept = {offset for offset, _, _ in found}
        for key, offset in last.items():
            assert offset in kept or (self.everything[offset][1] is None and offset < self.checkpoint), key
        assert kept >= set(range(self.log._state.segments.active.base_offset, self.log.offsets.log_end_offset))
        clean = [key for offset, key, _ in found if offset < self.checkpoint]
        assert len(clean) == len(set(clean))
