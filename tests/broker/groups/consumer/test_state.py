"""A consumer group's state machine by examples: each of Kafka's rules once, with its error code.

Source: Kafka's GroupMetadataManagerTest (4.4), the part on consumer groups.
"""

from typing import Any

import pytest

from tests.broker.groups.consumer.driver import Driver, flat, partitions
from tests.broker.groups.modern.driver import (
    INTERVAL_MS,
    REBALANCE_MS,
    SESSION_MS,
    START,
    Cluster,
    result_of,
    topic_id,
)
from warmlog.broker.groups.consumer.requests import check_request
from warmlog.broker.groups.consumer.state import ConsumerGroup
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import ConsumerGroupState
from warmlog.protocol.kafka.consumer_group_records import (
    CurrentAssignment,
    CurrentKey,
    EpochKey,
    GroupEpoch,
    HeldPartitions,
    MemberKey,
    MemberMetadata,
    PartitionMetadata,
    PartitionMetadataKey,
    RegexKey,
    TargetAssignment,
    TargetEpoch,
    TargetEpochKey,
    TargetKey,
)
from warmlog.protocol.kafka.messages.groups.consumer import ConsumerGroupHeartbeatRequest

ALL = {("orders", number) for number in range(4)}
JOINING: dict[str, Any] = {"member_id": "a", "topics": ("orders",), "rebalance_timeout_ms": 1000, "owned": ()}


def test_the_first_member_is_assigned_all_partitions() -> None:
    driver = Driver()
    answer = driver.joined("a")
    assert answer.error is ErrorCode.NONE
    assert (answer.member_id, answer.member_epoch) == ("a", 2)
    assert flat(answer.assignment) == {("orders", number) for number in range(4)}
    assert driver.group.state is ConsumerGroupState.STABLE


def test_a_second_member_gets_partitions_once_the_first_has_given_them_up() -> None:
    driver = Driver()
    driver.joined("a")
    second = driver.joined("b")
    assert (second.member_epoch, flat(second.assignment)) == (3, set())
    revoking = driver.beat("a", 2)
    assert (revoking.member_epoch, flat(revoking.assignment)) == (2, {("orders", 0), ("orders", 1)})
    assert driver.group.state is ConsumerGroupState.RECONCILING
    revoked = driver.beat("a", 2, owned=partitions(orders=[0, 1]))
    assert (revoked.member_epoch, revoked.assignment) == (3, None)
    released = driver.beat("b", 3)
    assert flat(released.assignment) == {("orders", 2), ("orders", 3)}
    assert driver.group.state is ConsumerGroupState.STABLE
    assert driver.restarted().rows() == driver.group.rows()


# -- requests --


