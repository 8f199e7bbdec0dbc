"""Members of the classic protocol in a consumer group.

After Kafka's GroupMetadataManagerTest (testJoiningConsumerGroup*, testClassicGroupSyncToConsumerGroup*,
testClassicGroupHeartbeatToConsumerGroup*, testConsumerGroup*Downgrade*).
"""

from typing import Any

import pytest

from tests.broker.groups.consumer.driver import Driver, partitions
from tests.broker.groups.modern.driver import REBALANCE_MS, Cluster, topic_id
from tests.broker.groups.requests import SESSION_MS, join_request
from warmlog.broker.groups.consumer.effects import ClassicMember
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    GroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeavingMember,
    PartitionEntry,
    SyncGroupResponse,
)
from warmlog.protocol.kafka.consumer_group_records import (
    ClassicMember as DeclaredClassic,
)
from warmlog.protocol.kafka.consumer_group_records import (
    CurrentKey,
    EpochKey,
    MemberKey,
    MemberMetadata,
    TargetEpochKey,
    TargetKey,
)
from warmlog.protocol.kafka.consumer_protocol import Subscription, decode_assignment, encode_subscription

GENERATION = 5
ALL = {0, 1, 2, 3}


def speaking(*names: str, owned: set[int] | None = None, topics: tuple[str, ...] = ("orders",)) -> Any:
    entries = tuple(PartitionEntry(topic="orders", partition=each) for each in sorted(owned or ()))
    metadata = encode_subscription(Subscription(topics=topics, owned=entries))
    return tuple(GroupProtocol(name=name, metadata=metadata) for name in names)


def joining(member_id: str = "", *names: str, **fields: Any) -> JoinGroupRequest:
    request = {name: fields.pop(name) for name in ("owned", "topics") if name in fields}
    given = {"protocols": speaking(*names or ("range",), **request), "rebalance_timeout_ms": REBALANCE_MS}
    return join_request(member_id, **{**given, **fields})


def member(instance_id: str | None = None, *names: str) -> MemberMetadata:
    return MemberMetadata(
        instance_id=instance_id,
        client_id="c",
        client_host="/127.0.0.1",
        topics=("orders",),
        regex="",
        rebalance_timeout_ms=REBALANCE_MS,
        classic=DeclaredClassic(session_timeout_ms=SESSION_MS, protocols=speaking(*names or ("range",))),
    )


def upgraded(*, instance_id: str | None = None, **limits: Any) -> Driver:
    """Return a group with a classic member "a" that has all partitions, and a member "b" that has just joined."""
    driver = Driver(**limits)
    held = {topic_id("orders"): frozenset(ALL)}
    driver.group.upgrade(GENERATION, {"a": ClassicMember(member(instance_id), held)}, driver.cluster, driver.now)
    assert driver.joined("b").member_epoch == GENERATION + 1
    return driver


def taken(response: SyncGroupResponse) -> set[int]:
    assert response.error is ErrorCode.NONE
    return {each.partition for each in decode_assignment(response.assignment).partitions}


def answered(driver: Driver, request: JoinGroupRequest) -> JoinGroupResponse:
    response: JoinGroupResponse = driver.answers[driver.ask_to_join(request)]
    return response


def catch_up(driver: Driver, member_id: str, *, owned: set[int]) -> tuple[int, set[int]]:
    """Join again and sync; return the generation and the partitions."""
    response = answered(driver, joining(member_id, owned=owned))
    assert response.error is ErrorCode.NONE
    synced = driver.sync(member_id, response.generation, protocol_type="consumer", protocol_name="range")
    return response.generation, taken(synced)


def test_the_records_of_a_conversion_are_in_kafkas_order_before_those_of_the_heartbeat() -> None:
    driver = upgraded()
    kinds = [type(key) for key, _ in driver.log]
    assert kinds[:5] == [MemberKey, EpochKey, TargetKey, TargetEpochKey, CurrentKey]
    assert driver.restarted().state == driver.group.state
    assert {each.instance_id for each in driver.restarted().members.values()} == {None}


