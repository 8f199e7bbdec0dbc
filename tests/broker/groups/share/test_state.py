"""Rules of share groups (source: Kafka's GroupMetadataManagerTest, ShareGroupTest, ShareGroupAssignmentBuilderTest)."""

from typing import Any

import pytest

from tests.broker.groups.consumer.driver import flat
from tests.broker.groups.modern.driver import INTERVAL_MS, SESSION_MS, Cluster, topic_id
from tests.broker.groups.share.driver import RETRY_MS, Driver
from warmlog.broker.groups.share.requests import check_request
from warmlog.broker.share.persister import InitialState
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import ShareGroupState
from warmlog.protocol.kafka.consumer_group_records import GroupEpoch, TargetAssignment, TargetEpoch
from warmlog.protocol.kafka.messages.groups.consumer import NamedPartitions
from warmlog.protocol.kafka.messages.share.groups import ShareGroupHeartbeatRequest
from warmlog.protocol.kafka.messages.share.offsets import AlteredTopic, NewStartOffset
from warmlog.protocol.kafka.share_group_records import (
    ShareCurrentKey,
    ShareEpochKey,
    ShareMemberKey,
    ShareMemberMetadata,
    SharePartitionsKey,
    ShareTargetEpochKey,
    ShareTargetKey,
)

ORDERS = topic_id("orders")
ALL = {("orders", partition) for partition in range(4)}


def stable(*members: str, cluster: Cluster | None = None, **limits: int) -> Driver:
    """Return a group whose members have what they are to have."""
    driver = Driver(cluster, **limits)
    for member in members:
        driver.join(member)
    for _ in range(3):
        for member in members:
            driver.beat(member, epoch_of(driver, member))
    return driver


def epoch_of(driver: Driver, member: str) -> int:
    return next(value.epoch for key, value in driver.group.rows() if key == ShareCurrentKey("g", member))  # type: ignore[union-attr]


def states(driver: Driver) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]], list[str]]:
    """Return the initializing and the initialized partitions, and the topics that are being deleted."""
    value = driver.group.partition_states.value
    named = [{each.topic: each.partitions for each in one} for one in (value.initializing, value.initialized)]
    return named[0], named[1], [each.topic for each in value.deleting]


# -- what a request must have --


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"member_id": ""}, "MemberId can't be empty."),
        ({"member_id": " "}, "MemberId can't be empty."),
        ({"member_id": "m" * 37}, "Invalid member id in the request."),
        ({"group": ""}, "GroupId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"topics": None}, "SubscribedTopicNames must be set in first request."),
        ({"topics": ()}, "SubscribedTopicNames must be set in first request."),
        ({"member_epoch": -2}, "MemberEpoch is invalid."),
        ({"member_epoch": 1, "topics": None}, None),
        ({"member_epoch": -1, "topics": None}, None),
        ({"member_id": "m" * 36}, None),
        ({}, None),
    ],
)
def test_a_request_is_checked_before_its_group(fields: dict[str, Any], message: str | None) -> None:
    given = {"group": "g", "member_id": "m", "member_epoch": 0, "topics": ("orders",), **fields}
    assert check_request(ShareGroupHeartbeatRequest(**given)) == message


# -- joining --


def test_a_first_member_gets_nothing_until_the_states_of_its_partitions_are_initialized() -> None:
    driver = Driver(auto=False)
    waiter = driver.join("a")
    driver.finish_assign()
    while driver.stores:
        driver.store()
    answer = driver.answers[waiter]
    assert (answer.member_epoch, flat(answer.assignment)) == (2, set())
    assert states(driver) == ({"orders": (0, 1, 2, 3)}, {}, [])
    (initialize,) = driver.initializes
    assert tuple(initialize.states()) == tuple(InitialState(ORDERS, partition, 2, -1) for partition in range(4))
    driver.auto = True
    driver.finish_initialize()
    assert states(driver) == ({}, {"orders": (0, 1, 2, 3)}, [])
    answer = driver.beat("a", 2)
    assert (answer.member_epoch, flat(answer.assignment)) == (3, ALL)
    assert answer.heartbeat_interval_ms == INTERVAL_MS


