"""Compaction in a broker: which log's turn it is, the child that does it, and what becomes of logs it cannot clean."""

import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing
from prometheus_client import generate_latest

from tests.broker.partitions.disks.test_checkpoints import CountingDisk
from tests.broker.rig import START_MS, Rig, rig
from tests.protocol.records.handmade import batch
from warmlog.broker.log.compaction.cleanable import Cleanable
from warmlog.broker.log.compaction.plan import Cleaning
from warmlog.broker.log.directory.checkpoint import CLEANER_POINTS, RECOVERY_POINTS, read_offsets
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.maintenance import cleaner_child, dirty_logs
from warmlog.broker.maintenance.cleaner import MAX_DEATHS, Cleaner
from warmlog.broker.maintenance.cleaner_child import ChildDiedError, CleanerChild
from warmlog.broker.maintenance.retention import Retention
from warmlog.broker.maintenance.schedule import Maintenance
from warmlog.broker.partitions.partition import Partition
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.layout import Codec
from warmlog.protocol.records.reader import records_in

COMPACT = {"cleanup_policy": "compact", "segment_bytes": "1000"}


def cleaner_of(made: Rig) -> Cleaner:
    return Cleaner(made.partitions, made.unlinking, made.metrics)


def offsets(partition: Partition) -> list[int]:
    """Of every record that can be read."""
    found: list[int] = []
    log = partition.log
    offset = log.offsets.log_start_offset
    while offset < log.offsets.log_end_offset:
        read = log.reads.read(offset, 1 << 20, min_one_batch=True)
        if read.slice is None:
            break
        data = read.slice.read_all()
        found += [record.offset for record in records_in(data, from_offset=offset)]
        offset = max(header.next_offset for _, header in headers(data))
    return found


async def dirty(made: Rig, name: str, count: int = 40, keys: int = 3, **configs: str) -> Partition:
    partition = await made.create(name, **{**COMPACT, **configs})
    await made.append(partition, count, keys=keys)
    return partition


