"""The share coordinator on real logs: answers, restarts, snapshots, pruning, deleted topics, memory."""

import logging
import random
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.share.state.serving import GROUP, LOG_PARTITIONS, Serving, serving
from warmlog.broker.share.persister import Outcome
from warmlog.broker.share.state.topic import TOPIC, name_of
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.share.state import (
    ReadShareGroupStateSummaryRequest,
    SharePartitionInEpoch,
    StateBatch,
)
from warmlog.protocol.kafka.share_state_records import (
    ShareSnapshot,
    ShareUpdate,
    encode_record,
)

DONE = Outcome()
ACKNOWLEDGED = 2
INTERVAL_MS = 300_000


async def at_rest() -> None:
    """Wait until all tasks and all worker threads wait."""
    threads = trio.to_thread.current_default_thread_limiter()
    await wait_all_tasks_blocked()
    while threads.borrowed_tokens:
        await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()


async def test_a_state_survives_a_kill(tmp_path: Path) -> None:
    async with serving(tmp_path) as share:
        assert await share.initialize(start_offset=3) == DONE
        assert await share.write((3, 9, ACKNOWLEDGED, 1), (10, 12, 0, 2), start_offset=3, count=7) == DONE
        before, summary = await share.read(leader_epoch=1), await share.summary()
    async with serving(tmp_path) as share:
        assert await share.read(leader_epoch=1) == before
        assert await share.summary() == summary
        assert (await share.write((10, 12, 2, 2), leader_epoch=0)).error is ErrorCode.FENCED_LEADER_EPOCH


async def test_a_deleted_state_does_not_come_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as share:
        await share.initialize(state_epoch=5)
        assert await share.delete() == DONE
        assert await share.delete() == DONE
        assert not any(shard.entries for shard in share.shards())
        assert sum(shard.bytes for shard in share.shards()) == 0
    async with serving(tmp_path) as share:
        assert (await share.summary()).start_offset == -1
        assert (await share.read()).error is ErrorCode.INVALID_REQUEST
        assert await share.initialize(state_epoch=0) == DONE


async def test_updates_since_a_snapshot_are_replayed_in_order(tmp_path: Path) -> None:
    async with serving(tmp_path, share_coordinator_snapshot_update_records_per_snapshot=1000) as share:
        await share.initialize()
        for number in range(100):
            await share.write((number, number, ACKNOWLEDGED, 1), start_offset=number // 2, count=number)
        assert sum(isinstance(record, ShareUpdate) for _, record in share.records()) == 100
        before = await share.read()
    async with serving(tmp_path) as share:
        assert await share.read() == before
        assert before.batches == (StateBatch(49, 99, ACKNOWLEDGED, 1),)


async def test_writes_of_the_same_turn_are_appended_together(tmp_path: Path) -> None:
    async with serving(tmp_path) as share:
        for partition in range(4):
            await share.initialize(partition)
        ends = [share.log(index).log.offsets.log_end_offset for index in range(LOG_PARTITIONS)]
        async with trio.open_nursery() as nursery:
            for partition in range(4):
                nursery.start_soon(lambda index: share.write((0, 5, 2, 1), partition=index), partition)
        added = [share.log(index).log.offsets.log_end_offset - end for index, end in enumerate(ends)]
        assert sum(added) == 4
        for index, count in enumerate(added):
            log = share.log(index)
            read = log.read(ends[index], 1 << 20, min_one_batch=True, to_log_end=True) if count else None
            if read is not None and read.slice is not None:
                data = read.slice.read_all()
                assert int.from_bytes(data[57:61]) == count  # records of the only batch
                assert int.from_bytes(data[8:12]) == len(data) - 12


async def test_an_answer_waits_for_the_record(tmp_path: Path) -> None:
    """Reads as well: what they return must not be taken back."""
    async with serving(tmp_path) as share:
        await share.initialize()
        results: list[str] = []

        async def note(name: str, ask: object) -> None:
            await ask  # type: ignore[misc]
            results.append(name)

        key = share.key()
        shard = share.service.runtime.shard_of(name_of(key))
        assert shard is not None
        entry = shard.entries[key]
        change = shard.change(entry, ShareUpdate(snapshot_epoch=0, leader_epoch=0, start_offset=7))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, "read", share.read())
            nursery.start_soon(note, "summary", share.summary())
            await wait_all_tasks_blocked()
            assert not results
            share.service.coordinator.append(shard, [change])
        assert sorted(results) == ["read", "summary"]
        assert (await share.read()).start_offset == 7