def test_a_member_gives_up_partitions_before_it_enters_the_next_epoch() -> None:
    driver = upgraded()
    assert driver.classic_beat("a", GENERATION) is ErrorCode.REBALANCE_IN_PROGRESS
    generation, kept = catch_up(driver, "a", owned=ALL)
    assert (generation, len(kept)) == (GENERATION, 2)
    assert driver.classic_beat("a", GENERATION) is ErrorCode.REBALANCE_IN_PROGRESS
    assert catch_up(driver, "a", owned=kept) == (GENERATION + 1, kept)
    assert driver.classic_beat("a", GENERATION + 1) is ErrorCode.NONE


def test_a_member_that_owns_nothing_enters_the_next_epoch_at_once() -> None:
    driver = upgraded()
    generation, kept = catch_up(driver, "a", owned=set())
    assert (generation, len(kept)) == (GENERATION + 1, 2)


def test_a_member_is_asked_to_join_once_what_it_waits_for_is_free() -> None:
    driver = Driver()
    epoch = driver.joined("b").member_epoch
    assert answered(driver, joining("a")).generation == epoch + 1
    assert taken(driver.sync("a", epoch + 1)) == set()
    assert driver.classic_beat("a", epoch + 1) is ErrorCode.NONE  # b still has everything
    driver.beat("b", epoch, owned=partitions(orders=ALL))
    driver.beat("b", epoch, owned=partitions(orders=[2, 3]))
    driver.beat("b", epoch, owned=partitions(orders=[0, 1]))
    assert driver.classic_beat("a", epoch + 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert len(catch_up(driver, "a", owned=set())[1]) == 2


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        pytest.param(joining("", "roundrobin"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL, id="another protocol"),
        pytest.param(joining("", protocols=()), ErrorCode.INCONSISTENT_GROUP_PROTOCOL, id="no protocol"),
        pytest.param(joining("", protocol_type="connect"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL, id="another type"),
        pytest.param(joining("", requires_known_member=True), ErrorCode.MEMBER_ID_REQUIRED, id="without an id"),
        pytest.param(joining("", "roundrobin", "range"), ErrorCode.NONE, id="one of two protocols"),
        pytest.param(joining("new"), ErrorCode.NONE, id="with an id of its own"),
        pytest.param(joining("x", instance_id="one"), ErrorCode.FENCED_INSTANCE_ID, id="instance of another"),
        pytest.param(joining("x", instance_id="two"), ErrorCode.UNKNOWN_MEMBER_ID, id="unknown instance"),
        pytest.param(joining("a", instance_id="one"), ErrorCode.NONE, id="its instance"),
        pytest.param(joining("", instance_id="one"), ErrorCode.NONE, id="a restarted instance"),
        pytest.param(
            joining("", protocols=(GroupProtocol(name="range", metadata=b"\0"),)),
            ErrorCode.UNKNOWN_SERVER_ERROR,
            id="a subscription that is not one",
        ),
    ],
)
def test_who_may_join(request_: JoinGroupRequest, error: ErrorCode) -> None:
    response = answered(upgraded(instance_id="one"), request_)
    assert response.error is error
    assert bool(response.member_id) is (error in {ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED})


def test_a_full_group_takes_known_members_only() -> None:
    driver = upgraded(max_size=2)
    assert answered(driver, joining("c")).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert answered(driver, joining("a")).error is ErrorCode.NONE


@pytest.mark.parametrize(
    ("member_id", "generation", "fields", "error"),
    [
        ("a", GENERATION, {}, ErrorCode.NONE),
        ("a", GENERATION, {"protocol_type": "consumer", "protocol_name": "range"}, ErrorCode.NONE),
        ("a", GENERATION, {"instance_id": "one"}, ErrorCode.NONE),
        ("a", GENERATION, {"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("a", GENERATION, {"protocol_name": "roundrobin"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("a", GENERATION - 1, {}, ErrorCode.ILLEGAL_GENERATION),
        ("a", GENERATION + 1, {}, ErrorCode.ILLEGAL_GENERATION),
        ("x", GENERATION, {}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("x", GENERATION, {"instance_id": "one"}, ErrorCode.FENCED_INSTANCE_ID),
        ("a", GENERATION, {"instance_id": "two"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("b", GENERATION + 1, {}, ErrorCode.UNKNOWN_MEMBER_ID),  # of the consumer protocol
    ],
)
def test_who_may_sync(member_id: str, generation: int, fields: dict[str, Any], error: ErrorCode) -> None:
    driver = upgraded(instance_id="one")
    answered(driver, joining("a", owned=ALL, instance_id="one"))  # it has to give up partitions in its epoch
    assert driver.sync(member_id, generation, **fields).error is error


def test_a_member_that_has_not_joined_the_next_epoch_does_not_sync() -> None:
    assert upgraded().sync("a", GENERATION).error is ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize(
    ("member_id", "generation", "instance_id", "error"),
    [
        ("a", GENERATION, None, ErrorCode.REBALANCE_IN_PROGRESS),
        ("a", GENERATION + 1, None, ErrorCode.ILLEGAL_GENERATION),
        ("a", GENERATION, "two", ErrorCode.UNKNOWN_MEMBER_ID),
        ("x", GENERATION, "one", ErrorCode.FENCED_INSTANCE_ID),
        ("x", GENERATION, None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("b", GENERATION + 1, None, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_may_send_heartbeats(member_id: str, generation: int, instance_id: str | None, error: ErrorCode) -> None:
    assert upgraded(instance_id="one").classic_beat(member_id, generation, instance_id) is error


def test_members_leave_by_id_and_by_instance() -> None:
    driver = upgraded(instance_id="one")
    answered(driver, joining("c"))
    waiter = driver.leave_group(
        LeavingMember(member_id="x"),
        LeavingMember(member_id="a", instance_id="two"),
        LeavingMember(member_id="x", instance_id="one"),
        LeavingMember(instance_id="one"),
        LeavingMember(member_id="c"),
        LeavingMember(member_id="c"),
    )
    assert [each.error for each in driver.answers[waiter].members] == [
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.NONE,
    ]
    assert list(driver.group.members) == ["b"]
    assert not driver.downgrades


# -- deadlines --


def test_a_classic_member_has_its_own_session_timeout() -> None:
    driver = upgraded()
    driver.pass_ms(SESSION_MS - 1)
    assert list(driver.group.members) == ["a", "b"]
    driver.pass_ms(1)
    assert list(driver.group.members) == ["b"]


def test_a_member_that_does_not_join_in_time_is_removed_although_it_sends_heartbeats() -> None:
    driver = upgraded(session_timeout_ms=10 * REBALANCE_MS)
    for _ in range(REBALANCE_MS // 5000):
        assert driver.classic_beat("a", GENERATION) is ErrorCode.REBALANCE_IN_PROGRESS
        driver.pass_ms(5000)
    assert list(driver.group.members) == ["b"]


def test_a_member_that_does_not_sync_in_time_is_removed() -> None:
    driver = upgraded(session_timeout_ms=10 * REBALANCE_MS)
    generation = answered(driver, joining("a")).generation
    for _ in range(REBALANCE_MS // 5000):
        assert driver.classic_beat("a", generation) is ErrorCode.NONE
        driver.pass_ms(5000)
    assert list(driver.group.members) == ["b"]


def test_a_member_that_has_joined_and_synced_stays() -> None:
    driver = upgraded(session_timeout_ms=10 * REBALANCE_MS)
    generation, _ = catch_up(driver, "a", owned=set())
    for _ in range(2 * REBALANCE_MS // 5000):
        assert driver.classic_beat("a", generation) is ErrorCode.NONE
        driver.pass_ms(5000)
    assert list(driver.group.members) == ["a", "b"]


# -- back to the classic protocol --


@pytest.mark.parametrize(
    ("limits", "is_downgraded"),
    [
        ({}, True),
        ({"may_downgrade": False}, False),
        ({"classic_max_size": 1}, True),
        ({"classic_max_size": 0}, False),
    ],
)
def test_when_the_last_member_of_the_consumer_protocol_leaves(limits: dict[str, Any], *, is_downgraded: bool) -> None:
    driver = upgraded(**limits)
    assert driver.leave("b").error is ErrorCode.NONE
    assert bool(driver.downgrades) is is_downgraded
    if is_downgraded:
        (downgrade,) = driver.downgrades
        assert (downgrade.generation, list(downgrade.members), downgrade.rebalances) == (GENERATION + 1, ["a"], True)
        assert len(downgrade.members["a"].assignment[topic_id("orders")]) == 2
        assert not driver.restarted().members
    else:
        assert list(driver.group.members) == ["a"]


def test_when_the_last_member_of_the_consumer_protocol_expires() -> None:
    driver = upgraded(session_timeout_ms=SESSION_MS // 2)
    driver.pass_ms(SESSION_MS // 2)
    assert [list(each.members) for each in driver.downgrades] == [["a"]]


def test_a_group_without_members_stays_a_consumer_group() -> None:
    driver = Driver()
    driver.joined("b")
    driver.leave("b")
    assert not driver.downgrades


@pytest.mark.parametrize("topics", [("orders",), ("orders", "other")])
def test_a_static_member_of_the_classic_protocol_takes_the_last_others_place(topics: tuple[str, ...]) -> None:
    driver = Driver(Cluster(orders=4, other=1))
    driver.joined("b", instance_id="one")
    response = answered(driver, joining("", instance_id="one", topics=topics))
    (downgrade,) = driver.downgrades
    assert list(downgrade.members) == [response.member_id]
    assert downgrade.members[response.member_id].assignment == {topic_id("orders"): frozenset(ALL)}
    assert downgrade.rebalances is (topics != ("orders",))
    assert response.generation == downgrade.generation == driver.group.epoch


def test_requests_are_refused_while_a_downgrade_is_being_stored() -> None:
    driver = upgraded()
    driver.auto = False
    leaving = driver.heartbeat("b", -1)
    assert leaving not in driver.answers
    assert driver.beat("b", GENERATION + 1).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert answered(driver, joining("a")).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert driver.classic_beat("a", GENERATION) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    driver.pass_ms(SESSION_MS)
    driver.store()
    assert driver.answers[leaving].error is ErrorCode.NONE
    assert len(driver.downgrades) == 1


def test_a_downgrade_that_cannot_be_stored_leaves_the_group_as_it_was() -> None:
    driver = upgraded()
    before = driver.group.rows()
    driver.auto = False
    leaving = driver.heartbeat("b", -1)
    driver.store(ErrorCode.COORDINATOR_NOT_AVAILABLE, written=True)
    driver.store()  # what may be in the log is corrected
    assert driver.answers[leaving].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.group.rows() == before
    assert sorted(map(repr, driver.restarted().rows())) == sorted(map(repr, before))
    driver.auto = True
    assert driver.beat("b", GENERATION + 1).error is ErrorCode.NONE
    assert driver.leave("b").error is ErrorCode.NONE


def test_a_join_that_waits_for_the_target_begins_again_after_a_downgrade() -> None:
    driver = upgraded()
    driver.auto = False
    waiting = driver.ask_to_join(joining("c"))
    driver.store()
    driver.heartbeat("b", -1)
    assert driver.answers[waiting].error is ErrorCode.REBALANCE_IN_PROGRESS
    driver.store()
    driver.finish_assign()
    assert [list(each.members) for each in driver.downgrades] == [["a", "c"]]


def test_a_conversion_that_cannot_be_stored_leaves_nothing() -> None:
    driver = Driver(auto=False)
    held = {topic_id("orders"): frozenset(ALL)}
    driver.group.upgrade(GENERATION, {"a": ClassicMember(member(), held)}, driver.cluster, driver.now)
    assert not driver.group.is_stored
    waiter = driver.join("b")
    assert driver.group.is_stored
    driver.group.stored(driver.stores.pop(0).ticket, ErrorCode.COORDINATOR_NOT_AVAILABLE, driver.now)
    assert not driver.group.is_stored
    assert CurrentKey("g", "a") in driver.group.abandon()
    driver.take()
    assert driver.answers[waiter].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not driver.stores
