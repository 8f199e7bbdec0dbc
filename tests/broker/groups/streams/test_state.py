"""The rules of streams groups as requests and responses (source: Kafka's GroupMetadataManagerTest, 4.4)."""

from typing import Any

import pytest

from tests.broker.groups.modern.driver import REBALANCE_MS, SESSION_MS, Cluster, result_of
from tests.broker.groups.streams.driver import Driver, owning, pairs, topology
from warmlog.broker.groups.streams.requests import check_request
from warmlog.broker.groups.streams.status import Status
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import StreamsGroupState
from warmlog.protocol.kafka.consumer_group_records import TargetEpoch
from warmlog.protocol.kafka.messages.groups.streams import (
    Endpoint,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    StreamsStatus,
    Subtopology,
    TaskIds,
    TaskOffset,
    Topology,
)
from warmlog.protocol.kafka.streams_group_records import (
    HeldTasks,
    StreamsCurrentAssignment,
    StreamsCurrentKey,
    StreamsEpochKey,
    StreamsGroupEpoch,
    StreamsMemberKey,
    StreamsMemberMetadata,
    StreamsTarget,
    StreamsTargetEpochKey,
    StreamsTargetKey,
    TopologyKey,
)

ALL = {("orders", number) for number in range(4)}
CONFIGS = (KeyValue(key="num.standby.replicas", value="0"),)


def codes(response: Any) -> list[int]:
    return [status.code for status in response.status]


def two_members() -> Driver:
    """Return a group of two members, each with two tasks, in epoch 3."""
    driver = Driver()
    driver.joined("a")
    driver.joined("b")
    kept = pairs(driver.beat("a", 2).active) or set()
    driver.beat("a", 2, **owning(kept))
    driver.beat("b", 3)
    return driver


# -- heartbeats that are refused whatever the group --


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST, "MemberId can't be empty."),
        ({"group": " "}, ErrorCode.INVALID_REQUEST, "GroupId can't be empty."),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST, "InstanceId can't be empty."),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST, "RackId can't be empty."),
        (
            {"rebalance_timeout_ms": -1},
            ErrorCode.INVALID_REQUEST,
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        ({"active": None}, ErrorCode.INVALID_REQUEST, "ActiveTasks must be empty when (re-)joining."),
        ({"standby": None}, ErrorCode.INVALID_REQUEST, "StandbyTasks must be empty when (re-)joining."),
        (
            {"warmup": (TaskIds(subtopology_id="0", partitions=(0,)),)},
            ErrorCode.INVALID_REQUEST,
            "WarmupTasks must be empty when (re-)joining.",
        ),
        ({"topology": None}, ErrorCode.INVALID_REQUEST, "Topology must be non-null when (re-)joining."),
        ({"member_epoch": 1}, ErrorCode.INVALID_REQUEST, "Topology can only be provided when (re-)joining."),
        ({"member_epoch": -2, "topology": None}, ErrorCode.INVALID_REQUEST, "InstanceId can't be null."),
        (
            {"member_epoch": -3, "topology": None},
            ErrorCode.INVALID_REQUEST,
            "MemberEpoch is -3, but must be greater than or equal to -2.",
        ),
        (
            {"member_epoch": 1, "topology": None, "warmup": None},
            ErrorCode.INVALID_REQUEST,
            "If one task-type is non-null, all must be non-null.",
        ),
        (
            {"topology": Topology(epoch=0, subtopologies=(Subtopology(subtopology_id="0", source_regexes=("o.*",)),))},
            ErrorCode.INVALID_REQUEST,
            "Regular expressions for source topics are not supported yet.",
        ),
        (
            {"task_offsets": (TaskOffset(subtopology_id="0", partition=1, offset=2),) * 2},
            ErrorCode.INVALID_REQUEST,
            "Task offsets contain a duplicate entry for subtopology 0 and partition 1.",
        ),
        ({}, ErrorCode.NONE, None),
    ],
)
def test_a_heartbeat_must_have_what_it_needs(fields: dict[str, Any], error: ErrorCode, message: str | None) -> None:
    given = {"group": "g", "member_id": "a", "member_epoch": 0, "rebalance_timeout_ms": 1, "topology": topology()}
    request = StreamsGroupHeartbeatRequest(**{**given, **owning(), **fields})
    assert check_request(request) == (error, message)


# -- joining and leaving --


