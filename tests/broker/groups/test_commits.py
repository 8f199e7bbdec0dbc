"""Committed offsets: who may commit, when offsets expire, and that they survive a restart."""

import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.clients import batch
from tests.broker.groups.requests import SESSION_MS
from tests.broker.groups.serving import CHECK_S, EPOCH_MS, OUTSIDE, Serving, serving
from tests.broker.stored_topics import stored_topics
from warmlog.broker.coordinator import appends
from warmlog.broker.coordinator.appends import LogProducer
from warmlog.broker.groups.commits import Committer
from warmlog.broker.groups.offset_writer import OFFSETS_PER_STEP
from warmlog.broker.groups.topic import TOPIC
from warmlog.broker.log.producers.transactions import TransactionMarker
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.partition import Partition
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import GroupState, JoinGroupResponse, OffsetToCommit
from warmlog.protocol.kafka.group_records import NO_TIME, OffsetAndMetadata
from warmlog.protocol.kafka.messages.groups.offsets import IdentifiedOffset
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.markers import Outcome

DAY_S = 86_400
RETENTION_S = 7 * DAY_S


def as_member(joined: JoinGroupResponse) -> Committer:
    return Committer(generation=joined.generation, member_id=joined.member_id, instance_id=None)


async def test_committed_offsets_survive_a_restart(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        topic = group.partitions.topic("orders")
        assert topic is not None
        assert await group.commit(5) is ErrorCode.NONE
        assert await group.commit(42, metadata="a note", leader_epoch=3) is ErrorCode.NONE
        expected = OffsetAndMetadata(
            offset=42,
            leader_epoch=3,
            metadata="a note",
            commit_ms=EPOCH_MS + round(trio.current_time() * 1000),
            topic_id=topic.id.bytes,
        )
        assert group.committed() == expected
    async with serving(tmp_path) as group:
        assert group.committed() == expected
        known = group.service.registry.get("g")
        assert known is not None
        assert known.state is GroupState.EMPTY


async def test_invalid_commits_are_rejected(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        assert await group.commit(1, topic="nothing") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await group.commit(1, partition=1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await group.commit(1, metadata="x" * 4097) is ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert await group.commit(1, "g" * 40_000) is ErrorCode.INVALID_GROUP_ID
        assert await group.commit(1, committer=Committer(generation=3, member_id="gone", instance_id=None)) is (
            ErrorCode.GROUP_ID_NOT_FOUND
        )
        assert group.committed() is None


async def test_one_invalid_offset_does_not_stop_the_others(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        offsets = [
            OffsetToCommit(topic="nothing", partition=0, offset=1),
            OffsetToCommit(topic="orders", partition=0, offset=7),
            OffsetToCommit(topic="orders", partition=0, offset=8, metadata="x" * 5000),
        ]
        errors = await group.service.commits.commit("g", OUTSIDE, offsets, retention_ms=None)
        assert errors == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.NONE,
            ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ]
        held = group.committed()
        assert held is not None
        assert held.offset == 7


async def test_current_members_may_commit_and_former_ones_may_not(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        joined = await group.member()
        assert await group.commit(1, committer=as_member(joined)) is ErrorCode.NONE
        assert await group.commit(2) is ErrorCode.UNKNOWN_MEMBER_ID
        old = Committer(generation=0, member_id=joined.member_id, instance_id=None)
        assert await group.commit(2, committer=old) is ErrorCode.ILLEGAL_GENERATION
        await group.leave(joined)
        assert await group.commit(2, committer=as_member(joined)) is ErrorCode.UNKNOWN_MEMBER_ID
        held = group.committed()
        assert held is not None
        assert held.offset == 1


async def test_an_old_client_may_commit_with_an_empty_group_name(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        assert await group.commit(1, "") is ErrorCode.NONE
    async with serving(tmp_path) as group:
        assert group.committed("") is not None


async def test_a_failed_commit_is_not_kept_in_memory(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        await group.commit(1)
        group.disk.is_full = True
        assert await group.commit(2) is ErrorCode.NOT_COORDINATOR
        held = group.committed()
        assert held is not None
        assert held.offset == 1
        group.disk.is_full = False
        assert await group.commit(3) is ErrorCode.NONE


async def test_a_commit_above_the_batch_size_is_split(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path, message_max_bytes=400, topics=()) as group:
        await group.partitions.create("wide", 20)
        offsets = [OffsetToCommit(topic="wide", partition=index, offset=index) for index in range(20)]
        errors = await group.service.commits.commit("g", OUTSIDE, offsets, retention_ms=None)
        assert set(errors) == {ErrorCode.NONE}
    async with serving(tmp_path, message_max_bytes=400, topics=()) as group:
        held = [(partition, value.offset) for _, partition, value in group.offsets()]
        assert held == [(index, index) for index in range(20)]


async def test_an_offset_above_the_batch_size_is_rejected(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def checked(rows: list[tuple[int, bytes, bytes, object]]) -> bytes:
        assert sum(len(key) + len(value) for _, key, value, _ in rows) <= 400, "it is built all the same"
        return build_batch(rows)  # type: ignore[arg-type]

    monkeypatch.setattr(appends, "build_batch", checked)
    async with serving(tmp_path, message_max_bytes=400) as group:
        offsets = [
            OffsetToCommit(topic="orders", partition=0, offset=at, metadata="x" * size)
            for at, size in ((1, 0), (2, 500))
        ]
        errors = await group.service.commits.commit("g", OUTSIDE, offsets, retention_ms=None)
        assert set(errors) == {ErrorCode.UNKNOWN_SERVER_ERROR}
        first = group.committed()
        assert first is not None
        assert first.offset == 1, "what is in the log counts, or a restart would contradict"
        assert await group.commit(3) is ErrorCode.NONE
    async with serving(tmp_path, message_max_bytes=400) as group:
        held = group.committed()
        assert held is not None
        assert held.offset == 3


async def test_a_commit_waits_for_its_flush(tmp_path: Path) -> None:
    async with serving(tmp_path, log_flush_interval_messages=1, offsets_commit_timeout_ms=60_000) as group:
        assert await group.commit(1) is ErrorCode.NONE
        runtime = group.service.registry.runtime
        partition = group.partitions.get("__consumer_offsets", runtime.partition_of("g"))
        assert partition is not None
        assert partition.log.durability.recovery_point == partition.log.offsets.log_end_offset > 0


# -- expiry --


async def test_offsets_of_an_empty_group_expire_and_the_group_with_them(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        joined = await group.member()
        await group.commit(1, committer=as_member(joined))
        await group.leave(joined)
        await trio.sleep(RETENTION_S - CHECK_S + 1)
        assert group.committed() is not None
        await trio.sleep(2 * CHECK_S)
        assert group.committed() is None
        assert group.service.registry.get("g") is None
    async with serving(tmp_path) as group:
        assert group.committed() is None
        assert group.service.registry.get("g") is None


async def test_offsets_of_subscribed_topics_stay_and_others_expire(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path, topics=("orders", "other")) as group:
        session_s = 1800
        joined = await group.member(session_timeout_ms=session_s * 1000)
        await group.commit(1, committer=as_member(joined))
        await group.commit(1, committer=as_member(joined), topic="other")
        while trio.current_time() < RETENTION_S + 2 * CHECK_S:
            await trio.sleep(session_s - 1)
            assert group.heartbeat(joined) is ErrorCode.NONE
        await trio.sleep(1)
        assert group.heartbeat(joined) is ErrorCode.NONE
        assert group.committed() is not None
        assert group.committed(topic="other") is None


async def test_a_commit_may_set_its_own_expiry(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        await group.commit(1, retention_ms=DAY_S * 1000)
        held = group.committed()
        assert held is not None
        assert held.expire_ms != NO_TIME
    async with serving(tmp_path) as group:
        assert group.committed() == OffsetAndMetadata(offset=1, commit_ms=held.commit_ms, expire_ms=held.expire_ms)
        await trio.sleep(DAY_S + CHECK_S + 1)
        assert group.committed() is None


async def test_an_expiry_beyond_64_bits_is_clamped(tmp_path: Path, mock_clock: MockClock) -> None:
    # Regression: it was refused as a commit with too much metadata.
    async with serving(tmp_path) as group:
        assert await group.commit(1, retention_ms=(1 << 63) - 1) is ErrorCode.NONE
        held = group.committed()
        assert held is not None
        assert held.expire_ms == (1 << 63) - 1


async def test_offsets_without_members_expire_by_commit_time(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path, topics=("orders", "other")) as group:
        await group.commit(1)
        await trio.sleep(RETENTION_S - DAY_S + 1)
        await group.commit(1, topic="other")
        await trio.sleep(2 * DAY_S)
        assert group.committed() is None
        assert group.committed(topic="other") is not None


async def test_a_group_stays_if_its_tombstones_cannot_be_written(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        await group.commit(1)
        group.disk.is_full = True
        assert await group.service.deletions.delete("g") is ErrorCode.NOT_COORDINATOR
        await trio.sleep(RETENTION_S + CHECK_S + 1)
        assert group.committed() is not None
        assert group.service.registry.get("g") is not None
        group.disk.is_full = False
        await trio.sleep(2 * CHECK_S)
        assert group.committed() is None


async def test_deleting_a_topic_removes_its_committed_offsets(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path, topics=("orders", "other")) as group:
        for name in ("g", "h"):
            await group.commit(1, name)
            await group.commit(2, name, topic="other")
        await group.partitions.delete("orders")
        assert group.committed() is None
        await group.partitions.create("orders")
        assert await group.commit(0, "h") is ErrorCode.NONE
    async with serving(tmp_path, topics=()) as group:
        assert group.committed() is None
        assert group.committed("h") is not None
        assert group.committed(topic="other") is not None


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_offsets_of_a_topic_are_removed_after_its_deletion_was_interrupted(
    tmp_path: Path, in_transaction: bool
) -> None:
    async with serving(tmp_path, topics=("orders", "other")) as group:
        if in_transaction:
            assert await _commit_in_transaction(group, 1) == [ErrorCode.NONE]
        else:
            await group.commit(1)
        await group.commit(2, "h", topic="other")
    with stored_topics(tmp_path) as stored:
        stored.begin_deletion("orders")
    for _ in range(2):  # what the first load did not take, its tombstones keep from the second
        async with serving(tmp_path) as group:
            assert group.committed() is None
            assert not group.has_pending()
            assert group.committed("h", topic="other") is not None
            assert [each.group_id for each in group.service.registry.all()] == ["h"]


async def test_no_offset_of_a_deleted_topic_is_left_in_the_log_when_the_deletion_is_answered(tmp_path: Path) -> None:
    """As if the broker was killed then: there is more than one step of tombstones."""
    groups = [str(number) for number in range(300)]
    async with serving(tmp_path / "first") as broker:
        for name in groups:
            await broker.commit(1, name)
        await broker.partitions.delete("orders")
        shutil.copytree(tmp_path / "first", tmp_path / "then", ignore=shutil.ignore_patterns("*.tmp"))
    async with serving(tmp_path / "then") as broker:
        assert [name for name in groups if broker.committed(name) is not None] == []


async def test_a_topic_that_is_deleted_while_its_offsets_are_loaded_leaves_none(tmp_path: Path) -> None:
    async with serving(tmp_path) as group:
        await group.commit(1)
        await group.commit(2, "h")
    async with serving(tmp_path, reads=False) as group:
        await group.partitions.delete("orders")
        await group.partitions.create("orders")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(group.service.run)
            while group.service.registry.available_all() is not ErrorCode.NONE:
                await trio.lowlevel.checkpoint()
            assert group.committed() is None
            assert await group.commit(0, "h") is ErrorCode.NONE
            nursery.cancel_scope.cancel()
    async with serving(tmp_path) as group:
        assert group.committed() is None
        held = group.committed("h")
        assert held is not None
        assert held.offset == 0


async def test_the_coordinator_starts_empty_after_its_topic_was_deleted(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        await group.commit(1)
        await group.partitions.delete("__consumer_offsets")
        assert group.committed() is None
        assert group.service.registry.get("g") is None
        assert await group.commit(2) is ErrorCode.NONE
    async with serving(tmp_path) as group:
        held = group.committed()
        assert held is not None
        assert held.offset == 2


# -- deleting --


async def test_groups_without_members_can_be_deleted(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        deletions = group.service.deletions
        assert await deletions.delete("g") is ErrorCode.GROUP_ID_NOT_FOUND
        joined = await group.member()
        await group.commit(1, committer=as_member(joined))
        assert await deletions.delete("g") is ErrorCode.NON_EMPTY_GROUP
        await group.leave(joined)
        assert await deletions.delete("g") is ErrorCode.NONE
        assert group.committed() is None
        assert await deletions.delete("g") is ErrorCode.GROUP_ID_NOT_FOUND
    async with serving(tmp_path) as group:
        assert group.service.registry.get("g") is None


@contextmanager
def slow_disk(group: Serving) -> Iterator[None]:
    """Queue all appends to the group's partition until the block ends, as during a slow write."""
    partition = group.partitions.get(TOPIC, group.service.registry.runtime.partition_of("g"))
    assert partition is not None
    with partition.inside():
        partition.appends.is_writing = True
        yield
        partition.appends.is_writing = False
        partition.appends.write_queued()


async def test_a_commit_in_progress_outlives_its_group(tmp_path: Path, mock_clock: MockClock) -> None:
    # Regression: the offset was kept without a group, and did not expire until the next restart.
    async with serving(tmp_path, topics=("orders", "other")) as group:
        await group.commit(1)
        async with trio.open_nursery() as nursery:
            with slow_disk(group):
                nursery.start_soon(partial(group.commit, 9, topic="other"))
                await wait_all_tasks_blocked()
                nursery.start_soon(group.service.deletions.delete, "g")
                await wait_all_tasks_blocked()
        assert group.committed() is None
        assert group.committed(topic="other") is not None
        assert group.service.registry.get("g") is not None
        await trio.sleep(RETENTION_S + CHECK_S + 1)
        assert group.committed(topic="other") is None
        assert group.service.registry.get("g") is None


async def test_a_commit_in_progress_is_dropped_with_the_offsets_topic(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        async with trio.open_nursery() as nursery:
            with slow_disk(group):
                nursery.start_soon(group.commit, 9)
                await wait_all_tasks_blocked()
                nursery.start_soon(group.partitions.delete, TOPIC)
                while group.partitions.has(TOPIC):
                    await trio.lowlevel.checkpoint()
                await wait_all_tasks_blocked()
        assert group.committed() is None
        assert group.service.registry.get("g") is None


async def test_pending_ids_still_expire_after_a_failed_deletion(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        assert (await group.join(requires_known_member=True)).error is ErrorCode.MEMBER_ID_REQUIRED
        group.disk.is_full = True
        assert await group.service.deletions.delete("g") is ErrorCode.NOT_COORDINATOR
        await trio.sleep(SESSION_MS / 1000 + 1)
        known = group.service.registry.get("g")
        assert known is not None
        assert known.pending_count == 0


async def test_offsets_can_be_deleted_unless_the_topic_is_subscribed(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path, topics=("orders", "other")) as group:
        commits = group.service.commits
        assert commits.check_delete_offsets("g") is ErrorCode.GROUP_ID_NOT_FOUND
        assert commits.check_delete_offsets("") is ErrorCode.INVALID_GROUP_ID
        joined = await group.member()
        for topic in ("orders", "other"):
            await group.commit(1, committer=as_member(joined), topic=topic)
        assert commits.check_delete_offsets("g") is ErrorCode.NONE
        errors = await commits.delete_offsets("g", [("orders", 0), ("other", 0), ("other", 9)])
        assert errors == [
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert group.committed() is not None
        assert group.committed(topic="other") is None


async def test_offsets_cannot_be_deleted_while_members_speak_an_unknown_protocol(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with serving(tmp_path) as group:
        await group.member(protocol_type="connect")
        assert group.service.commits.check_delete_offsets("g") is ErrorCode.NON_EMPTY_GROUP


# -- Kafka's records, metrics, names --


async def test_offsets_committed_by_kafka_are_loaded(
    tmp_path: Path, kafka_fixtures: Path, mock_clock: MockClock
) -> None:
    async with serving(tmp_path, offsets_topic_num_partitions=1) as group:
        assert group.committed("golden-group", "plain") is None
    copied = tmp_path / "__consumer_offsets-0"
    shutil.rmtree(copied)
    shutil.copytree(kafka_fixtures / "clean" / "__consumer_offsets-0", copied)
    async with serving(tmp_path, offsets_topic_num_partitions=1) as group:
        held = group.committed("golden-group", "plain")
        assert held is not None
        assert (held.offset, held.metadata) == (42, "a note")


async def test_metrics_report_lag_and_states(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        metrics = Metrics()
        group.service.declare(metrics)
        orders = group.partitions.get("orders", 0)
        assert orders is not None
        orders.append(batch(b"a", b"b", b"c"))
        orders.appends.write_queued()
        joined = await group.member()
        await group.commit(1, committer=as_member(joined))

        def value(name: str, **labels: str) -> float | None:
            return metrics.registry.get_sample_value(name, labels)

        assert value("warmlog_group_lag", group="g", topic="orders") == 2
        assert value("warmlog_group_committed_offsets", group="g", topic="orders") == 1
        assert value("warmlog_groups", type="classic", state="Stable") == 1
        assert value("warmlog_groups", type="classic", state="Empty") == 0
        assert value("warmlog_group_rebalances_total") == 1


async def test_a_bounded_number_of_groups_has_series(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path, warmlog_metrics_groups_max=2) as group:
        metrics = Metrics()
        group.service.declare(metrics)
        joined = await group.member()
        await group.commit(1, committer=as_member(joined))
        for number in range(5):
            mock_clock.jump(1)
            await group.commit(1, f"later-{number}")

        def value(name: str, **labels: str) -> float | None:
            return metrics.registry.get_sample_value(name, labels)

        series = [
            name
            for name in ("g", *(f"later-{at}" for at in range(5)))
            if value("warmlog_group_lag", group=name, topic="orders") is not None
        ]
        assert series == ["g", "later-4"]
        assert value("warmlog_groups_without_lag") == 4


@pytest.mark.parametrize("name", ["orders", "ordérs", "\U0001f600"])
async def test_groups_with_unusual_names_survive_a_restart(tmp_path: Path, name: str, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        await group.commit(9, name)
    async with serving(tmp_path) as group:
        assert group.committed(name) is not None


def _log_of(broker: Serving, name: str) -> Partition:
    partition = broker.partitions.get(TOPIC, broker.service.registry.runtime.partition_of(name))
    assert partition is not None
    return partition


async def _commit_in_transaction(
    broker: Serving, count: int, checkpoint: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
) -> list[ErrorCode]:
    """Commit offsets of producer 7, as the coordinator has just allowed."""
    guard = _log_of(broker, "g").log.producers.guards.open(7)
    offsets = [OffsetToCommit(topic="orders", partition=0, offset=number) for number in range(count)]
    return await broker.service.commits.commit(
        "g", OUTSIDE, offsets, retention_ms=None, producer=LogProducer(7, 0, guard), checkpoint=checkpoint
    )


async def test_offsets_that_come_after_the_end_of_their_transaction_begin_no_other(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        log = _log_of(broker, "g")

        async def end_transaction() -> None:
            log.appends.append_marker(TransactionMarker(7, 0, 0, Outcome.ABORT))

        errors = await _commit_in_transaction(broker, 1, end_transaction)
        assert errors == [ErrorCode.INVALID_TXN_STATE]
        assert log.log.offsets.last_stable_offset == log.log.offsets.log_end_offset
        assert not broker.has_pending()


async def test_all_offsets_of_a_transaction_share_the_error_of_the_first(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        count = 2 * OFFSETS_PER_STEP + 44
        broker.disk.is_full = True
        errors = await _commit_in_transaction(broker, count)
        assert errors == [ErrorCode.NOT_COORDINATOR] * count
        broker.disk.is_full = False
        assert await _commit_in_transaction(broker, count) == [ErrorCode.NONE] * count


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_an_offset_of_a_topic_that_is_deleted_during_the_commit_is_removed(
    tmp_path: Path, in_transaction: bool
) -> None:
    async with serving(tmp_path) as broker:
        log = _log_of(broker, "g")
        log.appends.is_paused = True
        async with trio.open_nursery() as nursery:
            if in_transaction:
                nursery.start_soon(_commit_in_transaction, broker, 1)
            else:
                nursery.start_soon(broker.commit, 5)
            await wait_all_tasks_blocked()
            await broker.partitions.delete("orders")
            await broker.partitions.ensure("orders")
            log.appends.is_paused = False
            log.appends.write_queued()
        assert broker.committed() is None
        assert not broker.has_pending()
        await log.appends.settled()
    async with serving(tmp_path) as broker:
        assert broker.committed() is None
        assert not broker.has_pending()


@pytest.mark.parametrize("is_created_again", [False, True])
@pytest.mark.parametrize("in_transaction", [False, True])
async def test_an_offset_is_refused_if_its_topic_is_deleted_before_it_is_written(
    tmp_path: Path, in_transaction: bool, is_created_again: bool
) -> None:
    async with serving(tmp_path) as broker:

        async def delete() -> None:
            await broker.partitions.delete("orders")
            if is_created_again:
                await broker.partitions.ensure("orders")

        if in_transaction:
            errors = await _commit_in_transaction(broker, 1, delete)
        else:
            offsets = [OffsetToCommit(topic="orders", partition=0, offset=5)]
            errors = await broker.service.commits.commit("g", OUTSIDE, offsets, retention_ms=None, checkpoint=delete)
        assert errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        await broker.partitions.ensure("orders")
        assert broker.committed() is None
        assert not broker.has_pending()


async def test_an_offset_for_the_id_of_a_deleted_topic_is_not_committed_for_its_successor(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker:
        former = broker.partitions.topic("orders")
        assert former is not None
        await broker.partitions.delete("orders")
        await broker.partitions.ensure("orders")
        offset = IdentifiedOffset(topic="orders", topic_id=former.id.bytes, partition=0, offset=5)
        assert await broker.service.commits.commit("g", OUTSIDE, [offset], retention_ms=None) == [
            ErrorCode.UNKNOWN_TOPIC_ID
        ]
        assert broker.committed() is None
