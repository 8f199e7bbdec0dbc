"""Waiting members and timeouts, on a mock clock: nothing here sleeps for real."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.groups.requests import DELAY_MS, SESSION_MS
from tests.broker.groups.serving import Serving, serving
from warmlog.broker.groups.coordinator import MAX_PROTOCOLS
from warmlog.broker.settings.settings import Settings
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import GroupProtocol, GroupState, JoinGroupResponse, SyncGroupResponse

SESSION_S = SESSION_MS / 1000 + 0.01  # just past the session timeout


async def join_together(group: Serving, count: int) -> list[JoinGroupResponse]:
    """Join `count` members at once; return their responses, the leader's first."""
    joined: list[JoinGroupResponse] = []

    async def one() -> None:
        joined.append(await group.join())

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)
    return sorted(joined, key=lambda each: not each.members)


async def stable(group: Serving, count: int) -> list[JoinGroupResponse]:
    joined = await join_together(group, count)
    synced: list[SyncGroupResponse] = []

    async def one(each: JoinGroupResponse) -> None:
        synced.append(await group.sync(each))

    async with trio.open_nursery() as nursery:
        for each in joined:
            nursery.start_soon(one, each)
    assert {response.assignment for response in synced} == {each.member_id.encode() for each in joined}
    return joined