def test_the_first_member_writes_all_records() -> None:
    driver = Driver()
    response = driver.joined("a", user_endpoint=Endpoint(host="h", port=1))
    assert (response.member_epoch, pairs(response.active), response.status) == (2, ALL, ())
    tasks = TaskIds(subtopology_id="orders", partitions=(0, 1, 2, 3))
    assert driver.log == [
        (
            StreamsMemberKey("g", "a"),
            StreamsMemberMetadata(
                client_id="c",
                client_host="/127.0.0.1",
                rebalance_timeout_ms=REBALANCE_MS,
                topology_epoch=0,
                process_id="p-a",
                user_endpoint=Endpoint(host="h", port=1),
            ),
        ),
        (TopologyKey("g"), topology()),
        (
            StreamsEpochKey("g"),
            StreamsGroupEpoch(
                epoch=2,
                metadata_hash=driver.group.topics_hash(driver.cluster),
                validated_topology_epoch=0,
                assignment_configs=CONFIGS,
            ),
        ),
        (StreamsTargetKey("g", "a"), StreamsTarget(active=(tasks,))),
        (StreamsTargetEpochKey("g"), TargetEpoch(epoch=2, timestamp_ms=driver.now.wall_ms)),
        (
            StreamsCurrentKey("g", "a"),
            StreamsCurrentAssignment(
                epoch=2,
                previous_epoch=0,
                state=1,
                active=(HeldTasks(subtopology_id="orders", partitions=(0, 1, 2, 3), epochs=(2, 2, 2, 2)),),
            ),
        ),
    ]


def test_a_second_member_waits_until_the_first_has_given_up_tasks() -> None:
    driver = Driver()
    driver.joined("a")
    second = driver.joined("b")
    assert (second.member_epoch, pairs(second.active)) == (3, set())
    assert driver.group.state is StreamsGroupState.RECONCILING
    kept = pairs(driver.beat("a", 2).active)
    assert kept is not None
    assert len(kept) == 2
    assert pairs(driver.beat("b", 3).active) is None
    done = driver.beat("a", 2, **owning(kept))
    assert (done.member_epoch, done.active) == (3, None)
    assert pairs(driver.beat("b", 3).active) == ALL - kept
    assert driver.group.state is StreamsGroupState.STABLE


def test_the_last_member_leaves_an_empty_group() -> None:
    driver = Driver()
    driver.joined("a")
    left = driver.beat("a", -1)
    assert (left.member_id, left.member_epoch, left.status) == ("a", -1, ())
    assert driver.group.state is StreamsGroupState.EMPTY
    assert driver.log[-5:] == [
        (StreamsCurrentKey("g", "a"), None),
        (StreamsTargetKey("g", "a"), None),
        (StreamsMemberKey("g", "a"), None),
        (StreamsEpochKey("g"), driver.group.rows()[0][1]),
        (StreamsTargetEpochKey("g"), TargetEpoch(epoch=3)),
    ]
    assert pairs(driver.joined("b").active) == ALL


def test_a_full_group_refuses_new_members() -> None:
    driver = Driver(max_size=1)
    driver.joined("a")
    refused = driver.joined("b")
    assert (refused.error, refused.message) == (
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        "The streams group has reached its maximum capacity of 1 members.",
    )
    assert driver.joined("a").error is ErrorCode.NONE


@pytest.mark.parametrize(
    ("epoch", "fields", "error"),
    [
        (3, {}, ErrorCode.NONE),
        (4, {}, ErrorCode.FENCED_MEMBER_EPOCH),
        (2, {}, ErrorCode.FENCED_MEMBER_EPOCH),
        (2, owning(set()), ErrorCode.NONE),
        (2, owning({("orders", 0)}, {("orders", 1)}), ErrorCode.FENCED_MEMBER_EPOCH),
        (1, owning(set()), ErrorCode.FENCED_MEMBER_EPOCH),
        (3, owning({("other", 0)}), ErrorCode.INVALID_REQUEST),
        (3, owning({("orders", 4)}), ErrorCode.INVALID_REQUEST),
    ],
)
def test_only_the_epoch_before_is_accepted_beside_the_current_one(
    epoch: int, fields: dict[str, Any], error: ErrorCode
) -> None:
    assert two_members().beat("a", epoch, **fields).error is error


# -- static members --