def test_the_records_of_a_join_are_kafkas() -> None:
    driver = stable("a", cluster=Cluster(orders=1))
    log = driver.log
    assert [type(key) for key, _ in log[:3]] == [ShareMemberKey, ShareEpochKey, SharePartitionsKey]
    latest = dict(log)
    assert latest[ShareMemberKey("g", "a")] == ShareMemberMetadata(
        client_id="c", client_host="/127.0.0.1", topics=("orders",)
    )
    epoch, target = latest[ShareEpochKey("g")], latest[ShareTargetEpochKey("g")]
    assert isinstance(epoch, GroupEpoch)
    assert isinstance(target, TargetEpoch)
    assert (epoch.epoch, target.epoch, target.timestamp_ms) == (3, 3, driver.now.wall_ms)
    assert isinstance(latest[ShareTargetKey("g", "a")], TargetAssignment)
    named = NamedPartitions(topic_id=ORDERS, topic="orders", partitions=(0,))
    assert driver.group.partition_states.value.initialized == (named,)


def test_a_subscription_to_a_topic_that_does_not_exist_is_served_once_it_is_created() -> None:
    driver = Driver(Cluster())
    assert flat(driver.joined("a").assignment) == set()
    assert not driver.begun
    driver.change("orders", 2)
    assert driver.beat("a", 2).member_epoch == 3
    answer = driver.beat("a", 3)
    assert (answer.member_epoch, flat(answer.assignment)) == (4, {("orders", 0), ("orders", 1)})


def test_a_second_member_shares_the_partitions() -> None:
    driver = stable("a")
    assert flat(driver.joined("b").assignment) == {("orders", 2), ("orders", 3)}
    assert flat(driver.beat("a", 3).assignment) == {("orders", 0), ("orders", 1)}


def test_more_members_than_partitions_share_them() -> None:
    driver = stable("a", "b", "c", cluster=Cluster(orders=1))
    for member in ("a", "b", "c"):
        assert flat(driver.beat(member, epoch_of(driver, member), topics=("orders",)).assignment) == {("orders", 0)}


def test_a_full_group_refuses_new_members_only() -> None:
    driver = stable("a", max_size=1)
    answer = driver.joined("b")
    assert answer.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert answer.message == "The share group has reached its maximum capacity of 1 members."
    assert driver.beat("a", 3).error is ErrorCode.NONE
    assert driver.joined("a").error is ErrorCode.NONE


def test_a_new_member_within_the_interval_waits_for_its_part() -> None:
    driver = stable("a", assignment_interval_ms=0)
    driver.limits = driver.group.limits = type(driver.limits)(
        **{name: getattr(driver.limits, name) for name in driver.limits.__slots__ if name != "assignment_interval_ms"},
        assignment_interval_ms=1000,
    )
    answer = driver.joined("b")
    assert (answer.member_epoch, flat(answer.assignment)) == (3, set())
    driver.pass_ms(1000)
    answer = driver.beat("b", 3)
    assert (answer.member_epoch, flat(answer.assignment)) == (4, {("orders", 2), ("orders", 3)})


# -- epochs --


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (3, ErrorCode.NONE),
        (2, ErrorCode.NONE),  # the previous one: the last response may be lost
        (1, ErrorCode.FENCED_MEMBER_EPOCH),
        (4, ErrorCode.FENCED_MEMBER_EPOCH),
        (0, ErrorCode.NONE),  # it joins again
    ],
)
def test_a_members_epoch_is_checked(epoch: int, error: ErrorCode) -> None:
    driver = stable("a")
    before = driver.group.rows()
    answer = driver.beat("a", epoch, topics=("orders",))
    assert answer.error is error
    assert driver.group.rows() == before
    if error is ErrorCode.NONE:
        assert (answer.member_epoch, flat(answer.assignment)) == (3, ALL)