async def test_members_that_join_during_the_initial_delay_share_a_generation(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with serving(tmp_path) as group:
        began = trio.current_time()
        joined = await join_together(group, 3)
        assert trio.current_time() - began == pytest.approx(2 * DELAY_MS / 1000)
        assert {each.generation for each in joined} == {1}
        assert len(joined[0].members) == 3


async def test_the_first_member_of_a_new_group_waits_half_a_second_by_default(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    default_ms = Settings().group_initial_rebalance_delay_ms
    async with serving(tmp_path, group_initial_rebalance_delay_ms=default_ms) as group:
        began = trio.current_time()
        joined = await group.join()
        assert joined.generation == 1
        assert trio.current_time() - began == pytest.approx(0.5)


async def test_a_member_without_heartbeats_is_removed_at_its_session_timeout(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with serving(tmp_path) as group:
        first, silent = await stable(group, 2)
        for _ in range(4):
            await trio.sleep(SESSION_S / 4)
            error = group.heartbeat(first)
        assert error is ErrorCode.REBALANCE_IN_PROGRESS
        assert group.heartbeat(silent) is ErrorCode.UNKNOWN_MEMBER_ID
        assert (await group.join(member_id=first.member_id)).generation == 2


async def test_a_member_stays_until_its_session_timeout_after_its_client_disconnects(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with serving(tmp_path) as group:
        first, second = await stable(group, 2)
        with trio.move_on_after(1):
            await group.join(member_id=first.member_id)
        known = group.service.registry.get("g")
        assert known is not None
        assert known.state is GroupState.PREPARING_REBALANCE
        assert first.member_id in known.members
        again = await group.join(member_id=second.member_id)
        assert again.generation == 2
        assert len(known.members) == 2, "it had joined before its client went away"
        await group.sync(again) if again.members else None
        await trio.sleep(SESSION_S)
        assert first.member_id not in known.members


async def test_a_new_member_expires_if_its_client_disconnects_before_the_response(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with serving(tmp_path) as group:
        with trio.move_on_after(1):
            await group.join()
        known = group.service.registry.get("g")
        assert known is not None
        await trio.sleep(DELAY_MS / 1000)
        assert len(known.members) == 1
        await trio.sleep(SESSION_S)
        assert known.state is GroupState.EMPTY


async def test_heartbeats_do_not_add_timers(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        members = await stable(group, 3)
        timers = group.service.registry._timers
        for _ in range(50):
            await trio.sleep(1)
            assert {group.heartbeat(each) for each in members} == {ErrorCode.NONE}
            assert len(timers._heap) <= 2
        for each in members:
            await group.leave(each)
        await trio.sleep(100)
        assert not timers._heap, "an idle coordinator has no timer"


async def test_an_unused_member_id_expires(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        told = await group.join(requires_known_member=True)
        assert told.error is ErrorCode.MEMBER_ID_REQUIRED
        await trio.sleep(SESSION_S)
        assert (await group.join(member_id=told.member_id)).error is ErrorCode.UNKNOWN_MEMBER_ID


async def test_waiting_members_are_answered_when_the_broker_stops(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        first, _ = await stable(group, 2)
        answers = []

        async def wait() -> None:
            answers.append(await group.join(member_id=first.member_id))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            group.service.stop()
        assert answers[0].error is ErrorCode.NOT_COORDINATOR
        assert (await group.join()).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert group.heartbeat(first) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await group.commit(1) is ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("timeout_ms", [5_999, 1_800_001])
async def test_session_timeouts_have_bounds(tmp_path: Path, mock_clock: MockClock, timeout_ms: int) -> None:
    async with serving(tmp_path) as group:
        assert (await group.join(session_timeout_ms=timeout_ms)).error is ErrorCode.INVALID_SESSION_TIMEOUT


@pytest.mark.parametrize("name", ["", "g" * 40_000])
async def test_a_group_name_must_fit_into_a_record(tmp_path: Path, mock_clock: MockClock, name: str) -> None:
    async with serving(tmp_path) as group:
        joined = await group.join(name)
        assert joined.error is ErrorCode.INVALID_GROUP_ID
        assert (await group.sync(joined, name)).error is ErrorCode.INVALID_GROUP_ID
        assert group.heartbeat(joined, name) is ErrorCode.INVALID_GROUP_ID
        assert (await group.service.coordinator.leave(name, []))[0] is ErrorCode.INVALID_GROUP_ID


async def test_requests_for_a_missing_group_have_kafkas_errors(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        nobody = JoinGroupResponse(member_id="m", generation=1)
        assert (await group.join(member_id="m")).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert (await group.sync(nobody)).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert group.heartbeat(nobody) is ErrorCode.UNKNOWN_MEMBER_ID
        assert await group.leave(nobody) == [ErrorCode.UNKNOWN_MEMBER_ID]
        described = group.service.coordinator.describe("g")
        assert (described.state, described.error) == (GroupState.DEAD, ErrorCode.GROUP_ID_NOT_FOUND)


async def test_a_member_that_does_not_fit_into_a_record_gets_an_error(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        joined = await group.join(instance_id="i" * 40_000)
        assert (await group.sync(joined, instance_id="i" * 40_000)).error is ErrorCode.UNKNOWN_SERVER_ERROR


async def test_members_rebalance_again_after_a_full_disk(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        joined = await group.join()
        group.disk.is_full = True
        assert (await group.sync(joined)).error is ErrorCode.NOT_COORDINATOR
        group.disk.is_full = False
        joined = await group.join(member_id=joined.member_id)
        assert (await group.sync(joined)).error is ErrorCode.NONE


async def test_a_description_has_assignments_only_while_the_group_is_stable(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with serving(tmp_path) as group:
        joined = await group.join()
        described = group.service.coordinator.describe("g")
        assert (described.state, described.protocol) == (GroupState.COMPLETING_REBALANCE, "")
        assert described.members[0].metadata == b""
        await group.sync(joined)
        described = group.service.coordinator.describe("g")
        assert (described.state, described.protocol) == (GroupState.STABLE, "range")
        assert described.members[0].assignment == joined.member_id.encode()
        (listed,) = group.service.coordinator.list_groups()
        assert (listed.group, listed.state, listed.protocol_type) == ("g", GroupState.STABLE, "consumer")


async def test_a_group_survives_a_restart(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        joined = await group.member()
    async with serving(tmp_path) as group:
        assert group.heartbeat(joined) is ErrorCode.NONE
        assert (await group.sync(joined)).assignment == joined.member_id.encode()
        await trio.sleep(SESSION_S)
        assert group.heartbeat(joined) is ErrorCode.UNKNOWN_MEMBER_ID
    async with serving(tmp_path) as group:
        known = group.service.registry.get("g")
        assert known is not None
        assert (known.state, known.generation.number) == (GroupState.EMPTY, 2)


async def test_a_group_is_not_served_until_it_is_loaded(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        joined = await group.member()
    async with serving(tmp_path, reads=False) as group:
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert group.heartbeat(joined) is ErrorCode.NONE, "a member is not expelled while its group is loaded"
        assert (await group.join()).error is loading
        assert (await group.sync(joined)).error is loading
        assert await group.leave(joined) == [loading]
        assert await group.commit(1) is loading
        assert await group.service.deletions.delete("g") is loading
        assert group.service.coordinator.describe("g").error is loading
        assert group.service.registry.available_all() is loading


async def test_groups_of_an_unreadable_partition_are_not_served(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path, offsets_topic_num_partitions=1) as group:
        joined = await group.member()
    path = tmp_path / "__consumer_offsets-0" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[-3] ^= 0xFF
    path.write_bytes(data)
    async with serving(tmp_path, offsets_topic_num_partitions=1) as group:
        assert (await group.join()).error is ErrorCode.NOT_COORDINATOR
        assert group.heartbeat(joined) is ErrorCode.NOT_COORDINATOR


async def test_loading_many_records_yields_to_other_tasks(tmp_path: Path, mock_clock: MockClock) -> None:
    count = 5000
    async with serving(tmp_path, offsets_topic_num_partitions=1) as group:
        rows = [
            (b"\0\1" + b"\0\1g" + b"\0\6orders" + number.to_bytes(4, "big"), b"\0\0" + bytes(18))
            for number in range(count)
        ]
        settled: list[ErrorCode] = []
        runtime = group.service.registry.runtime
        shard = runtime.shard_of("g")
        assert shard is not None
        runtime.append(shard.term, "g", rows, lambda error, _: settled.append(error))
        assert settled == [ErrorCode.NONE]
    async with serving(tmp_path, offsets_topic_num_partitions=1, reads=False) as group:
        turns = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(group.service.run)
            while group.service.registry.available_all() is not ErrorCode.NONE:
                await trio.lowlevel.checkpoint()
                turns += 1
            nursery.cancel_scope.cancel()
        assert turns > 2 * count // 500
        assert len(group.offsets()) == count


async def test_a_member_with_more_protocols_than_anyone_has_is_refused(tmp_path: Path, mock_clock: MockClock) -> None:
    async with serving(tmp_path) as group:
        protocols = tuple(GroupProtocol(name=f"p{number}", metadata=b"") for number in range(MAX_PROTOCOLS + 1))
        assert (await group.join(protocols=protocols)).error is ErrorCode.INVALID_REQUEST
        assert (await group.join(protocols=protocols[1:])).error is ErrorCode.NONE