def test_a_static_member_comes_back_to_its_tasks_with_another_id() -> None:
    driver = Driver()
    driver.joined("a", instance_id="one", process_id="p")
    away = driver.beat("a", -2, instance_id="one")
    assert (away.member_epoch, driver.group.state) == (-2, StreamsGroupState.RECONCILING)
    epoch = driver.group.epoch
    back = driver.joined("b", instance_id="one", process_id="p")
    assert (pairs(back.active), back.member_epoch, driver.group.epoch) == (ALL, epoch, epoch)
    assert list(driver.group.members) == ["b"]


def test_a_static_member_in_another_process_raises_the_epoch() -> None:
    driver = Driver()
    driver.joined("a", instance_id="one")
    driver.beat("a", -2, instance_id="one")
    back = driver.joined("b", instance_id="one")
    assert (pairs(back.active), back.member_epoch) == (ALL, 3)


def test_an_instance_id_in_use_is_refused() -> None:
    driver = Driver()
    driver.joined("a", instance_id="one")
    assert driver.joined("b", instance_id="one").error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert driver.beat("b", 2, instance_id="one").error is ErrorCode.FENCED_INSTANCE_ID
    assert driver.beat("b", 2, instance_id="two").error is ErrorCode.UNKNOWN_MEMBER_ID


# -- topologies and topics --


def test_a_topology_cannot_be_changed() -> None:
    driver = Driver(Cluster(orders=4, payments=2))
    driver.joined("a", topology=topology(epoch=2))
    for other in (topology("payments", epoch=2), topology(epoch=3)):
        refused = driver.joined("b", topology=other)
        assert (refused.error, refused.message) == (
            ErrorCode.INVALID_REQUEST,
            "Topology updates are not supported yet.",
        )
    stale = driver.joined("b", topology=topology("payments", epoch=1))
    assert stale.status == (
        StreamsStatus(
            code=Status.STALE_TOPOLOGY, detail="The member's topology epoch 1 is behind the group's topology epoch 2."
        ),
    )


def test_a_topology_may_list_its_subtopologies_in_another_order() -> None:
    driver = Driver(Cluster(orders=4, payments=2))
    driver.joined("a", topology=topology("orders", "payments"))
    assert driver.joined("b", topology=topology("payments", "orders")).error is ErrorCode.NONE


def test_tasks_are_taken_away_while_a_source_is_missing() -> None:
    driver = Driver()
    driver.joined("a")
    driver.cluster.delete("orders")
    driver.group.topics_changed(["orders"])
    missing = driver.beat("a", 2)
    assert (codes(missing), pairs(missing.active)) == ([Status.MISSING_SOURCE_TOPICS], set())
    assert driver.group.state is StreamsGroupState.NOT_READY
    driver.grow("orders", 2)
    assert driver.beat("a", 2, **owning()).status == ()
    assert pairs(driver.beat("a", 4, **owning()).active) == {("orders", 0), ("orders", 1)}


def test_internal_topics_are_awaited() -> None:
    driver = Driver()
    first = driver.joined("a", topology=topology(stateful=True))
    assert (codes(first), pairs(first.active)) == ([Status.MISSING_INTERNAL_TOPICS], set())
    assert driver.group.last_configured is not None
    assert [topic.name for topic in driver.group.last_configured.missing] == ["orders-changelog"]
    driver.grow("orders-changelog", 4)
    ready = driver.beat("a", first.member_epoch)
    assert (ready.status, pairs(ready.active)) == ((), ALL)


def test_other_topics_do_not_raise_the_epoch() -> None:
    driver = Driver()
    driver.joined("a")
    driver.grow("other", 1)
    driver.group.topics_changed(["orders"])
    assert driver.beat("a", 2).member_epoch == 2
    driver.grow("orders", 5)
    assert pairs(driver.beat("a", 2).active) == ALL | {("orders", 4)}


# -- assignments --


def test_standby_tasks_go_to_other_processes_and_a_member_keeps_the_state_of_what_it_gives_up() -> None:
    driver = Driver(Cluster(orders=2, **{"orders-changelog": 2}), standby_replicas=1)
    stateful = topology(stateful=True)
    driver.joined("a", topology=stateful)
    driver.joined("b", topology=stateful)
    first = driver.beat("a", 2)
    kept = pairs(first.active) or set()
    driver.beat("a", 2, **owning(kept, pairs(first.standby)))
    second = driver.beat("b", 3)
    assert (pairs(second.active) or set()) | kept == {("orders", 0), ("orders", 1)}
    assert pairs(second.standby) == kept
    assert pairs(first.standby) == pairs(second.active)


