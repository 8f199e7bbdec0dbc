"""The group's state machine by examples: each of Kafka's rules once, with its error code."""

import pytest

from tests.broker.groups.requests import DELAY_MS, REBALANCE_MS, SESSION_MS, Driver, protocols, subscription
from warmlog.broker.groups.automaton import NEVER, Instant
from warmlog.broker.groups.classic.effects import Limits
from warmlog.broker.groups.classic.rebalance import MAX_PENDING_IDS, NEW_MEMBER_JOIN_TIMEOUT_MS
from warmlog.broker.groups.classic.state import ClassicGroup
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import GroupProtocol, GroupState
from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.kafka.group_records import StoredGroup, StoredMember

NOW = Instant(0.0, 1_700_000_000_000)


def test_the_first_members_of_an_empty_group_wait_for_the_initial_delay() -> None:
    driver = Driver()
    first, second = driver.join(), driver.join()
    driver.pass_ms(DELAY_MS - 1)
    assert not driver.answers
    driver.pass_ms(DELAY_MS + 1)  # the second one extended it
    assert driver.joined(first).generation == driver.joined(second).generation == 1
    assert driver.group.state is GroupState.COMPLETING_REBALANCE


def test_the_initial_delay_is_extended_up_to_the_rebalance_timeout() -> None:
    driver = Driver()
    first = driver.join(rebalance_timeout_ms=2 * DELAY_MS, session_timeout_ms=REBALANCE_MS)
    for _ in range(4):
        driver.pass_ms(DELAY_MS // 2)
        driver.join(rebalance_timeout_ms=2 * DELAY_MS)
        if first in driver.answers:
            break
    driver.pass_ms(DELAY_MS // 2)
    assert driver.joined(first).generation == 1
    assert driver.now.loop_s - 1000 <= 2 * DELAY_MS / 1000 + 1.5


def test_without_delay_the_first_member_is_answered_at_the_next_tick() -> None:
    driver = Driver(delay_ms=0)
    waiter = driver.join()
    driver.pass_ms(0)
    assert driver.joined(waiter).error is ErrorCode.NONE


def test_only_the_leader_gets_the_list_of_members() -> None:
    driver = Driver()
    first, second = driver.join(), driver.join()
    driver.pass_ms(2 * DELAY_MS)
    leader, follower = driver.joined(first), driver.joined(second)
    assert leader.leader == follower.leader == leader.member_id
    assert [member.member_id for member in leader.members] == [leader.member_id, follower.member_id]
    assert not follower.members


def test_members_wait_for_the_leaders_assignment() -> None:
    driver = Driver()
    first, second = driver.join(), driver.join()
    driver.pass_ms(2 * DELAY_MS)
    leader, follower = driver.joined(first).member_id, driver.joined(second).member_id
    waiting = driver.sync(follower)
    assert waiting not in driver.answers
    own = driver.sync(leader, assignments={leader: b"a", follower: b"b"})
    assert driver.synced(own).assignment == b"a"
    assert driver.synced(waiting).assignment == b"b"
    assert driver.group.state is GroupState.STABLE
    assert driver.group.completed_rebalances == 1


def test_an_assignment_that_was_not_stored_reaches_no_member() -> None:
    driver = Driver()
    waiter = driver.join()
    driver.pass_ms(DELAY_MS)
    leader = driver.joined(waiter).member_id
    driver.must_store = False
    sync = driver.sync(leader, assignments={leader: b"a"})
    assert sync not in driver.answers
    driver.settle_stores(ErrorCode.NOT_COORDINATOR)
    assert driver.synced(sync).error is ErrorCode.NOT_COORDINATOR
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_an_assignment_stored_after_another_rebalance_began_is_ignored() -> None:
    driver = Driver()
    waiter = driver.join()
    driver.pass_ms(DELAY_MS)
    leader = driver.joined(waiter).member_id
    driver.must_store = False
    sync = driver.sync(leader, assignments={leader: b"old"})
    driver.join()
    assert driver.synced(sync).error is ErrorCode.REBALANCE_IN_PROGRESS
    driver.settle_stores()
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_a_new_dynamic_member_gets_its_id_before_it_joins() -> None:
    driver = Driver()
    told = driver.joined(driver.join(requires_known_member=True, client_id="app"))
    assert told.error is ErrorCode.MEMBER_ID_REQUIRED
    assert told.member_id.startswith("app-")
    waiter = driver.join(told.member_id, requires_known_member=True)
    driver.pass_ms(DELAY_MS)
    assert driver.joined(waiter).member_id == told.member_id


def test_a_pending_id_expires() -> None:
    driver = Driver()
    told = driver.joined(driver.join(requires_known_member=True))
    driver.pass_ms(SESSION_MS)
    assert driver.group.pending_count == 0
    assert driver.joined(driver.join(told.member_id)).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.group.wake_at_s == NEVER


def test_a_rebalance_waits_for_pending_ids() -> None:
    driver = Driver()
    (member,) = driver.stable(1)
    told = driver.joined(driver.join(requires_known_member=True, speaks=["range"]))
    again = driver.join(member, speaks=["range"])  # the leader
    assert again not in driver.answers
    driver.join(told.member_id)
    assert driver.joined(again).generation == 2


def test_unknown_stale_and_incompatible_members_are_rejected() -> None:
    driver = Driver()
    leader, _ = driver.stable()
    assert driver.heartbeat("nobody") is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(leader, generation=7) is ErrorCode.ILLEGAL_GENERATION
    assert driver.joined(driver.join("nobody")).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.joined(driver.join(protocol_type="connect")).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.joined(driver.join(speaks=["sticky"])).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.synced(driver.sync("nobody")).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.synced(driver.sync(leader, generation=7)).error is ErrorCode.ILLEGAL_GENERATION
    wrong = driver.sync(leader, protocol_name="sticky")
    assert driver.synced(wrong).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    wrong = driver.sync(leader, protocol_type="connect")
    assert driver.synced(wrong).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.group.state is GroupState.STABLE


@pytest.mark.parametrize("fields", [{"protocol_type": ""}, {"protocols": ()}])
def test_the_first_member_must_name_a_protocol(fields: dict[str, object]) -> None:
    driver = Driver()
    assert driver.joined(driver.join(**fields)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_protocol_supported_by_all_with_most_votes_is_chosen() -> None:
    driver = Driver()
    waiters = [driver.join(speaks=names) for names in (["a", "b"], ["b", "a", "c"], ["b", "a"])]
    driver.pass_ms(2 * DELAY_MS)
    assert {driver.joined(waiter).protocol_name for waiter in waiters} == {"b"}


def test_a_member_that_changes_its_metadata_starts_a_rebalance() -> None:
    driver = Driver()
    _, follower = driver.stable()
    same = driver.join(follower)
    assert driver.joined(same).generation == 1
    assert not driver.joined(same).members
    driver.join(follower, protocols=protocols("range", topics=["other"]))
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_a_leader_that_rejoins_starts_a_rebalance() -> None:
    driver = Driver()
    leader, follower = driver.stable()
    again = driver.join(leader)
    assert driver.heartbeat(follower) is ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.synced(driver.sync(follower)).error is ErrorCode.REBALANCE_IN_PROGRESS
    driver.join(follower)
    assert driver.joined(again).generation == 2


def test_a_repeated_join_gets_the_same_response() -> None:
    driver = Driver()
    waiter = driver.join()
    driver.pass_ms(DELAY_MS)
    leader = driver.joined(waiter).member_id
    assert driver.joined(driver.join(leader)) == driver.joined(waiter)


def test_a_member_that_does_not_rejoin_in_time_is_removed() -> None:
    driver = Driver()
    leader, late = driver.stable(session_timeout_ms=2 * REBALANCE_MS)
    again = driver.join(leader, session_timeout_ms=2 * REBALANCE_MS)
    driver.join(session_timeout_ms=2 * REBALANCE_MS)
    driver.pass_ms(REBALANCE_MS)
    assert late not in driver.group.members
    assert driver.joined(again).generation == 2
    assert driver.joined(driver.join(late)).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_another_member_leads_if_the_leader_does_not_rejoin() -> None:
    driver = Driver()
    _, follower = driver.stable(session_timeout_ms=2 * REBALANCE_MS)
    waiter = driver.join(follower, protocols=protocols("range", topics=["other"]))
    driver.pass_ms(REBALANCE_MS)
    response = driver.joined(waiter)
    assert response.leader == response.member_id == follower
    assert len(response.members) == 1


def test_a_member_that_does_not_sync_in_time_is_removed() -> None:
    driver = Driver()
    first, second = (driver.join(session_timeout_ms=2 * REBALANCE_MS) for _ in range(2))
    driver.pass_ms(2 * DELAY_MS)
    leader, silent = driver.joined(first).member_id, driver.joined(second).member_id
    driver.sync(leader, assignments={leader: b"a"})
    driver.pass_ms(REBALANCE_MS)
    assert silent not in driver.group.members
    assert driver.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS


def test_an_expired_member_is_removed_and_the_others_rebalance() -> None:
    driver = Driver()
    leader, silent = driver.stable()
    driver.pass_ms(SESSION_MS - 1)
    assert driver.heartbeat(leader) is ErrorCode.NONE
    driver.pass_ms(1)
    assert silent not in driver.group.members
    assert driver.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS


def test_an_empty_generation_is_stored_when_the_last_member_expires() -> None:
    driver = Driver()
    driver.stable(1)
    driver.must_store = False
    driver.pass_ms(SESSION_MS)
    assert driver.group.state is GroupState.EMPTY
    (store,) = driver.stores
    assert store.value == StoredGroup(
        protocol_type="consumer", generation=2, protocol=None, leader=None,
        state_since_ms=driver.group.state_since_ms, members=(),
    )  # fmt: skip
    assert driver.group.wake_at_s == NEVER


def test_a_waiting_member_does_not_expire() -> None:
    driver = Driver()
    leader, follower = driver.stable()
    waiting = driver.join(leader)
    for _ in range(5):
        driver.pass_ms(SESSION_MS - 1)
        assert driver.heartbeat(follower) is ErrorCode.REBALANCE_IN_PROGRESS
    assert leader in driver.group.members
    assert waiting not in driver.answers


def test_a_disconnected_waiting_member_expires() -> None:
    driver = Driver()
    leader, follower = driver.stable()
    waiting = driver.join(leader)
    driver.group.forget_waiter(waiting, driver.now)
    driver.pass_ms(SESSION_MS - 1)
    assert leader in driver.group.members
    driver.heartbeat(follower)
    driver.pass_ms(1)
    assert leader not in driver.group.members
    assert waiting not in driver.answers


def test_a_new_member_expires_after_five_minutes_without_a_response() -> None:
    driver = Driver()
    driver.stable(1, rebalance_timeout_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS, session_timeout_ms=10 * REBALANCE_MS)
    waiter = driver.join(rebalance_timeout_ms=2 * NEW_MEMBER_JOIN_TIMEOUT_MS)
    driver.pass_ms(NEW_MEMBER_JOIN_TIMEOUT_MS)
    assert driver.joined(waiter).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_members_that_leave_together_cause_one_rebalance() -> None:
    driver = Driver()
    leader, *others = driver.stable(3)
    assert driver.leave(*others, "nobody") == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    again = driver.join(leader)
    assert driver.joined(again).generation == 2


def test_a_pending_join_is_answered_when_its_member_leaves() -> None:
    driver = Driver()
    _, follower = driver.stable()
    waiting = driver.join(follower, protocols=protocols("range", topics=["other"]))
    assert driver.leave(follower) == [ErrorCode.NONE]
    assert driver.joined(waiting).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_pending_sync_is_answered_when_its_member_leaves() -> None:
    driver = Driver()
    _, second = driver.join(), driver.join()
    driver.pass_ms(2 * DELAY_MS)
    follower = driver.joined(second).member_id
    waiting = driver.sync(follower)
    driver.leave(follower)
    assert driver.synced(waiting).error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("named", [{"client_id": "ü" * 40_000}, {"instance_id": "ü" * 40_000}])
def test_a_member_id_is_short_enough_to_be_sent_and_stored(named: dict[str, str]) -> None:
    driver = Driver(delay_ms=0)
    waiter = driver.join(**named)
    driver.pass_ms(1)
    assert 249 < len(driver.joined(waiter).member_id.encode()) < 1000


def test_a_pending_id_can_leave() -> None:
    driver = Driver()
    told = driver.joined(driver.join(requires_known_member=True))
    assert driver.leave(told.member_id) == [ErrorCode.NONE]
    assert driver.group.pending_count == 0


def test_a_full_group_rejects_new_members() -> None:
    driver = Driver(max_size=2)
    leader, _ = driver.stable()
    assert driver.joined(driver.join()).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert driver.group.state is GroupState.STABLE
    assert driver.heartbeat(leader) is ErrorCode.NONE


def test_the_last_members_of_an_oversized_restored_group_are_rejected() -> None:
    stored = StoredGroup(
        protocol_type="consumer", generation=4, protocol="range", leader="a",
        members=tuple(stored_member(name) for name in "abc"),
    )  # fmt: skip
    driver = Driver(max_size=2)
    driver.group = ClassicGroup.restore("g", stored, Limits(max_size=2, initial_rebalance_delay_ms=0), driver.now)
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    first, second, third = (driver.join(name) for name in "abc")
    assert driver.joined(third).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert driver.joined(first).generation == driver.joined(second).generation == 5


def test_a_restored_group_continues_without_a_rebalance() -> None:
    driver = Driver()
    ids = driver.stable()
    stored = driver.group.generation.snapshot({each: each.encode() for each in ids}, driver.group.state_since_ms)
    driver.group = ClassicGroup.restore("g", stored, Limits(max_size=9, initial_rebalance_delay_ms=0), driver.now)
    assert driver.group.state is GroupState.STABLE
    assert driver.group.generation.is_subscribed("orders")
    assert driver.heartbeat(ids[1]) is ErrorCode.NONE
    assert driver.synced(driver.sync(ids[1])).assignment == ids[1].encode()
    driver.pass_ms(SESSION_MS)
    assert driver.group.state is GroupState.EMPTY


def test_a_stored_group_with_a_duplicate_member_is_malformed() -> None:
    stored = StoredGroup(
        protocol_type="consumer", generation=1, protocol="range", leader="a", members=(stored_member("a"),) * 2
    )
    with pytest.raises(MalformedError):
        ClassicGroup.restore("g", stored, Limits(max_size=9, initial_rebalance_delay_ms=0), NOW)


def stored_member(member_id: str) -> StoredMember:
    return StoredMember(
        member_id=member_id, client_id="c", client_host="/h", rebalance_timeout_ms=REBALANCE_MS,
        session_timeout_ms=SESSION_MS, subscription=subscription("orders"), assignment=b"",
    )  # fmt: skip


# -- commits --


def test_who_may_commit() -> None:
    driver = Driver()

    def commit(member_id: str = "", generation: int = -1, instance_id: str | None = None) -> ErrorCode:
        return driver.group.check_commit(member_id, instance_id, generation, driver.now)

    assert commit() is ErrorCode.NONE, "from outside, while there are no members"
    assert commit("gone", 3) is ErrorCode.UNKNOWN_MEMBER_ID
    waiter = driver.join()
    driver.pass_ms(DELAY_MS)
    leader = driver.joined(waiter).member_id
    assert commit(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    driver.sync(leader, assignments={leader: b""})
    assert commit(leader, 1) is ErrorCode.NONE
    assert commit() is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(leader, 0) is ErrorCode.ILLEGAL_GENERATION
    assert commit(leader) is ErrorCode.ILLEGAL_GENERATION
    assert commit("nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    driver.join(leader)
    assert commit("nobody", 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_commit_extends_the_session() -> None:
    driver = Driver()
    (leader,) = driver.stable(1)
    for _ in range(3):
        driver.pass_ms(SESSION_MS - 1)
        assert driver.group.check_commit(leader, None, 1, driver.now) is ErrorCode.NONE


def test_a_closed_group_answers_waiting_members_and_rejects_requests() -> None:
    driver = Driver()
    leader, _ = driver.stable()
    waiting = driver.join(leader)
    driver.group.close(ErrorCode.NOT_COORDINATOR, driver.now)
    driver.pump()
    assert driver.joined(waiting).error is ErrorCode.NOT_COORDINATOR
    assert driver.joined(driver.join()).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.heartbeat(leader) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.synced(driver.sync(leader)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.group.check_commit(leader, None, 1, driver.now) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_topics_are_unknown_unless_metadata_is_of_the_consumer_protocol() -> None:
    driver = Driver()
    driver.stable(1)
    assert driver.group.generation.is_subscribed("orders")
    assert not driver.group.generation.is_subscribed("other")
    driver = Driver()

    driver.stable(1, protocols=(GroupProtocol(name="range", metadata=b"\0"),))
    assert driver.group.generation.is_subscribed("anything")
    driver = Driver()
    driver.stable(1, protocol_type="connect")
    assert not driver.group.generation.is_subscribed("orders")


def test_of_ids_that_are_handed_out_and_not_used_the_oldest_are_forgotten() -> None:
    driver = Driver()
    ids = [driver.joined(driver.join(requires_known_member=True)).member_id for _ in range(MAX_PENDING_IDS + 1)]
    assert driver.group.pending_count == MAX_PENDING_IDS
    late, in_time = driver.join(ids[0]), driver.join(ids[1])
    assert driver.joined(late).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert in_time not in driver.answers
