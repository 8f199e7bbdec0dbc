"""With `flush.messages` 1 nobody reads what a power cut could take back; with greater values readers follow the end."""

from pathlib import Path

import trio
import trio.testing

from tests.broker.clients import Running, batch, fetch_request, produce_request, running
from tests.broker.sync_rig import SyncRig, sync_rig
from warmlog.broker.partitions.reads.waiters import FetchWaiter


def ends(made: SyncRig) -> tuple[int, int, int]:
    log = made.partition.log
    return log.durability.recovery_point, log.offsets.high_watermark, log.offsets.log_end_offset


async def test_what_is_written_can_be_read_when_it_is_synced(tmp_path: Path) -> None:
    async with sync_rig(tmp_path, flush_messages=1) as made:
        await made.append(b"first")
        made.disk.hold()
        append = made.begin(b"second")
        assert (ends(made), made.readable(), append.done) == ((1, 1, 2), [0], False)
        made.disk.go_on()
        await append.wait()
        assert (ends(made), made.readable()) == ((2, 2, 2), [0, 1])


async def test_with_greater_values_readers_follow_the_log_end(tmp_path: Path) -> None:
    async with sync_rig(tmp_path, flush_messages=2) as made:
        await made.append(b"first")
        assert (ends(made), made.readable()) == ((0, 1, 1), [0])
        made.disk.hold()
        append = made.begin(b"second")
        assert (ends(made), made.readable(), append.done) == ((0, 2, 2), [0, 1], False)
        made.disk.go_on()
        await append.wait()
        assert ends(made) == (2, 2, 2)


async def test_a_waiting_fetch_is_woken_by_the_sync_and_counts_what_became_readable(tmp_path: Path) -> None:
    size = len(batch(b"x"))
    async with sync_rig(tmp_path, flush_messages=1) as made:
        woken = trio.Event()
        waiter = FetchWaiter(2 * size, woken.set)
        made.partition.enlist(waiter)
        await made.append(b"x")
        made.disk.hold()
        append = made.begin(b"x")
        assert not woken.is_set()
        made.disk.go_on()
        await append.wait()
        await woken.wait()
        made.partition.dismiss(waiter)


async def test_a_waiting_fetch_of_another_log_is_woken_by_the_write(tmp_path: Path) -> None:
    async with sync_rig(tmp_path, flush_messages=5) as made:
        woken = trio.Event()
        waiter = FetchWaiter(1, woken.set)
        made.partition.enlist(waiter)
        made.disk.hold()
        await made.append(b"x")
        await woken.wait()
        made.partition.dismiss(waiter)


async def test_a_setting_that_becomes_1_takes_nothing_back_and_syncs_what_could_be_read(tmp_path: Path) -> None:
    async with sync_rig(tmp_path) as made:
        for _ in range(3):
            await made.append(b"x")
        made.disk.hold()
        made.configure(flush_messages=1)
        assert (ends(made), made.readable()) == ((0, 3, 3), [0, 1, 2])
        append = made.begin(b"y")
        assert ends(made) == (0, 3, 4)
        made.disk.go_on()
        await append.wait()
        assert ends(made) == (4, 4, 4)


async def test_a_setting_that_becomes_1_syncs_a_log_to_which_nobody_appends(tmp_path: Path) -> None:
    async with sync_rig(tmp_path) as made:
        await made.append(b"x")
        made.configure(flush_messages=1)
        await trio.testing.wait_all_tasks_blocked()  # the round has begun
        await made.partition.appends.settled()
        assert ends(made) == (1, 1, 1)


async def test_a_setting_that_was_1_shows_at_once_what_waits_for_its_sync(tmp_path: Path) -> None:
    async with sync_rig(tmp_path, flush_messages=1) as made:
        await made.append(b"x")
        made.disk.hold()
        append = made.begin(b"y")
        woken = trio.Event()
        waiter = FetchWaiter(1, woken.set)
        made.partition.enlist(waiter)
        made.configure(flush_messages=1 << 40)
        await woken.wait()
        made.partition.dismiss(waiter)
        assert (ends(made), append.done) == ((1, 2, 2), False)
        later = made.begin(b"z")
        assert ends(made) == (1, 3, 3)
        made.disk.go_on()
        await append.wait()
        await later.wait()
        assert append.error is later.error is None


async def test_an_append_whose_sync_fails_is_never_shown(tmp_path: Path) -> None:
    async with sync_rig(tmp_path, flush_messages=1) as made:
        await made.append(b"x")
        made.disk.fail("sync")
        assert (await made.append(b"lost?")).error is not None
        assert (ends(made), made.readable()) == ((1, 1, 2), [0])
        made.configure(flush_messages=5)
        assert ends(made) == (1, 1, 2), "nobody knows what the disk holds of it"


async def test_records_past_the_high_watermark_are_not_deleted(tmp_path: Path) -> None:
    async with sync_rig(tmp_path, flush_messages=1) as made:
        await made.append(b"x")
        made.disk.hold()
        append = made.begin(b"y")
        assert made.partition.log.truncation.advance_start(made.partition.log.offsets.high_watermark)
        assert made.partition.log.offsets.log_start_offset == 1
        made.disk.go_on()
        await append.wait()


async def test_after_a_kill_what_can_be_read_is_on_the_disk(tmp_path: Path) -> None:
    async with sync_rig(tmp_path, flush_messages=1) as made:
        for _ in range(3):
            await made.append(b"x")
        made.partition.log.close(clean=False)
        before = made.disk.syncs
        made.partition = made.open("t", clean=False, recovery_point=1)
        assert ends(made) == (3, 3, 3)
        assert made.disk.syncs > before


async def test_after_a_kill_what_cannot_be_synced_cannot_be_read(tmp_path: Path) -> None:
    async with sync_rig(tmp_path, flush_messages=1) as made:
        for _ in range(3):
            await made.append(b"x")
        made.partition.log.close(clean=False)
        made.disk.fail("sync")
        made.partition = made.open("t", clean=False, recovery_point=1)
        assert (ends(made), made.partition.log.failed, made.readable()) == ((1, 1, 3), True, [0])


async def test_a_client_sees_its_own_append_and_the_reader_who_waited_for_it(tmp_path: Path) -> None:
    async with running(tmp_path / "data", {"log.flush.interval.messages": 1}) as broker:
        await check_exchange(broker)


async def check_exchange(broker: Running) -> None:
    producer, consumer = await broker.connect(), await broker.connect()
    await producer.create("t")
    for offset in range(5):
        await consumer.send(fetch_request("t", offset, max_wait_ms=30_000))
        reply = await producer.ask(produce_request("t", batch(b"x")))
        assert reply.partitions[0].base_offset == offset
        found = (await consumer.reply()).partitions[0]
        assert found.high_watermark == offset + 1
        assert len(found.records)