def test_an_unknown_member_is_refused() -> None:
    driver = stable("a")
    assert driver.beat("b", 3).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.beat("b", -1).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_assignment_is_sent_when_it_changes_or_is_asked_for() -> None:
    driver = stable("a")
    assert driver.beat("a", 3).assignment is None
    assert flat(driver.beat("a", 3, topics=("orders",)).assignment) == ALL
    driver.join("b")
    assert flat(driver.beat("a", 3).assignment) == {("orders", 0), ("orders", 1)}
    assert driver.beat("a", 4).assignment is None


# -- changes --


def test_another_subscription_raises_the_epoch() -> None:
    driver = stable("a", cluster=Cluster(orders=1, payments=1))
    answer = driver.beat("a", 3, topics=("payments",))
    assert (answer.member_epoch, flat(answer.assignment)) == (4, set())
    assert flat(driver.beat("a", 4).assignment) == {("payments", 0)}
    assert states(driver) == ({}, {"orders": (0,), "payments": (0,)}, [])


def test_a_member_gives_up_what_it_does_not_subscribe_to_before_the_next_assignment() -> None:
    driver = stable("a", cluster=Cluster(orders=1, payments=1))
    driver.joined("b", "orders", "payments")
    limits = {name: getattr(driver.limits, name) for name in driver.limits.__slots__}
    driver.group.limits = type(driver.limits)(**{**limits, "assignment_interval_ms": 1000})
    answer = driver.beat("a", epoch_of(driver, "a"), topics=("payments",))
    assert flat(answer.assignment) == set()


def test_another_rack_or_order_of_topics_does_not_raise_the_epoch() -> None:
    driver = Driver(Cluster(orders=1, payments=1))
    driver.join("a", "orders", "payments")
    driver.beat("a", 2)
    answer = driver.beat("a", 3, topics=("payments", "orders", "orders"), rack_id="r")
    assert answer.member_epoch == 3
    assert driver.group.members["a"].rack_id == "r"
    assert driver.beat("a", 3).member_epoch == 3
    assert driver.group.members["a"].rack_id == "r"


def test_added_partitions_start_at_their_first_offset() -> None:
    driver = stable("a", cluster=Cluster(orders=1))
    driver.change("orders", 3)
    assert flat(driver.beat("a", 3, topics=("orders",)).assignment) == {("orders", 0)}
    assert driver.begun[-1] == (InitialState(ORDERS, 1, 4, 0), InitialState(ORDERS, 2, 4, 0))
    assert flat(driver.beat("a", 4).assignment) == {("orders", 0), ("orders", 1), ("orders", 2)}


def test_partitions_that_are_added_during_the_first_initialization_start_at_their_first_offset_too() -> None:
    driver = Driver(Cluster(orders=1), auto=False)
    driver.join("a")
    driver.finish_assign()
    while driver.stores:
        driver.store()
    driver.change("orders", 2)
    driver.auto = True
    driver.initializes.clear()
    driver.beat("a", 2)
    assert driver.begun == [(InitialState(ORDERS, 0, 2, -1),), (InitialState(ORDERS, 1, 3, 0),)]


def test_a_deleted_topic_is_forgotten() -> None:
    driver = stable("a", cluster=Cluster(orders=1, payments=1))
    driver.beat("a", 3, topics=("orders", "payments"))
    driver.beat("a", 4)
    driver.change("orders", 0)
    assert states(driver) == ({}, {"payments": (0,)}, [])
    answer = driver.beat("a", 5)
    assert (answer.member_epoch, flat(answer.assignment)) == (6, {("payments", 0)})
    for _ in range(2):
        assert driver.beat("a", 6).member_epoch == 6