@pytest.mark.parametrize(
    ("fields", "version", "message"),
    [
        ({**JOINING, "member_id": ""}, 1, "MemberId can't be empty."),
        ({"member_id": " ", "member_epoch": 3}, 0, "MemberId can't be empty."),
        ({"member_id": "", "member_epoch": -1}, 0, "MemberId can't be empty."),
        ({**JOINING, "group": ""}, 1, "GroupId can't be empty."),
        ({**JOINING, "instance_id": ""}, 1, "InstanceId can't be empty."),
        ({**JOINING, "rack_id": ""}, 1, "RackId can't be empty."),
        ({**JOINING, "rebalance_timeout_ms": -1}, 1, "RebalanceTimeoutMs must be provided in first request."),
        ({**JOINING, "owned": None}, 1, "TopicPartitions must be empty when (re-)joining."),
        ({**JOINING, "owned": partitions(orders=[1])}, 1, "TopicPartitions must be empty when (re-)joining."),
        (
            {**JOINING, "topics": None},
            1,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        ({"member_id": "a", "member_epoch": -2}, 1, "InstanceId can't be null."),
        ({"member_id": "a", "member_epoch": -3}, 1, "MemberEpoch is invalid."),
    ],
)
def test_a_request_that_breaks_a_rule_is_refused(fields: dict[str, Any], version: int, message: str) -> None:
    request = ConsumerGroupHeartbeatRequest(**{"group": "g", "member_epoch": 0, **fields})
    assert check_request(request, version, ("uniform",)) == (ErrorCode.INVALID_REQUEST, message)


@pytest.mark.parametrize(
    ("fields", "version"),
    [
        (JOINING, 1),
        ({**JOINING, "member_id": ""}, 0),
        ({**JOINING, "topics": None, "regex": ""}, 1),
        ({"member_id": "a", "member_epoch": 1}, 1),
        ({"member_id": "", "member_epoch": -2, "instance_id": "i"}, 0),
    ],
)
def test_a_request_that_keeps_the_rules_is_accepted(fields: dict[str, Any], version: int) -> None:
    request = ConsumerGroupHeartbeatRequest(**{"group": "g", "member_epoch": 0, **fields})
    assert check_request(request, version, ("uniform",)) == (ErrorCode.NONE, None)


def test_an_unknown_assignor_is_refused() -> None:
    request = ConsumerGroupHeartbeatRequest(group="g", member_epoch=0, assignor="best", **JOINING)
    assert check_request(request, 1, ("uniform", "range")) == (
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        "ServerAssignor best is not supported. Supported assignors: uniform, range.",
    )


# -- joining --


def test_a_member_without_an_id_gets_one() -> None:
    driver = Driver()
    answer = driver.joined()
    assert answer.member_id == "id-0"
    assert list(driver.group.members) == ["id-0"]


def test_a_member_that_joins_writes_its_records_in_kafkas_order() -> None:
    driver = Driver()
    driver.join("a", topics=("orders", "logs", "orders"), rack_id="r", assignor="range", client="c1")
    held = (HeldPartitions(topic_id=topic_id("orders"), partitions=(0, 1, 2, 3), epochs=(2, 2, 2, 2)),)
    metadata = MemberMetadata(
        rack_id="r",
        client_id="c1",
        client_host="/127.0.0.1",
        topics=("logs", "orders"),
        regex="",
        rebalance_timeout_ms=REBALANCE_MS,
        assignor="range",
    )
    (member, epoch, target, target_epoch, current) = driver.log
    assert member == (MemberKey("g", "a"), metadata)
    assert epoch[0] == EpochKey("g")
    assert isinstance(epoch[1], GroupEpoch)
    assert epoch[1].epoch == 2
    assert target == (TargetKey("g", "a"), TargetAssignment(partitions=partitions(orders=range(4))))
    assert target_epoch == (TargetEpochKey("g"), TargetEpoch(epoch=2, timestamp_ms=START.wall_ms))
    assert current == (
        CurrentKey("g", "a"),
        CurrentAssignment(epoch=2, previous_epoch=0, state=1, assigned=held),
    )


def test_a_member_without_topics_is_a_member() -> None:
    driver = Driver()
    answer = driver.joined("a", topics=())
    assert (answer.error, answer.member_epoch, flat(answer.assignment)) == (ErrorCode.NONE, 1, set())
    assert driver.group.state is ConsumerGroupState.STABLE
    assert driver.restarted().rows() == driver.group.rows()


def test_a_full_group_refuses_new_members_only() -> None:
    driver = Driver(max_size=2)
    driver.joined("a", instance_id="i")
    driver.joined("b")
    refused = driver.joined("c")
    assert refused.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert refused.message == "The consumer group has reached its maximum capacity of 2 members."
    assert driver.joined("b").error is ErrorCode.NONE
    driver.leave("a", -2, instance_id="i")
    assert driver.joined("d", instance_id="i").error is ErrorCode.NONE


def test_most_members_choose_the_assignor_and_a_change_raises_the_epoch() -> None:
    driver = Driver(auto=False)
    driver.join("a", assignor="range")
    assert driver.assigns[0].assignor == "range"
    driver.auto = True
    driver.settle()
    driver.join("b")
    epoch = driver.group.epoch
    driver.heartbeat("a", 2, assignor="uniform")
    assert driver.group.epoch == epoch + 1
    assert result_of(driver.group.described(driver.cluster)).assignor == "uniform"


# -- staying --


def test_an_unknown_member_is_refused() -> None:
    driver = Driver()
    answer = driver.beat("a", 1)
    assert (answer.error, answer.message) == (ErrorCode.UNKNOWN_MEMBER_ID, "Member a is not a member of group g.")


@pytest.mark.parametrize(
    ("epoch", "owned", "error"),
    [
        (3, None, ErrorCode.NONE),
        (4, None, ErrorCode.FENCED_MEMBER_EPOCH),
        (2, partitions(orders=[0, 1]), ErrorCode.NONE),
        (2, partitions(orders=[0]), ErrorCode.NONE),
        (2, None, ErrorCode.FENCED_MEMBER_EPOCH),
        (2, partitions(orders=[0, 1, 2]), ErrorCode.FENCED_MEMBER_EPOCH),
        (1, partitions(orders=[0]), ErrorCode.FENCED_MEMBER_EPOCH),
    ],
)
def test_a_members_epoch_must_be_the_current_or_the_one_before_its_last_answer(
    epoch: int, owned: Any, error: ErrorCode
) -> None:
    driver = Driver()
    driver.joined("a")
    driver.joined("b")
    driver.beat("a", 2)
    assert driver.beat("a", 2, owned=partitions(orders=[0, 1])).member_epoch == 3
    assert driver.beat("a", epoch, owned=owned).error is error


def test_a_member_may_always_join_again() -> None:
    driver = Driver()
    driver.joined("a")
    again = driver.joined("a")
    assert (again.error, again.member_epoch, flat(again.assignment)) == (ErrorCode.NONE, 2, ALL)


def test_the_assignment_is_in_answers_to_full_requests_and_after_changes() -> None:
    driver = Driver()
    driver.joined("a")
    owned = partitions(orders=range(4))
    assert driver.beat("a", 2).assignment is None
    assert driver.beat("a", 2, owned=owned).assignment is None
    full = driver.beat("a", 2, owned=owned, topics=("orders",), rebalance_timeout_ms=REBALANCE_MS)
    assert flat(full.assignment) == ALL
    assert full.heartbeat_interval_ms == INTERVAL_MS


def test_a_heartbeat_without_changes_has_no_records() -> None:
    driver = Driver()
    driver.joined("a")
    written = len(driver.log)
    driver.beat("a", 2, owned=partitions(orders=range(4)), topics=("orders",), rebalance_timeout_ms=REBALANCE_MS)
    assert len(driver.log) == written


def test_new_partitions_raise_the_epoch_at_the_next_heartbeat() -> None:
    driver = Driver()
    driver.joined("a")
    driver.grow("orders", 5)
    assert driver.group.epoch == 2
    answer = driver.beat("a", 2)
    assert (driver.group.epoch, answer.member_epoch) == (3, 3)
    assert flat(answer.assignment) == ALL | {("orders", 4)}


def test_topics_without_subscribers_do_not_matter() -> None:
    driver = Driver()
    driver.joined("a")
    driver.grow("other", 5)
    driver.beat("a", 2)
    assert driver.group.epoch == 2
    assert driver.group.is_subscribed("orders")
    assert not driver.group.is_subscribed("other")


def test_a_target_is_computed_once_per_interval() -> None:
    driver = Driver(assignment_interval_ms=1000)
    driver.joined("a")
    driver.joined("b")
    assert (driver.group.epoch, driver.group.assignment_epoch) == (3, 2)
    assert driver.group.state is ConsumerGroupState.ASSIGNING
    driver.pass_ms(999)
    driver.beat("a", 2)
    assert driver.group.assignment_epoch == 2
    driver.pass_ms(1)
    driver.beat("a", 2)
    assert driver.group.assignment_epoch == 3


def test_an_assignor_that_fails_is_reported_and_runs_again() -> None:
    driver = Driver(auto=False)
    waiter = driver.join("a")
    driver.finish_assign(fails=True)
    assert driver.answers[waiter].error is ErrorCode.UNKNOWN_SERVER_ERROR
    driver.auto = True
    driver.settle()
    assert flat(driver.joined("a").assignment) == ALL


# -- leaving --


def test_a_member_that_leaves_is_deleted() -> None:
    driver = Driver()
    driver.joined("a")
    written = len(driver.log)
    answer = driver.leave("a")
    assert (answer.error, answer.member_id, answer.member_epoch) == (ErrorCode.NONE, "a", -1)
    keys = [key for key, value in driver.log[written:] if value is None]
    assert keys == [CurrentKey("g", "a"), TargetKey("g", "a"), MemberKey("g", "a")]
    assert (driver.group.epoch, driver.group.state) == (3, ConsumerGroupState.EMPTY)
    assert driver.group.is_empty
    assert not driver.group.held


def test_a_member_is_removed_when_its_session_ends() -> None:
    driver = Driver()
    driver.joined("a")
    driver.pass_ms(SESSION_MS - 1)
    driver.beat("a", 2)
    driver.pass_ms(SESSION_MS - 1)
    assert list(driver.group.members) == ["a"]
    driver.pass_ms(1)
    assert driver.group.state is ConsumerGroupState.EMPTY


def test_a_member_is_removed_if_it_does_not_give_up_partitions_in_time() -> None:
    driver = Driver()
    driver.joined("a", rebalance_timeout_ms=10_000)
    driver.joined("b")
    driver.beat("a", 2)
    driver.pass_ms(9_999)
    driver.beat("a", 2)
    assert "a" in driver.group.members
    driver.pass_ms(1)
    assert list(driver.group.members) == ["b"]
    assert flat(driver.beat("b", 3).assignment) == ALL


def test_a_member_that_gave_up_partitions_in_time_stays() -> None:
    driver = Driver()
    driver.joined("a", rebalance_timeout_ms=10_000)
    driver.joined("b")
    driver.beat("a", 2)
    driver.beat("a", 2, owned=partitions(orders=[0, 1]))
    driver.pass_ms(10_000)
    assert list(driver.group.members) == ["a", "b"]


# -- static members --


def test_an_instance_id_in_use_is_not_given_to_a_new_member() -> None:
    driver = Driver()
    driver.joined("a", instance_id="i")
    answer = driver.joined("b", instance_id="i")
    assert answer.error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert answer.message == (
        "Static member b with instance id i cannot join the group because the instance id is owned by a member."
    )


def test_a_static_member_that_restarts_gets_its_partitions_without_a_rebalance() -> None:
    driver = Driver()
    driver.joined("a", instance_id="i")
    left = driver.leave("a", -2, instance_id="i")
    assert (left.member_id, left.member_epoch) == ("a", -2)
    back = driver.joined("b", instance_id="i")
    assert (back.member_epoch, flat(back.assignment)) == (2, ALL)
    assert (driver.group.epoch, list(driver.group.members)) == (2, ["b"])
    assert driver.restarted().rows() == driver.group.rows()


def test_a_static_member_that_does_not_come_back_is_removed() -> None:
    driver = Driver()
    driver.joined("a", instance_id="i")
    driver.leave("a", -2, instance_id="i")
    driver.pass_ms(SESSION_MS)
    assert driver.group.state is ConsumerGroupState.EMPTY


@pytest.mark.parametrize(
    ("member_id", "epoch", "instance", "error"),
    [
        ("a", 2, "other", ErrorCode.UNKNOWN_MEMBER_ID),
        ("b", 2, "i", ErrorCode.FENCED_INSTANCE_ID),
        ("b", -1, "i", ErrorCode.FENCED_INSTANCE_ID),
        ("b", -2, "i", ErrorCode.FENCED_INSTANCE_ID),
        ("a", -2, "other", ErrorCode.UNKNOWN_MEMBER_ID),
        ("b", -1, None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("a", 3, "i", ErrorCode.FENCED_MEMBER_EPOCH),
        ("a", 2, "i", ErrorCode.NONE),
        ("a", -1, "i", ErrorCode.NONE),
    ],
)
def test_a_static_member_is_known_by_both_ids(
    member_id: str, epoch: int, instance: str | None, error: ErrorCode
) -> None:
    driver = Driver()
    driver.joined("a", instance_id="i")
    assert driver.beat(member_id, epoch, instance_id=instance).error is error


def test_a_static_member_that_restarts_during_a_computation_gets_its_result() -> None:
    driver = Driver()
    driver.joined("a", instance_id="i")
    driver.auto = False
    driver.join("b")
    driver.store()
    driver.heartbeat("a", -2, instance_id="i")
    driver.join("c", instance_id="i")
    driver.auto = True
    driver.settle()
    targets = {each.member_id: each.target for each in result_of(driver.group.described(driver.cluster)).members}
    assert [len(target.partitions[0].partitions) for target in targets.values()] == [2, 2]


# -- regular expressions --


def test_an_expression_is_resolved_before_its_topics_are_assigned() -> None:
    driver = Driver(Cluster(orders=4, logs=2))
    joined = driver.joined("a", regex="o.*")
    assert (joined.member_epoch, flat(joined.assignment)) == (1, set())
    assert driver.resolves[0].regexes == {"o.*"}
    driver.resolve({"o.*": ["orders"]}, version=7)
    assert driver.group.epoch == 2
    assert flat(driver.beat("a", 1).assignment) == ALL
    assert driver.group.is_subscribed("orders")
    assert driver.restarted().rows() == driver.group.rows()


def test_a_second_member_with_the_same_expression_raises_the_epoch_immediately() -> None:
    driver = Driver()
    driver.joined("a", regex="o.*")
    driver.resolve({"o.*": ["orders"]})
    driver.joined("b", regex="o.*")
    assert driver.group.epoch == 3
    assert not driver.resolves


def test_expressions_are_resolved_again_for_new_topics_but_not_within_ten_seconds() -> None:
    driver = Driver()
    driver.joined("a", regex="o.*")
    driver.resolve({"o.*": ["orders"]})
    driver.grow("other", 1)
    driver.pass_ms(10_000)
    driver.beat("a", 1)
    assert not driver.resolves
    driver.pass_ms(1)
    driver.beat("a", 2)
    assert driver.resolves
    driver.beat("a", 2)
    assert len(driver.resolves) == 1
    driver.resolve({"o.*": ["orders", "other"]})
    assert driver.group.epoch == 3


def test_expressions_are_resolved_again_when_they_are_old() -> None:
    driver = Driver(session_timeout_ms=10**9)
    driver.joined("a", regex="o.*")
    driver.resolve({"o.*": ["orders"]})
    driver.pass_ms(600_000)
    driver.beat("a", 1)
    assert not driver.resolves
    driver.pass_ms(1)
    driver.beat("a", 2)
    assert driver.resolves
    driver.resolve({"o.*": ["orders"]})
    assert driver.group.epoch == 2


def test_expressions_are_resolved_again_after_loading() -> None:
    driver = Driver()
    driver.joined("a", regex="o.*")
    driver.resolve({"o.*": ["orders"]})
    driver.group = driver.restarted()
    driver.pass_ms(10_001)
    driver.beat("a", 1)
    assert driver.resolves


def test_an_expression_without_members_is_deleted() -> None:
    driver = Driver()
    driver.joined("a", regex="o.*")
    driver.resolve({"o.*": ["orders"]})
    driver.joined("b", regex="o.*")
    assert driver.beat("a", 1, regex="", topics=("orders",)).error is ErrorCode.NONE
    assert (RegexKey("g", "o.*"), None) not in driver.log
    driver.leave("b")
    assert (RegexKey("g", "o.*"), None) in driver.log


def test_an_invalid_expression_is_refused_and_changes_nothing() -> None:
    driver = Driver()
    answer = driver.joined("a", regex="[")
    assert answer.error is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert answer.message is not None
    assert answer.message.startswith("SubscribedTopicRegex `[` is not a valid regular expression: ")
    assert not driver.group.rows()


# -- offsets --


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"),
    [
        ("a", 3, ErrorCode.NONE),
        ("a", 4, ErrorCode.STALE_MEMBER_EPOCH),
        ("x", 3, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_commit_needs_a_member_and_its_epoch(member_id: str, epoch: int, error: ErrorCode) -> None:
    driver = _with_a_member_in_epoch_3()
    assert driver.group.check_commit(member_id, None, epoch, version=9).error is error
    assert driver.group.check_transactional_commit(member_id, None, epoch).error in {error, ErrorCode.NONE}


def test_a_member_in_an_earlier_epoch_commits_for_what_it_has_had_since() -> None:
    driver = _with_a_member_in_epoch_3()
    verdict = driver.group.check_commit("a", None, 2)
    assert verdict.error is ErrorCode.NONE
    assert verdict.partition(topic_id("orders"), 0) is ErrorCode.NONE
    assert verdict.partition(topic_id("orders"), 3) is ErrorCode.STALE_MEMBER_EPOCH
    older = driver.group.check_commit("a", None, 1)
    assert older.partition(topic_id("orders"), 0) is ErrorCode.STALE_MEMBER_EPOCH


def test_commits_without_membership() -> None:
    driver = _with_a_member_in_epoch_3()
    assert driver.group.check_transactional_commit("", None, -1).error is ErrorCode.NONE
    assert driver.group.check_commit("a", None, 3, version=8).error is ErrorCode.UNSUPPORTED_VERSION
    driver.leave("a")
    driver.leave("b")
    assert driver.group.check_commit("", None, -1).error is ErrorCode.NONE


def test_fetching_offsets_needs_the_members_epoch() -> None:
    driver = _with_a_member_in_epoch_3()
    assert driver.group.check_fetch(None, -1) is ErrorCode.NONE
    assert driver.group.check_fetch("a", 3) is ErrorCode.NONE
    assert driver.group.check_fetch("a", 2) is ErrorCode.STALE_MEMBER_EPOCH
    assert driver.group.check_fetch("x", 3) is ErrorCode.UNKNOWN_MEMBER_ID


def _with_a_member_in_epoch_3() -> Driver:
    driver = Driver()
    driver.joined("a")
    driver.joined("b")
    driver.beat("a", 2)
    assert driver.beat("a", 2, owned=partitions(orders=[0, 1])).member_epoch == 3
    return driver


# -- records --


def test_a_loaded_member_has_one_session_to_show_up_and_its_time_to_give_up_partitions() -> None:
    driver = Driver()
    driver.joined("a", rebalance_timeout_ms=10_000)
    driver.joined("b")
    driver.beat("a", 2)
    driver.group = driver.restarted()
    driver.pass_ms(9_999)
    driver.beat("b", 3)
    driver.pass_ms(1)
    assert list(driver.group.members) == ["b"]
    driver.pass_ms(SESSION_MS)
    assert driver.group.state is ConsumerGroupState.EMPTY


def test_tombstones_delete_all_that_is_stored() -> None:
    driver = Driver()
    driver.joined("a", regex="o.*")
    driver.resolve({"o.*": ["orders"]})
    group = driver.group
    assert len(group.tombstones()) == 7
    for key in group._group.record_keys():
        group.apply(key, None)
    assert group.rows() == []
    assert (group.epoch, group.assignment_epoch, group.state) == (1, 1, ConsumerGroupState.EMPTY)


def test_the_topics_that_kafka_4_0_stored_are_deleted_with_the_next_change() -> None:
    driver = Driver()
    driver.joined("a")
    driver.group.apply(PartitionMetadataKey("g"), PartitionMetadata())
    driver.joined("b")
    assert (PartitionMetadataKey("g"), None) in driver.log
    assert PartitionMetadataKey("g") not in dict(driver.group.rows())


def test_a_value_of_another_keys_type_is_refused() -> None:
    group = ConsumerGroup("g", Driver().limits, START)
    with pytest.raises(TypeError):
        group.apply(EpochKey("g"), TargetEpoch(epoch=1))


def test_a_group_is_described_with_what_members_have_and_will_have() -> None:
    driver = Driver()
    driver.joined("a", rack_id="r")
    driver.joined("b")
    described = result_of(driver.group.described(driver.cluster))
    assert (described.state, described.epoch, described.assignment_epoch) == ("Reconciling", 3, 3)
    first, second = described.members
    assert [len(each.partitions[0].partitions) for each in (first.assignment, first.target)] == [4, 2]
    assert second.assignment.partitions == ()
    assert (first.rack_id, first.topics, first.type, first.member_epoch) == ("r", ("orders",), 1, 2)


def test_what_members_hold_is_counted_by_holder() -> None:
    driver = Driver()
    driver.joined("a")
    one = driver.group.held["127.0.0.1"]
    driver.joined("b")
    assert driver.group.held["127.0.0.1"] > 1.5 * one