async def test_dirty_logs_are_compacted_and_their_points_written_down(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        one = await dirty(made, "one")
        two = await dirty(made, "two", count=80)
        other = await dirty(made, "other", cleanup_policy="delete")
        cleaner = cleaner_of(made)
        await cleaner.clean_all()
        active = one.log._state.segments.active.base_offset
        assert offsets(one) == [*range(active - 3, active), *range(active, 40)]
        assert len(offsets(two)) < 15
        assert offsets(other) == list(range(40))
        points = read_offsets(Disk(), f"{tmp_path}/{CLEANER_POINTS}")
        assert points == {("one", 0): active, ("two", 0): two.log._state.segments.active.base_offset}
        statistics = cleaner.statistics
        assert (statistics.runs, statistics.running, sum(statistics.failures.values())) == (2, 0, 0)
        assert statistics.read_bytes > statistics.written_bytes > 0
        assert len(made.files("one", "*.deleted")) > 10
        assert not made.files("one", "*.swap") + made.files("one", "*.cleaned")
    async with rig(tmp_path) as made:
        again = made.partitions.get("one", 0)
        assert again is not None
        assert made.partitions.cleaned_up_to(again) == active
        assert (await cleaner_of(made).dirty.take()) is None
        assert made.files("one", "*.deleted") == []


async def test_the_dirtiest_log_goes_first_and_a_clean_one_has_no_turn(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        cleaner = cleaner_of(made)
        half = await dirty(made, "half", min_cleanable_dirty_ratio="0.7")
        await cleaner.clean_all()
        await made.append(half, 5, keys=3, size=300)
        clean = await dirty(made, "whole", count=20)
        due = await cleaner.dirty.take()
        assert due is not None
        assert due.partition is clean
        assert due.cleanable.ratio == 1.0
        await cleaner.clean_all()
        assert await cleaner.dirty.take() is None
        await half_again(made, half)
        due = await cleaner.dirty.take()
        assert due is not None
        assert due.partition is half


async def half_again(made: Rig, partition: Partition) -> None:
    await made.partitions.alter("half", lambda configs: {**configs, "min.cleanable.dirty.ratio": "0"})
    await made.append(partition, 10, keys=3, size=300)


async def test_compact_and_delete_together(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        partition = await dirty(made, "both", cleanup_policy="compact,delete", retention_ms="1000")
        await cleaner_of(made).clean_all()
        assert len(offsets(partition)) < 12
        made.now_ms += 10_000
        for path in (tmp_path / "both-0").glob("*.log"):  # a segment without records goes by its file's time
            os.utime(path, (START_MS / 1000, START_MS / 1000))
        await Retention(made.partitions, made.unlinking, made.metrics).check()
        assert offsets(partition) == []


async def test_reads_and_appends_go_on_while_a_log_is_compacted(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        partition = await dirty(made, "busy", count=100, keys=5)
        ended = trio.Event()
        seen: list[list[int]] = []

        async def clean() -> None:
            await cleaner_of(made).clean_all()
            ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(clean)
            while not ended.is_set():
                if len(seen) < 60:  # then the log is clean some time
                    await made.append_one(partition)
                await trio.sleep(0.001)
                seen.append(offsets(partition))
        end = partition.log.offsets.log_end_offset
        assert all(found == sorted(set(found)) for found in seen)
        assert all(set(range(96, 100)) <= set(found) for found in seen)
        assert offsets(partition)[-1] == end - 1
        assert len(seen[-1]) < len(seen[0])


# -- logs and children that fail ---------------------------------------------------------------------------------------


async def test_a_damaged_log_is_left_out_and_the_others_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with rig(tmp_path) as made:
        bad = await dirty(made, "bad", count=60)
        good = await dirty(made, "good")
        path = tmp_path / "bad-0" / f"{0:020d}.log"
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
        cleaner = cleaner_of(made)
        await cleaner.clean_all()
        assert list(cleaner.uncleanable) == [bad]
        assert "bad-0: log cannot be compacted" in caplog.text
        assert cleaner.statistics.failures["damage"] == 1
        assert len(offsets(good)) < 12
        metrics = {sample.name: sample.value for family in made.metrics.registry.collect() for sample in family.samples}
        assert metrics["warmlog_cleaner_uncleanable_partitions"] == 1
        assert metrics["warmlog_cleaner_heartbeat_age_seconds"] < 60
        await made.partitions.delete("bad")
        await cleaner.clean_all()
        assert cleaner.uncleanable == {}


async def test_a_log_with_a_batch_that_cannot_be_read_is_compacted_around_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rig(tmp_path) as made:
        partition = await made.create("odd", **COMPACT)
        await made.append(partition, 10, keys=3)
        odd = batch(b"no gzip at all", attributes=Codec.GZIP, base_offset=10, leader_epoch=0)
        append = partition.appends.append_copy(odd, None)
        made.writer.write_queued()
        assert append is not None
        await append.wait()
        await made.append(partition, 30, keys=3)
        cleaner = cleaner_of(made)
        await cleaner.clean_all()
        assert cleaner.uncleanable == {}
        assert (cleaner.statistics.runs, sum(cleaner.statistics.failures.values())) == (1, 0)
        stored = b"".join(path.read_bytes() for path in sorted((tmp_path / "odd-0").glob("*.log")))
        assert odd in stored
        assert sum(header.record_count for _, header in headers(stored)) < 15
        expected = "odd-0: cannot read the records of the batch at offset 10, keeping it as it is: invalid gzip block"
        assert expected in caplog.text
        files = partition.log._state.context.files
        assert dict(files.unreadable.rows())[("compaction",)] == 1


def run_instead(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Have children run this instead."""
    start = trio.lowlevel.open_process

    async def other(_: Sequence[str], **options: object) -> trio.Process:
        return await start([sys.executable, "-c", program], **options)  # type: ignore[arg-type]

    monkeypatch.setattr(trio.lowlevel, "open_process", other)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import os; os.kill(os.getpid(), 9)", "exited with status -9"),
        ("print('hello', flush=True); input()", "sent b'hello'"),
    ],
)
async def test_a_child_that_dies_is_counted_and_the_log_left_out_at_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, message: str
) -> None:
    async with rig(tmp_path) as made:
        partition = await dirty(made, "deadly")
        before = offsets(partition)
        cleaner = cleaner_of(made)
        run_instead(monkeypatch, program)
        for _ in range(MAX_DEATHS):
            assert cleaner.uncleanable == {}
            with pytest.raises(ChildDiedError, match=message):
                await cleaner.clean_all()
        assert list(cleaner.uncleanable) == [partition]
        assert cleaner.statistics.failures["death"] == MAX_DEATHS
        assert cleaner.statistics.running == 0
        assert offsets(partition) == before
        await cleaner.clean_all()


async def test_a_child_that_falls_silent_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(tmp_path) as made:
        await dirty(made, "silent")
        cleaner = cleaner_of(made)
        run_instead(monkeypatch, "import time; time.sleep(1000)")
        monkeypatch.setattr(cleaner_child, "SILENCE_LIMIT_S", 0.01)
        with pytest.raises(ChildDiedError, match="sent nothing"):
            await cleaner.clean_all()
        assert cleaner.statistics.failures["stuck"] == 1


async def test_a_full_disk_puts_a_log_off(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        partition = await dirty(made, "full")
        cleaner = cleaner_of(made)
        blocked = tmp_path / "full-0" / f"{0:020d}.log.cleaned"
        blocked.mkdir()
        await cleaner.clean_all()
        assert cleaner.statistics.failures["disk"] == 1
        assert cleaner.uncleanable == {}
        assert await cleaner.dirty.take() is None
        blocked.rmdir()
        assert cleaner._not_before[partition] > trio.current_time() + 10
        cleaner._not_before.clear()
        assert await cleaner.dirty.take() is not None
        assert len(offsets(partition)) == 40


async def test_a_swap_that_is_half_done_leaves_the_log_out(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        partition = await dirty(made, "half")
        cleaner = cleaner_of(made)
        made.disk.refused = f"{0:020d}.index.swap"
        await cleaner.clean_all()
        assert list(cleaner.uncleanable) == [partition]
        found = offsets(partition)
    async with rig(tmp_path) as made:
        again = made.partitions.get("half", 0)
        assert again is not None
        assert offsets(again) == found


async def test_a_topic_that_is_deleted_ends_its_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig(tmp_path) as made:
        await dirty(made, "gone")
        pid = tmp_path / "pid"
        program = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(1000)"
        run_instead(monkeypatch, program)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cleaner_of(made).clean_all)
            while not pid.exists() or not pid.read_text():  # noqa: ASYNC110  # a process of its own tells nobody here
                await trio.sleep(0.01)
            await made.partitions.delete("gone")
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid.read_text()), signal.SIGCONT)


async def test_a_child_ends_with_its_broker() -> None:
    async with await CleanerChild.start() as child:
        pid = child._process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


SETTINGS = ("log.cleaner.backoff.ms=10", "log.cleaner.threads=2", "log.initial.task.delay.ms=0")


async def test_a_broker_compacts_by_itself(tmp_path: Path) -> None:
    async with rig(tmp_path, *SETTINGS) as made:
        partitions = [await dirty(made, name) for name in ("a", "b", "c")]
        maintenance = Maintenance(made.partitions, made.metrics, made.partitions.settings)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(maintenance.run)
            while any(len(offsets(partition)) > 12 for partition in partitions):  # noqa: ASYNC110  # nor here
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()


async def test_a_cleaner_that_is_off_does_nothing(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    async with rig(tmp_path, "log.cleaner.enable=false") as made:
        partition = await dirty(made, "dirty")
        await cleaner_of(made).run()
        assert len(offsets(partition)) == 40
        assert "\nwarmlog_cleaner_heartbeat_age" not in generate_latest(made.metrics.registry).decode()


async def test_a_wave_looks_at_each_log_a_fixed_number_of_times_and_writes_checkpoints_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: Counter[str] = Counter()
    find = Cleaning.find

    def counted(cleaning: Cleaning, checkpoint: int | None) -> Cleanable:
        looks[cleaning._view().context.directory] += 1
        return find(cleaning, checkpoint)

    monkeypatch.setattr(Cleaning, "find", counted)
    monkeypatch.setattr(dirty_logs, "MAX_SHARE", 1e-9)  # a slow machine is no reason to look again
    disk = CountingDisk()
    async with rig(tmp_path, disk=disk) as made:
        logs = [await dirty(made, f"t{number}") for number in range(12)]
        for partition in logs:
            partition.log.durability.flush()
        disk.replaced.clear()
        await cleaner_of(made).clean_all()
        assert set(looks.values()) == {3}  # the look that begins, its turn, the look that ends
        assert Counter(disk.replaced)[RECOVERY_POINTS] == 1
        assert Counter(disk.replaced)[CLEANER_POINTS] == 1
        assert all(len(offsets(partition)) < 12 for partition in logs)