async def test_an_answer_waits_for_replicas_as_long_as_the_settings_say(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with serving(tmp_path, share_coordinator_write_timeout_ms=5_000) as share:
        await share.initialize()
        shard = share.service.runtime.shard_of(name_of(share.key()))
        assert shard is not None
        shard.change(shard.entries[share.key()], ShareUpdate(snapshot_epoch=0, leader_epoch=0, start_offset=7))
        asked = SharePartitionInEpoch(topic_id=share.topic_id, partition=0, leader_epoch=0)
        request = ReadShareGroupStateSummaryRequest(group=GROUP, partitions=(asked,))
        began = trio.current_time()
        response = await share.service.coordinator.summarize(request, trio.lowlevel.checkpoint)
        assert response.partitions[0].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert trio.current_time() - began == pytest.approx(5)


async def test_a_record_that_is_not_stored_takes_its_state_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as share:
        await share.initialize(start_offset=3)
        key = share.key()
        shard = share.service.runtime.shard_of(name_of(key))
        assert shard is not None
        entry = shard.entries[key]
        stored = entry.state
        errors: list[ErrorCode] = []
        changes = [
            shard.change(entry, ShareUpdate(snapshot_epoch=0, leader_epoch=0, start_offset=start))
            for start in (5, 6, 7)
        ]
        entry.wait(errors.append)
        shard.settle(changes[0], None, ErrorCode.NOT_COORDINATOR)
        assert entry.state == stored
        assert errors == [ErrorCode.NOT_COORDINATOR]
        shard.settle(changes[1], 10, ErrorCode.NONE)
        shard.settle(changes[2], 11, ErrorCode.NONE)
        assert entry.state is not None
        assert entry.state == entry.stored
        assert entry.state.content.start_offset == 7


async def test_a_partition_that_does_not_exist_has_no_state(tmp_path: Path) -> None:
    async with serving(tmp_path) as share:
        assert (await share.initialize(4)).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await share.summary(4)).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await share.delete(4)).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await share.delete(-1)).error is ErrorCode.INVALID_REQUEST


async def test_states_go_with_their_topic(tmp_path: Path) -> None:
    async with serving(tmp_path) as share:
        await share.initialize(0)
        await share.initialize(1)
        await share.rig.partitions.delete("jobs")
        await at_rest()
        assert not any(shard.entries for shard in share.shards())
        assert [record for _, record in share.records()].count(None) == 2


async def test_states_of_a_topic_that_was_deleted_before_they_were_loaded_are_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path) as share:
        await share.initialize(0)
        await share.write((0, 5, ACKNOWLEDGED, 1))
    async with serving(tmp_path, deletes=True) as share:
        await at_rest()
        assert not any(shard.entries for shard in share.shards())
        assert [record for _, record in share.records()].count(None) == 1


async def test_what_no_load_needs_is_pruned(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path, share_coordinator_snapshot_update_records_per_snapshot=2) as share:
        await share.initialize()
        for number in range(20):
            await share.write((number, number, ACKNOWLEDGED, 1))
        before, count = await share.read(), len(share.records())
        mock_clock.jump(INTERVAL_MS / 1000 + 1)
        await at_rest()
        assert count - 3 > len(share.records()) >= 1
        assert isinstance(share.records()[0][1], ShareSnapshot)
    async with serving(tmp_path) as share:
        assert await share.read() == before
        assert share.log(share.service.runtime.partition_of(name_of(share.key()))).log.offsets.log_start_offset > 0


async def test_a_cold_state_does_not_keep_the_records_of_others(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path, partitions=20) as share:
        index_of = {n: share.service.runtime.partition_of(name_of(share.key(n))) for n in range(20)}
        cold, warm = [number for number in index_of if index_of[number] == 0][:2]
        await share.initialize(cold)
        await share.initialize(warm)
        for number in range(10):
            await share.write((number, number, ACKNOWLEDGED, 1), partition=warm)
        assert share.log(0).log.offsets.log_start_offset == 0
        share.rig.now_ms += INTERVAL_MS
        mock_clock.jump(INTERVAL_MS / 1000 + 1)
        await at_rest()
        share.rig.now_ms += INTERVAL_MS
        mock_clock.jump(INTERVAL_MS / 1000 + 1)
        await at_rest()
        end = share.log(0).log.offsets.log_end_offset
        assert share.log(0).log.offsets.log_start_offset == 12
        assert end == 14
        share.rig.now_ms += INTERVAL_MS
        mock_clock.jump(INTERVAL_MS / 1000 + 1)
        await at_rest()
        assert share.log(0).log.offsets.log_end_offset == end, "nothing has changed: no further snapshots"
        assert (await share.read(warm)).batches == (StateBatch(0, 9, ACKNOWLEDGED, 1),)


async def test_the_memory_for_states_is_limited(tmp_path: Path) -> None:
    async with serving(tmp_path, warmlog_share_states_memory_max_bytes=1 << 20, partitions=4) as share:
        await share.initialize(0)
        batches = [(2 * number, 2 * number, ACKNOWLEDGED, 1) for number in range(5000)]
        assert await share.write(*batches) == DONE
        assert await share.initialize(1) == DONE
        assert (await share.write(*batches, partition=1)).error is ErrorCode.POLICY_VIOLATION
        assert share.service.coordinator.refused == 1
        assert await share.delete(0) == DONE
        assert await share.write(*batches, partition=1) == DONE


