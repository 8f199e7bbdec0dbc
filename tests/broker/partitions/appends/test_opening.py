"""Appends whose batches must be opened or compressed anew before they have a place: in their turn, off the loop."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from threading import Event, Thread, get_ident
from typing import Any

import pytest
import trio
import trio.testing

from tests.protocol.records.handmade import batch as handmade
from warmlog.broker.log.appends import log_appends
from warmlog.broker.log.appends.planned import Buffer
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.log.producers.transactions import TransactionMarker
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.appends import batch_opener
from warmlog.broker.partitions.appends.batch_opener import JOB_BYTES, LOOP_BYTES, LOOP_OPENED_BYTES, LOOP_SECONDS
from warmlog.broker.partitions.appends.errors import NotLeaderError
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.partition import Append, Partition
from warmlog.protocol.errors import CompressionError, ErrorCode, RecordsRefusedError
from warmlog.protocol.records.builder import Codec, build_batch
from warmlog.protocol.records.markers import Outcome
from warmlog.protocol.records.reader import Record, records_in
from warmlog.protocol.records.reencode import Reencoding
from warmlog.protocol.records.validation import BatchRules

NOW = 1_700_000_000_000


class GatedOpening:
    """Opens batches once it may go on, and notes where it ran."""

    def __init__(self) -> None:
        self.gate = Event()
        self.gate.set()
        self.threads: list[int] = []

    def __call__(self, records: Buffer, rules: BatchRules, now_ms: int, *, max_decompressed_size: int) -> Reencoding:
        return GatedReencoding(self, records, rules, now_ms, max_decompressed_size=max_decompressed_size)


class GatedReencoding(Reencoding):
    def __init__(self, opening: GatedOpening, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._opening = opening

    def run(self, is_over: Callable[[], bool]) -> Buffer | None:
        self._opening.gate.wait()
        self._opening.threads.append(get_ident())
        return super().run(is_over)


class FailingReencoding(Reencoding):
    def run(self, is_over: Callable[[], bool]) -> Buffer | None:
        raise RuntimeError("a defect")


class Rig:
    """One log. Nothing is opened by the event loop unless a test says so."""

    def __init__(self, directory: Path, nursery: trio.Nursery, config: LogConfig) -> None:
        self.writer = Writer(nursery=nursery, metrics=Metrics(), loop_write_max_bytes=64 << 10)
        self.writer.opener.loop_bytes = 0
        self.opening = GatedOpening()
        self.log = PartitionLog.open(
            directory / "t-0",
            topic="t",
            partition=0,
            config=config,
            files=OpenFiles(),
            clock=lambda: NOW,
            random=Random(0),
            clean=True,
        )
        self.partition = Partition(self.log, self.writer)

    def append(self, *values: bytes, codec: Codec = Codec.NONE, key: bytes | None = b"k") -> Append:
        append = self.partition.append(build_batch([(NOW, key, value, ()) for value in values], compression=codec))
        self.writer.write_queued()
        return append

    def records(self) -> list[Record]:
        found = self.partition.read(0, 1 << 30, min_one_batch=True)
        assert found is not None
        return [] if found.slice is None else list(records_in(found.slice.read_all()))

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records()]


@asynccontextmanager
async def rig(directory: Path, **config: object) -> AsyncIterator[Rig]:
    async with trio.open_nursery() as nursery:
        made = Rig(directory, nursery, LogConfig(**config))  # type: ignore[arg-type]  # the tests' settings are right
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(log_appends, "Reencoding", made.opening)
            try:
                yield made
            finally:
                made.opening.gate.set()
            await made.partition.retire()


async def test_what_needs_no_opening_is_written_at_once(tmp_path: Path) -> None:
    async with rig(tmp_path, cleanup_policy="compact") as made:
        assert made.append(b"plain").done
        assert made.opening.threads == []


async def test_appends_keep_their_order_behind_one_that_is_opened(tmp_path: Path) -> None:
    async with rig(tmp_path, cleanup_policy="compact") as made:
        made.opening.gate.clear()
        appends = [made.append(b"a", codec=Codec.GZIP), made.append(b"b"), made.append(b"c", codec=Codec.ZSTD)]
        await trio.testing.wait_all_tasks_blocked()
        assert not any(append.done for append in appends)
        made.opening.gate.set()
        for append in appends:
            await append.wait()
        assert [append.planned.base_offset for append in appends] == [0, 1, 2]
        assert made.values() == [b"a", b"b", b"c"]
        assert made.append(b"d").done
        assert get_ident() not in made.opening.threads


async def test_appends_of_other_sources_do_not_wait_for_batches_that_are_opened(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        made.opening.gate.clear()
        first = made.partition.append(compressed(1), source="slow")
        behind = made.partition.append(build_batch([(NOW, b"k", b"2", ())]), source="slow")
        other = made.partition.append(build_batch([(NOW, b"k", b"3", ())]), source="other")
        made.writer.write_queued()
        assert other.done
        assert not first.done
        made.opening.gate.set()
        await behind.wait()
        assert made.values() == [b"3", b"1", b"2"]


async def test_a_marker_waits_for_batches_of_all_sources_that_came_before_it_only(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        made.opening.gate.clear()
        before = [made.partition.append(compressed(number), source=number) for number in range(3)]
        marker = made.partition.append_marker(TransactionMarker(7, 0, 0, Outcome.ABORT))
        after = made.partition.append(build_batch([(NOW, b"k", b"after", ())]), source="other")
        made.writer.write_queued()
        assert after.done
        assert not marker.done
        made.opening.gate.set()
        await marker.wait()
        assert all(append.done for append in before)
        assert marker.planned.base_offset == 4


async def test_a_thread_returns_what_it_has_not_opened_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_opener, "JOB_SECONDS", -1.0)
    async with rig(tmp_path) as made:
        appends = [made.partition.append(compressed(number)) for number in range(5)]
        for append in appends:
            await append.wait()
        assert made.values() == [b"%d" % number for number in range(5)]


async def test_a_thread_goes_on_later_with_the_batches_of_an_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_opener, "JOB_SECONDS", -1.0)
    async with rig(tmp_path) as made:
        append = made.partition.append(b"".join(compressed(number) for number in range(5)))
        await append.wait()
        assert made.values() == [b"%d" % number for number in range(5)]
        assert len(made.opening.threads) == 5


async def test_a_broker_that_stops_opens_no_more_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_opener, "JOB_BYTES", 1)
    async with rig(tmp_path) as made:
        made.opening.gate.clear()
        opened, waiting = made.partition.append(compressed(1)), made.partition.append(compressed(2), source="other")
        more = [made.partition.append(compressed(number), source=number) for number in range(10)]
        await trio.testing.wait_all_tasks_blocked()
        made.writer.opener.stop(NotLeaderError("the broker stops"))
        made.opening.gate.set()
        for append in (opened, waiting, *more):
            await append.wait()
        assert opened.error is None
        assert str(more[-1].error) == "the broker stops"


async def test_more_than_one_turn_of_a_thread(tmp_path: Path) -> None:
    async with rig(tmp_path, compression_type="lz4", max_message_bytes=1 << 20) as made:
        appends = [made.append(bytes([number]) * (JOB_BYTES // 3)) for number in range(8)]
        for append in appends:
            await append.wait()
            assert append.error is None
        assert [value[0] for value in made.values() if value] == list(range(8))


async def test_a_small_batch_is_opened_by_the_event_loop(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        made.writer.opener.loop_bytes = LOOP_BYTES
        assert made.append(b"small", codec=Codec.ZSTD).done
        assert made.opening.threads == [get_ident()]
        large = made.append(os.urandom(LOOP_BYTES), codec=Codec.ZSTD)
        behind = made.append(b"behind", codec=Codec.ZSTD)
        assert not large.done
        assert not behind.done
        await behind.wait()
        assert get_ident() not in made.opening.threads[1:]
        assert len(made.values()) == 3


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
async def test_the_event_loop_opens_no_small_batch_that_becomes_large(tmp_path: Path, codec: Codec) -> None:
    async with rig(tmp_path) as made:
        made.writer.opener.loop_bytes = LOOP_BYTES
        bomb = made.append(bytes(2 * LOOP_OPENED_BYTES), codec=codec)
        await bomb.wait()
        assert bomb.error is None
        assert made.opening.threads[-1] != get_ident()


async def test_the_event_loop_opens_only_so_many_batches_at_a_time(tmp_path: Path) -> None:
    """Hundreds of partitions in one request."""
    async with rig(tmp_path) as made:
        made.writer.opener.loop_bytes = LOOP_BYTES
        batch = build_batch([(NOW, b"k", b"value", ())], compression=Codec.GZIP)
        made.writer.opener._spent_s = LOOP_SECONDS
        late = made.partition.append(batch)
        made.writer.write_queued()
        assert not late.done
        await late.wait()
        assert made.append(b"next", codec=Codec.GZIP).done


async def test_partitions_share_the_turns_of_threads(tmp_path: Path) -> None:
    async with rig(tmp_path / "one") as one, rig(tmp_path / "two") as two:
        other = Partition(two.log, one.writer)
        one.opening.gate.clear()
        appends = [partition.append(compressed(number)) for number in range(6) for partition in (one.partition, other)]
        one.opening.gate.set()
        for append in appends:
            await append.wait()
        assert one.values() == two.values() == [b"%d" % number for number in range(6)]
        await other.retire()


def compressed(number: int) -> bytes:
    return build_batch([(NOW, b"k", b"%d" % number, ())], compression=Codec.LZ4)


async def test_what_is_wrong_inside_is_that_appends_alone(tmp_path: Path) -> None:
    async with rig(tmp_path, cleanup_policy="compact") as made:
        made.opening.gate.clear()
        keyless = made.append(b"x", codec=Codec.GZIP, key=None)
        broken = made.partition.append(handmade(b"no gzip", attributes=Codec.GZIP))
        damaged = made.partition.append(b"nothing of the kind")
        good = made.append(b"good", codec=Codec.SNAPPY)
        made.opening.gate.set()
        for append in (keyless, broken, damaged, good):
            await append.wait()
        assert isinstance(keyless.error, RecordsRefusedError)
        assert keyless.error.code is ErrorCode.INVALID_RECORD
        assert isinstance(broken.error, CompressionError)
        assert damaged.error is not None
        assert good.error is None
        assert made.values() == [b"good"]


@pytest.mark.parametrize("loop_bytes", [0, LOOP_BYTES])
async def test_a_defect_while_opening_is_told_and_the_log_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, loop_bytes: int
) -> None:
    async with rig(tmp_path, cleanup_policy="compact") as made:
        with monkeypatch.context() as patch:
            patch.setattr(log_appends, "Reencoding", FailingReencoding)
            made.writer.opener.loop_bytes = loop_bytes
            failed = made.append(b"x", codec=Codec.GZIP)
            await failed.wait()
        assert "a defect" in str(failed.error)
        assert "unexpected error while validating" in caplog.text
        assert made.append(b"plain").done
        later = made.append(b"later", codec=Codec.GZIP)
        await later.wait()
        assert made.values() == [b"plain", b"later"]


async def test_new_settings_hold_from_the_next_append_on(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        first = made.append(b"first", key=None)
        assert first.planned.log_append_time == -1
        made.log.reconfigure(LogConfig(message_timestamp_type="LogAppendTime", compression_type="gzip"))
        second = made.append(b"second", key=None)
        await second.wait()
        assert second.planned.log_append_time == NOW
        made.log.reconfigure(LogConfig(cleanup_policy="compact"))
        with pytest.raises(RecordsRefusedError):
            made.append(b"third", key=None)
        made.log.reconfigure(LogConfig(message_timestamp_before_max_ms=1))
        assert made.append(b"fourth").done
        assert made.values() == [b"first", b"second", b"fourth"]


async def test_retiring_waits_for_what_is_opened(tmp_path: Path) -> None:
    async with rig(tmp_path, compression_type="zstd") as made:
        made.opening.gate.clear()
        append = made.append(b"x")
        Thread(target=made.opening.gate.set).start()
        await made.partition.retire()
        assert append.done
        assert append.error is None


async def test_a_refused_batch_leaves_no_decompressed_block_in_memory(tmp_path: Path) -> None:
    """An error's traceback would hold it as long as the reply waits to be sent."""
    async with rig(tmp_path, cleanup_policy="compact") as made:
        append = made.append(b"no key", codec=Codec.GZIP, key=None)
        await append.wait()
        assert isinstance(append.error, RecordsRefusedError)
        assert append.error.__traceback__ is None
        assert append.error.__context__ is None