def test_a_setting_that_the_assignor_depends_on_raises_the_epoch() -> None:
    driver = Driver()
    driver.joined("a")
    driver.limits = Driver(standby_replicas=1).limits
    assert driver.beat("a", 2).member_epoch == 3


def test_the_first_assignment_waits_for_more_members() -> None:
    driver = Driver(initial_rebalance_delay_ms=3000)
    delayed = StreamsStatus(
        code=Status.ASSIGNMENT_DELAYED, detail="Assignment delayed due to the configured initial rebalance delay."
    )
    first = driver.joined("a")
    assert (first.member_epoch, first.status, pairs(first.active)) == (1, (delayed,), set())
    assert driver.joined("b").status == (delayed,)
    driver.pass_ms(2999)
    assert driver.beat("a", 1).status == (delayed,)
    driver.pass_ms(1)
    first, second = driver.beat("a", 1), driver.beat("b", 1)
    assert (first.member_epoch, second.member_epoch, first.status) == (3, 3, ())
    assert (pairs(first.active) or set()) | (pairs(second.active) or set()) == ALL


def test_assignments_keep_their_distance() -> None:
    driver = Driver(assignment_interval_ms=1000)
    driver.joined("a")
    second = driver.joined("b")
    assert second.status == (
        StreamsStatus(
            code=Status.ASSIGNMENT_DELAYED, detail="Assignment delayed due to the configured assignment interval."
        ),
    )
    assert second.member_epoch == 2
    driver.pass_ms(1000)
    assert driver.beat("b", 2).member_epoch == 3


def test_a_heartbeat_waits_for_the_assignment_that_it_asks_for() -> None:
    driver = Driver(auto=False)
    waiter = driver.join("a")
    assert waiter not in driver.answers
    driver.finish_assign(fails=True)
    while driver.stores:
        driver.store()
    assert driver.answers[waiter].error is ErrorCode.UNKNOWN_SERVER_ERROR


# -- deadlines --


def test_a_silent_member_is_removed() -> None:
    driver = two_members()
    driver.pass_ms(SESSION_MS - 1)
    driver.beat("a", 3)
    driver.pass_ms(1)
    assert list(driver.group.members) == ["a"]
    assert pairs(driver.beat("a", 3).active) == ALL


def test_a_member_that_does_not_give_up_its_tasks_is_removed() -> None:
    driver = Driver()
    driver.joined("a", rebalance_timeout_ms=10_000)
    driver.joined("b")
    driver.beat("a", 2)
    driver.pass_ms(9_999)
    assert driver.beat("a", 2).error is ErrorCode.NONE
    driver.pass_ms(1)
    assert driver.beat("a", 2).error is ErrorCode.UNKNOWN_MEMBER_ID


# -- the application --


def test_a_shutdown_is_passed_on_until_the_group_is_empty() -> None:
    driver = two_members()
    detail = "Streams group member b encountered a fatal error and requested a shutdown for the entire application."
    assert driver.beat("b", 3, shutdown_application=True).status == (
        StreamsStatus(code=Status.SHUTDOWN_APPLICATION, detail=detail),
    )
    driver.beat("b", -1)
    assert codes(driver.beat("a", 3)) == [Status.SHUTDOWN_APPLICATION]
    driver.beat("a", -1)
    assert driver.joined("c").status == ()


def test_endpoints_are_sent_to_members_that_do_not_know_them() -> None:
    driver = two_members()
    endpoint = Endpoint(host="h", port=1)
    first = driver.beat("a", 3, user_endpoint=endpoint)
    assert first.endpoint_epoch == 1
    assert first.endpoints is not None
    assert [(each.endpoint, len(each.active[0].partitions)) for each in first.endpoints] == [(endpoint, 2)]
    assert driver.beat("b", 3, endpoint_epoch=0).endpoints == first.endpoints
    assert driver.beat("b", 3, endpoint_epoch=1).endpoints is None
    driver.beat("b", -1)
    grown = driver.beat("a", first.member_epoch, endpoint_epoch=1)
    assert grown.endpoint_epoch == 2
    assert grown.endpoints is not None
    assert [len(each.active[0].partitions) for each in grown.endpoints] == [4]