async def test_a_malformed_record_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path) as share:
        await share.initialize(start_offset=3)
        index = share.service.runtime.partition_of(name_of(share.key()))
        key, value = encode_record(share.key(), ShareUpdate(snapshot_epoch=0, leader_epoch=0, start_offset=9))
        assert value is not None
        shard = share.service.runtime.shard_at(index)
        assert shard is not None
        rows = [(key, value[:-1]), (b"\0\7?", b"\0\0"), (key, value)]
        share.service.runtime.append(shard.term, "x", rows, lambda *_: None)
    with caplog.at_level(logging.INFO):
        async with serving(tmp_path) as share:
            assert (await share.read()).start_offset == 9
    assert f"{TOPIC}-{index}: ignored the record at offset 1, which is malformed" in caplog.text
    assert "ignored 1 records of unknown types" in caplog.text


class Model:
    """One share-partition, offset by offset."""

    def __init__(self, state_epoch: int, start: int) -> None:
        self.state_epoch, self.start, self.count = state_epoch, start, -1 if start == -1 else 0
        self.leader_epoch = 0
        self.offsets: dict[int, tuple[int, int]] = {}

    def write(self, batches: list[tuple[int, int, int, int]], start: int, count: int) -> None:
        if start > self.start:
            self.start, self.count = start, count
        elif start == self.start:
            self.count = max(count, self.count)
        for first, last, state, deliveries in batches:
            for offset in range(first, last + 1):
                self.offsets[offset] = max(self.offsets.get(offset, (0, 0)), (deliveries, state))
        self.offsets = {offset: value for offset, value in self.offsets.items() if offset >= self.start}


async def check(share: Serving, models: dict[int, Model | None]) -> None:
    for partition, model in models.items():
        summary = await share.summary(partition)
        if model is None:
            assert summary.start_offset == -1
            continue
        assert summary[2:] == (model.state_epoch, model.leader_epoch, model.start, model.count)
        key = share.key(partition)
        shard = share.service.runtime.shard_of(name_of(key))
        assert shard is not None
        state = shard.entries[key].state
        assert state is not None
        found = {
            offset: (deliveries, kind)
            for first, last, kind, deliveries in state.content.batches
            for offset in range(first, last + 1)
        }
        assert found == model.offsets


@pytest.mark.parametrize("seed", range(12))
async def test_any_sequence_with_kills_leaves_the_state_of_a_model(
    tmp_path: Path, seed: int, mock_clock: MockClock
) -> None:
    """Steps are drawn at random; a kill, pruning or cold snapshots may follow each of them."""
    random_ = random.Random(seed)
    models: dict[int, Model | None] = dict.fromkeys(range(3))
    for _ in range(6):
        async with serving(tmp_path, share_coordinator_snapshot_update_records_per_snapshot=3) as share:
            await check(share, models)
            for _ in range(random_.randrange(25)):
                await step(share, models, random_, mock_clock)
            await check(share, models)


async def step(share: Serving, models: dict[int, Model | None], random_: random.Random, clock: MockClock) -> None:
    partition = random_.choice([*models])
    model = models[partition]
    kind = random_.choice(["initialize", "write", "write", "write", "write", "read", "delete", "time"])
    if kind == "time":
        share.rig.now_ms += INTERVAL_MS
        clock.jump(INTERVAL_MS / 1000 + 1)
        await at_rest()
    elif kind == "initialize":
        epoch = random_.randrange(4)
        outcome = await share.initialize(partition, epoch, random_.randrange(-1, 5))
        if model is not None and epoch < model.state_epoch:
            assert outcome.error is ErrorCode.FENCED_STATE_EPOCH
        else:
            assert outcome == DONE
            start = (await share.summary(partition)).start_offset
            models[partition] = Model(epoch, start)
    elif kind == "delete":
        assert await share.delete(partition) == DONE
        models[partition] = None
    elif model is None:
        assert (await share.write(partition=partition)).error is ErrorCode.INVALID_REQUEST
    elif kind == "read":
        epoch = model.leader_epoch + random_.randrange(3)
        read = await share.read(partition, epoch)
        if read.error is ErrorCode.NONE:
            model.leader_epoch = max(model.leader_epoch, epoch)
        else:  # fenced by what is known from before the state was initialized again
            assert read.error is ErrorCode.FENCED_LEADER_EPOCH
    else:
        batches = []
        for _ in range(random_.randrange(4)):
            first = random_.randrange(30)
            batches.append((first, first + random_.randrange(5), random_.choice([0, 2, 4]), random_.randrange(1, 5)))
        start, count = random_.randrange(-1, 12), random_.randrange(9)
        outcome = await share.write(
            *batches,
            partition=partition,
            state_epoch=model.state_epoch,
            leader_epoch=99,
            start_offset=start,
            count=count,
        )
        assert outcome == DONE
        model.write(batches, start, count)
