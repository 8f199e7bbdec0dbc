"""The whole log against a plain list, through appends, rolls, truncation, restarts and kills."""

import random
import shutil
from bisect import bisect_left
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.descriptions import LogRead
from warmlog.broker.log.errors import IndexCorruptError
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.partitions.epochs import assign_epoch
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.reader import records_in

START_MS = 1_700_000_000_000


class Stored(NamedTuple):
    """One record as the model knows it; `batch` is the base offset of its batch."""

    offset: int
    timestamp: int
    value: bytes
    batch: int


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(mkdtemp())
        self.generation = 0
        self.records: list[Stored] = []
        self.synced = 0  # records that a kill cannot take
        self.epoch = 0

    @property
    def directory(self) -> Path:
        return self.root / f"run-{self.generation}" / "words-0"

    @initialize(
        config=st.builds(
            LogConfig,
            segment_bytes=st.sampled_from([400, 1500, 1 << 20]),
            segment_ms=st.sampled_from([50, 1 << 40]),
            segment_index_bytes=st.sampled_from([24, 120, 4096]),
            index_interval_bytes=st.sampled_from([0, 200, 1000]),
        ),
        files_limit=st.sampled_from([1, 4, 100]),
        start=st.sampled_from([0, 1000]),
    )
    def begin(self, config: LogConfig, files_limit: int, start: int) -> None:
        self.config = config
        self.files = OpenFiles(limit=files_limit)
        self.start = start
        self.open(clean=False, recovery_point=0)

    def open(self, *, clean: bool, recovery_point: int) -> None:
        self.log = PartitionLog.open(
            self.directory,
            topic="words",
            partition=0,
            config=self.config,
            files=self.files,
            clock=lambda: START_MS,
            random=random.Random(1),
            recovery_point=recovery_point,
            log_start_offset=self.start,
            clean=clean,
        )
        assign_epoch(self.log, records_lost=not clean and self.log.recovery is not None)
        self.log.durability.checkpoint_epochs()

    # -- what happens to it --------------------------------------------------------------------------------------------

    @rule(
        batches=st.lists(
            st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=60)), min_size=1, max_size=4),
            min_size=1,
            max_size=3,
        )
    )
    def append(self, batches: list[list[tuple[int, bytes]]]) -> None:
        data = b"".join(build_batch([(START_MS + time, None, value, ()) for time, value in batch]) for batch in batches)
        if len(data) > self.config.segment_bytes:
            return
        planned = self.log.appends.append(data)
        assert planned.base_offset == self.end
        for batch in batches:
            base = self.end
            self.records += [Stored(base + i, START_MS + time, value, base) for i, (time, value) in enumerate(batch)]
        assert planned.last_offset == self.end - 1

    @rule()
    def roll(self) -> None:
        self.log.rolls.roll()

    @rule()
    def flush(self) -> None:
        self.log.durability.flush()
        self.synced = len(self.records)

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        target = data.draw(st.integers(self.start, self.end))
        self.log.truncation.truncate_to(target)
        assign_epoch(self.log, records_lost=True)
        self.log.durability.checkpoint_epochs()
        self.keep([record for record in self.records if self.last_of(record.batch) < target])
        assert self.log.epochs.current > self.epoch

    @rule()
    def stop_and_start(self) -> None:
        self.log.close()
        self.synced = len(self.records)
        self.open(clean=True, recovery_point=self.log.durability.recovery_point)
        assert self.log.recovery is None
        assert self.log.epochs.current == self.epoch

    @rule(data=st.data())
    def kill_and_recover(self, data: st.DataObject) -> None:
        """A copy of the directory as a power cut may leave it: torn behind what was synced, indexes lost."""
        before = self.directory
        recovery_point = self.log.durability.recovery_point
        self.generation += 1
        shutil.copytree(before, self.directory)
        self.log.close(clean=False)
        self.tear(data)
        checkpoint = data.draw(st.sampled_from([0, recovery_point]))
        self.open(clean=False, recovery_point=checkpoint)
        shutil.rmtree(before.parent)
        kept = self.log.offsets.log_end_offset
        assert kept >= self.start + self.synced
        self.keep([record for record in self.records if record.offset < kept])
        assert kept == self.end, "what is left ends with a whole batch"
        assert self.log.epochs.current > self.epoch
        self.synced = min(self.synced, len(self.records))

    def tear(self, data: st.DataObject) -> None:
        segments = sorted(self.directory.glob("*.log"))
        last = segments[-1]
        first_unsynced = self.records[self.synced].batch if self.synced < len(self.records) else None
        if first_unsynced is not None and int(last.stem) <= first_unsynced and data.draw(st.booleans()):
            size = last.stat().st_size
            lost = data.draw(st.integers(0, min(size, 150)))
            floor = self.size_below(int(last.stem), first_unsynced)
            content = last.read_bytes()[: max(floor, size - lost)]
            last.write_bytes(content + data.draw(st.sampled_from([b"", b"\0" * 70, b"\x01" * 13])))
        for path in [*self.directory.glob("*.index"), *self.directory.glob("*.timeindex")]:
            fate = data.draw(st.sampled_from(["kept", "kept", "gone", "zeros"]))
            if fate == "gone":
                path.unlink()
            elif fate == "zeros":
                path.write_bytes(bytes(path.stat().st_size))

    def size_below(self, base: int, offset: int) -> int:
        """How many bytes of a segment's log hold what lies below an offset."""
        found = self.log_sizes.get((base, offset))
        return 0 if found is None else found

    @property
    def log_sizes(self) -> dict[tuple[int, int], int]:
        sizes: dict[tuple[int, int], int] = {}
        for path in self.directory.glob("*.log"):
            position = 0
            content = path.read_bytes()
            while position < len(content):
                sizes[int(path.stem), int.from_bytes(content[position : position + 8], "big")] = position
                position += 12 + int.from_bytes(content[position + 8 : position + 12], "big")
        return sizes

    # -- what must be true ---------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    def read(self, offset: int, max_bytes: int, **how: Any) -> LogRead:
        """As a broker does: indexes found corrupt are rebuilt, each once."""
        for _ in range(self.log.segment_count):
            try:
                return self.log.reads.read(offset, max_bytes, **how)
            except IndexCorruptError as error:
                self.log.reads.rebuild_indexes(error.base_offset)
        return self.log.reads.read(offset, max_bytes, **how)

    def last_of(self, batch: int) -> int:
        return max(record.offset for record in self.records if record.batch == batch)

    def keep(self, records: list[Stored]) -> None:
        self.records = records
        self.synced = min(self.synced, len(records))

    @invariant()
    def ends_are_those_of_the_model(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.offsets.log_end_offset == self.log.offsets.high_watermark == self.end
        assert self.log.offsets.log_start_offset == self.start
        assert self.log.durability.recovery_point <= self.end
        assert not self.log.failed
        self.epoch = self.log.epochs.current

    @rule(max_bytes=st.integers(1, 2000))
    def everything_is_read_back(self, max_bytes: int) -> None:
        found: list[tuple[int, int, bytes | None]] = []
        offset = self.start
        while offset < self.end:
            piece = self.read(offset, max_bytes, min_one_batch=True).slice
            assert piece is not None
            found += [(r.offset, r.timestamp, r.value) for r in records_in(piece.read_all(), from_offset=offset)]
            offset = found[-1][0] + 1
        assert found == [(record.offset, record.timestamp, record.value) for record in self.records]

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def a_read_begins_with_the_batch_of_its_offset(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        bound = data.draw(st.integers(self.start, self.end))
        found = self.read(offset, 1 << 20, isolation_end=bound)
        visible = [r for r in self.records if self.last_of(r.batch) < bound]
        index = bisect_left([r.offset for r in self.records], offset)
        if index == len(self.records) or self.records[index].offset >= len(visible) + self.start:
            assert found.slice is None
        else:
            assert found.slice is not None
            stored = list(records_in(found.slice.read_all()))
            assert stored[0].offset == self.records[index].batch
            assert stored[-1].offset < bound

    @rule(after_ms=st.integers(-1, 301))
    def a_time_leads_to_the_first_record_not_earlier(self, after_ms: int) -> None:
        found = self.log.reads.offset_for_time(START_MS + after_ms)
        expected = next((r for r in self.records if r.timestamp >= START_MS + after_ms), None)
        assert (found and (found.offset, found.timestamp)) == (expected and (expected.offset, expected.timestamp))

    @rule()
    def the_largest_time_is_known(self) -> None:
        found = self.log.reads.largest_timestamp()
        assert (found.timestamp if found else None) == max((r.timestamp for r in self.records), default=None)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close(clean=False)
        shutil.rmtree(self.root)


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