def test_tags_that_are_missing_are_named_to_clients_that_know_the_status() -> None:
    driver = Driver(rack_tags=("zone", "rack"))
    tags = (KeyValue(key="zone", value="a"),)
    assert codes(driver.joined("a", client_tags=tags)) == [Status.MISSING_CLIENT_TAGS]
    assert codes(driver.joined("a", client_tags=tags, version=0)) == []


def test_offsets_that_members_report_are_described() -> None:
    driver = Driver()
    driver.joined("a", task_offsets=(TaskOffset(subtopology_id="orders", partition=1, offset=7),))
    description = result_of(driver.group.described())
    assert description.members[0].task_offsets == (TaskOffset(subtopology_id="orders", partition=1, offset=7),)
    assert (description.state, description.topology.subtopologies[0].sources) == ("Stable", ("orders",))


# -- commits --


@pytest.mark.parametrize(
    ("member_id", "epoch", "version", "error"),
    [
        ("a", 3, 9, ErrorCode.NONE),
        ("a", 2, 9, ErrorCode.NONE),
        ("a", 4, 9, ErrorCode.STALE_MEMBER_EPOCH),
        ("a", 3, 8, ErrorCode.UNSUPPORTED_VERSION),
        ("x", 3, 9, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, 9, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_commits_of_members_are_checked(member_id: str, epoch: int, version: int, error: ErrorCode) -> None:
    group = two_members().group
    assert group.check_commit(member_id, None, epoch, version=version).error is error


def test_an_earlier_epoch_commits_for_tasks_that_the_member_has_kept() -> None:
    driver = two_members()
    verdict = driver.group.check_commit("a", None, 2, version=9)
    errors = [verdict.partition("orders", number) for number in range(4)]
    assert sorted(errors) == sorted([ErrorCode.NONE] * 2 + [ErrorCode.STALE_MEMBER_EPOCH] * 2)
    assert verdict.partition("other", 0) is ErrorCode.STALE_MEMBER_EPOCH


def test_transactional_commits_may_lack_a_member() -> None:
    group = two_members().group
    assert group.check_transactional_commit("", None, -1).error is ErrorCode.NONE
    assert group.check_transactional_commit("", "one", -1).error is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"),
    [
        (None, -1, ErrorCode.NONE),
        ("a", 3, ErrorCode.NONE),
        ("a", 2, ErrorCode.STALE_MEMBER_EPOCH),
        ("x", 3, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_fetches_of_members_are_checked(member_id: str | None, epoch: int, error: ErrorCode) -> None:
    assert two_members().group.check_fetch(member_id, epoch) is error


# -- failures --


def test_what_cannot_be_stored_is_undone() -> None:
    driver = two_members()
    rows = driver.group.rows()
    driver.auto = False
    waiter = driver.heartbeat("b", -1)
    driver.store(ErrorCode.NOT_COORDINATOR)
    assert driver.answers[waiter].error is ErrorCode.NOT_COORDINATOR
    assert dict(driver.group.rows()) == dict(rows)


def test_tasks_of_a_member_that_is_gone_are_nobodys() -> None:
    driver = Driver()
    driver.joined("a")
    driver.joined("b")
    driver.log.append((StreamsMemberKey("g", "a"), None))  # as if the log had ended before its correction
    keys = [key for key, _ in driver.restarted().rows()]
    assert StreamsCurrentKey("g", "b") in keys
    assert StreamsCurrentKey("g", "a") not in keys


def test_a_closed_group_answers_everything() -> None:
    driver = Driver(auto=False)
    waiter = driver.join("a")
    driver.group.close(ErrorCode.NOT_COORDINATOR, driver.now)
    driver.take()
    assert driver.answers[waiter].error is ErrorCode.NOT_COORDINATOR
    assert driver.answers[driver.heartbeat("a", 1)].error is ErrorCode.NOT_COORDINATOR
    assert driver.group.state is StreamsGroupState.DEAD


def test_what_is_left_of_a_removed_member_does_not_keep_tasks() -> None:
    driver = two_members()
    current = next(row for row in driver.log[::-1] if row[0] == StreamsCurrentKey("g", "b"))
    driver.beat("b", -1)
    driver.log.append(current)
    driver.group = driver.restarted()
    driver.settle()
    answer = driver.beat("a", 3)
    assert pairs(answer.active) == ALL
    assert driver.restarted().state is driver.group.state
    assert driver.log.count((StreamsCurrentKey("g", "b"), None)) == 2
