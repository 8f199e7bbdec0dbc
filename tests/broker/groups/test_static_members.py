"""Static members in the group's state machine: restarts, fencing, and rebalances that they miss."""

import pytest

from tests.broker.groups.requests import DELAY_MS, REBALANCE_MS, SESSION_MS, Driver
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import GroupState, LeavingMember


def static_pair(driver: Driver) -> tuple[str, str]:
    waiters = [driver.join(instance_id=name) for name in ("one", "two")]
    driver.pass_ms(2 * DELAY_MS)
    leader, follower = (driver.joined(waiter).member_id for waiter in waiters)
    driver.sync(leader, assignments={leader: b"a", follower: b"b"})
    driver.sync(follower)
    return leader, follower


def test_a_restarted_static_member_keeps_its_assignment_without_a_rebalance() -> None:
    driver = Driver()
    _, follower = static_pair(driver)
    answer = driver.joined(driver.join(instance_id="two"))
    assert answer.generation == 1
    assert answer.member_id != follower
    assert not answer.skip_assignment
    assert driver.synced(driver.sync(answer.member_id, instance_id="two")).assignment == b"b"
    assert driver.group.state is GroupState.STABLE


def test_the_old_id_of_a_restarted_static_member_is_fenced() -> None:
    driver = Driver()
    _, follower = static_pair(driver)
    driver.join(instance_id="two")
    assert driver.heartbeat(follower, instance_id="two") is ErrorCode.FENCED_INSTANCE_ID
    assert driver.synced(driver.sync(follower, instance_id="two")).error is ErrorCode.FENCED_INSTANCE_ID
    assert driver.joined(driver.join(follower, instance_id="two")).error is ErrorCode.FENCED_INSTANCE_ID
    assert driver.leave(follower, instance_id="two") == [ErrorCode.FENCED_INSTANCE_ID]
    committed = driver.group.check_commit(follower, "two", 1, driver.now)
    assert committed is ErrorCode.FENCED_INSTANCE_ID
    assert driver.heartbeat(follower, instance_id="three") is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("can_skip", [True, False])
def test_a_restarted_static_leader_does_not_assign_again(can_skip: bool) -> None:
    driver = Driver()
    leader, _ = static_pair(driver)
    answer = driver.joined(driver.join(instance_id="one", can_skip_assignment=can_skip))
    assert answer.skip_assignment is can_skip
    assert (answer.leader == answer.member_id) is can_skip
    assert answer.leader == (answer.member_id if can_skip else leader)
    assert len(answer.members) == (2 if can_skip else 0)


def test_a_static_member_keeps_its_old_id_if_the_new_one_was_not_stored() -> None:
    driver = Driver()
    _, follower = static_pair(driver)
    driver.must_store = False
    waiter = driver.join(instance_id="two", speaks=["range", "other"])
    driver.settle_stores(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert driver.joined(waiter).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.heartbeat(follower, instance_id="two") is ErrorCode.NONE
    member = driver.group.members.get(follower)
    assert member is not None
    assert [protocol.name for protocol in member.protocols] == ["range"]


def test_a_restarted_static_member_that_changes_the_protocol_starts_a_rebalance() -> None:
    driver = Driver()
    driver.join(instance_id="one", speaks=["a", "b"])
    driver.pass_ms(DELAY_MS)
    leader = next(iter(driver.group.members)).member_id
    driver.sync(leader, assignments={leader: b"a"})
    waiter = driver.join(instance_id="one", speaks=["b", "a"])
    assert driver.joined(waiter).generation == 2
    assert driver.joined(waiter).protocol_name == "b"


def test_a_static_member_that_restarts_during_a_sync_starts_a_rebalance() -> None:
    driver = Driver()
    waiters = [driver.join(instance_id=name) for name in ("one", "two")]
    driver.pass_ms(2 * DELAY_MS)
    leader = driver.joined(waiters[0]).member_id
    restarted = driver.join(instance_id="two")
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    driver.join(leader, instance_id="one")
    assert driver.joined(restarted).generation == 2


def test_a_static_member_survives_a_rebalance_that_it_misses() -> None:
    driver = Driver()
    waiters = [driver.join(instance_id=name, session_timeout_ms=3 * REBALANCE_MS) for name in ("one", "two")]
    driver.pass_ms(2 * DELAY_MS)
    leader, follower = (driver.joined(waiter).member_id for waiter in waiters)
    driver.sync(leader, assignments={leader: b"a", follower: b"b"})
    driver.sync(follower)
    again = driver.join(leader, instance_id="one", session_timeout_ms=3 * REBALANCE_MS)
    driver.pass_ms(REBALANCE_MS)
    assert len(driver.joined(again).members) == 2
    assert driver.heartbeat(follower, generation=1, instance_id="two") is ErrorCode.ILLEGAL_GENERATION


def test_a_static_member_with_a_zero_rebalance_timeout_does_not_cause_a_busy_loop() -> None:
    # Regression: with a rebalance timeout of 0 or below, the group was due again as soon as it had been expired.
    driver = Driver()
    static, other = driver.join(instance_id="one"), driver.join()
    driver.pass_ms(2 * DELAY_MS)
    leader, follower = (driver.joined(waiter).member_id for waiter in (static, other))
    driver.sync(leader, assignments={}, instance_id="one")
    driver.sync(follower)
    driver.join(instance_id="one", rebalance_timeout_ms=-1)
    driver.leave(follower)
    driver.group.expire(driver.now)
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    assert driver.group.wake_at_s > driver.now.loop_s
    driver.pass_ms(SESSION_MS)
    assert driver.group.state is GroupState.EMPTY


def test_an_administrator_can_remove_a_static_member_by_its_instance_id() -> None:
    driver = Driver()
    static_pair(driver)
    errors = driver.group.leave([LeavingMember(instance_id="two"), LeavingMember(instance_id="no")], driver.now)
    assert errors == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert len(driver.group.members) == 1