def test_a_deletion_that_no_coordinator_saw_does_not_raise_the_epoch_for_ever() -> None:
    driver = stable("a")
    driver.cluster.delete("orders")
    group = driver.group = driver.restarted()
    assert driver.beat("a", 3).member_epoch == 4
    assert driver.beat("a", 4).member_epoch == 4
    assert group.epoch == 4


# -- the initialization of states --


def test_a_failed_initialization_begins_again_with_the_next_heartbeat() -> None:
    driver = Driver(auto=False)
    driver.join("a")
    driver.finish_assign()
    while driver.stores:
        driver.store()
    driver.finish_initialize(fails=True)
    driver.store()
    assert states(driver) == ({}, {}, [])
    driver.auto = True
    driver.beat("a", 2)
    assert states(driver) == ({}, {"orders": (0, 1, 2, 3)}, [])
    assert driver.begun[0] == driver.begun[1]


def test_an_initialization_without_an_outcome_is_repeated_after_a_while() -> None:
    driver = Driver(auto=False)
    driver.join("a")
    driver.finish_assign()
    while driver.stores:
        driver.store()
    driver.initializes.clear()  # it is lost
    driver.auto = True
    driver.pass_ms(RETRY_MS - 1)
    driver.beat("a", 2)
    assert len(driver.begun) == 1
    driver.pass_ms(1)
    driver.beat("a", 2)
    assert driver.begun[0] == driver.begun[1]
    assert flat(driver.beat("a", 2).assignment) == ALL


def test_another_coordinator_waits_before_it_repeats_an_initialization() -> None:
    driver = Driver(auto=False)
    driver.join("a")
    driver.finish_assign()
    while driver.stores:
        driver.store()
    driver.initializes.clear()
    driver.group = driver.restarted()
    driver.auto = True
    driver.beat("a", 2)
    assert len(driver.begun) == 1
    driver.pass_ms(RETRY_MS)
    driver.beat("a", 2)
    assert len(driver.begun) == 2


def test_an_initialization_is_begun_once_its_record_is_stored() -> None:
    driver = Driver(auto=False)
    driver.join("a")
    driver.finish_assign()
    assert not driver.initializes
    driver.store(ErrorCode.NOT_COORDINATOR)
    assert not driver.initializes
    assert states(driver) == ({}, {}, [])


def test_an_outcome_that_comes_after_the_topics_deletion_is_disregarded() -> None:
    driver = Driver(auto=False)
    driver.join("a")
    driver.finish_assign()
    while driver.stores:
        driver.store()
    driver.change("orders", 0)
    driver.finish_initialize()
    assert states(driver) == ({}, {}, [])


# -- changes of offsets --


def test_states_that_are_created_again_are_not_deleted_any_more() -> None:
    driver = stable("a", cluster=Cluster(orders=1))
    driver.beat("a", -1)
    deletion = driver.group.offsets.delete(["orders", "missing"], driver.cluster, 1000)
    driver.settle()
    assert deletion.partitions == [(ORDERS, 0)]
    assert [each.topic for each in driver.answers[1000].topics] == ["missing"]
    assert states(driver) == ({}, {}, ["orders"])
    driver.joined("a")
    assert states(driver) == ({}, {"orders": (0,)}, [])


def test_a_deletion_that_was_interrupted_is_repeated_with_the_group() -> None:
    driver = stable("a", cluster=Cluster(orders=2, payments=1))
    driver.beat("a", -1)
    driver.group.offsets.delete(["orders"], driver.cluster, 1000)
    altered = AlteredTopic(topic="payments", partitions=(NewStartOffset(partition=0, start_offset=7),))
    (state,) = driver.group.offsets.alter([altered], driver.cluster, 1001, driver.now.wall_ms)
    assert state == InitialState(topic_id("payments"), 0, driver.group.epoch, 7)
    deletion = driver.group.offsets.delete_all(driver.cluster, 1002)
    driver.settle()
    assert deletion.partitions == [(ORDERS, 0), (ORDERS, 1), (topic_id("payments"), 0)]
    assert states(driver) == ({}, {}, ["orders", "payments"])
    driver.group.offsets.deleted(deletion.topics, 1003)
    driver.settle()
    assert states(driver) == ({}, {}, [])


# -- the end of memberships --


def test_a_member_that_leaves_is_answered_with_its_epoch() -> None:
    driver = stable("a", "b")
    answer = driver.beat("b", -1)
    assert (answer.error, answer.member_id, answer.member_epoch) == (ErrorCode.NONE, "b", -1)
    assert [key for key, value in driver.log[-4:] if value is None] == [
        ShareCurrentKey("g", "b"),
        ShareTargetKey("g", "b"),
        ShareMemberKey("g", "b"),
    ]
    assert flat(driver.beat("a", epoch_of(driver, "a")).assignment) == ALL


def test_the_target_of_an_empty_group_is_of_its_epoch() -> None:
    driver = stable("a", assignment_interval_ms=1000)
    driver.beat("a", -1)
    assert driver.group.state is ShareGroupState.EMPTY
    assert driver.log[-1] == (ShareTargetEpochKey("g"), TargetEpoch(epoch=driver.group.epoch))
    assert flat(driver.joined("b").assignment) == ALL, "no interval has to pass"


def test_a_silent_member_is_removed_at_the_end_of_its_session() -> None:
    driver = stable("a", "b")
    driver.pass_ms(SESSION_MS - 1)
    driver.beat("a", epoch_of(driver, "a"))
    driver.pass_ms(1)
    assert [*driver.group.members] == ["a"]
    driver.pass_ms(SESSION_MS)
    assert driver.group.is_empty


def test_a_member_that_left_while_its_heartbeat_was_parked_is_unknown() -> None:
    driver = stable("a")
    driver.auto = False
    waiter = driver.join("b")
    driver.store()
    driver.heartbeat("b", -1)
    driver.finish_assign()
    assert driver.answers[waiter].error is ErrorCode.UNKNOWN_MEMBER_ID


# -- failures and restarts --


def test_what_could_not_be_stored_is_undone() -> None:
    driver = stable("a")
    before = driver.group.rows()
    driver.auto = False
    waiter = driver.join("b")
    driver.store(ErrorCode.NOT_COORDINATOR)
    assert driver.answers[waiter].error is ErrorCode.NOT_COORDINATOR
    assert driver.group.rows() == before


def test_a_failed_assignment_is_answered_and_computed_again() -> None:
    driver = stable("a")
    driver.auto = False
    waiter = driver.join("b")
    driver.store()
    driver.finish_assign(fails=True)
    assert driver.answers[waiter].error is ErrorCode.UNKNOWN_SERVER_ERROR
    driver.auto = True
    assert flat(driver.beat("b", 0, topics=("orders",)).assignment) == {("orders", 2), ("orders", 3)}


def test_a_restarted_group_is_the_same() -> None:
    driver = stable("a", "b")
    restarted = driver.restarted()
    assert sorted(map(repr, restarted.rows())) == sorted(map(repr, driver.group.rows()))
    assert restarted.state is ShareGroupState.STABLE
    driver.group = restarted
    assert driver.beat("a", epoch_of(driver, "a")).error is ErrorCode.NONE


def test_a_closed_group_answers_and_refuses() -> None:
    driver = stable("a")
    driver.auto = False
    waiter = driver.join("b")
    driver.group.close(ErrorCode.NOT_COORDINATOR, driver.now)
    driver.take()
    assert driver.answers[waiter].error is ErrorCode.NOT_COORDINATOR
    assert driver.beat("a", 3).error is ErrorCode.NOT_COORDINATOR
    assert driver.group.state is ShareGroupState.DEAD
