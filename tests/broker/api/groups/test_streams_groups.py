"""Streams groups (KIP-1071) through the Kafka listener: members, internal topics, offsets, restarts, settings."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.broker.clients import Running, running
from tests.broker.groups.requests import subscription
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.broker.groups.streams.status import Status
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.native.groups import DescribeConsumerGroupsRequest

SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.streams.assignment.interval.ms": 0,
    "group.streams.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 2,
}
GROUP_RESOURCE = 32
SET = 0
CHANGELOG = "g-store-changelog"
NO_TASKS: dict[str, Any] = {"active_tasks": [], "standby_tasks": [], "warmup_tasks": []}


@asynccontextmanager
async def serving(data_dir: Path, **settings: Any) -> AsyncIterator[tuple[Running, KafkaClient]]:
    async with running(data_dir, SETTINGS | settings) as broker, kafka_client(broker.addresses.kafka, "app") as client:
        while (await client.ask("ListGroups", 5))["error_code"] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            await trio.lowlevel.checkpoint()
        yield broker, client


async def create(broker: Running, topic: str = "orders", partitions: int = 2) -> None:
    native = await broker.connect()
    await native.create(topic, partitions=partitions)


def internal(name: str, partitions: int = 0, **configs: str) -> dict[str, Any]:
    pairs = [{"key": key.replace("_", "."), "value": value} for key, value in configs.items()]
    return {"name": name, "partitions": partitions, "replication_factor": 0, "topic_configs": pairs}


def subtopology(*sources: str, changelogs: tuple[str, ...] = (), name: str = "0", **fields: Any) -> dict[str, Any]:
    return {
        "subtopology_id": name,
        "source_topics": [*sources],
        "source_topic_regex": [],
        "state_changelog_topics": [internal(changelog, cleanup_policy="compact") for changelog in changelogs],
        "repartition_sink_topics": [],
        "repartition_source_topics": [],
        "copartition_groups": [],
        **fields,
    }


def topology(*subtopologies: dict[str, Any], epoch: int = 0) -> dict[str, Any]:
    return {"epoch": epoch, "subtopologies": [*subtopologies]}


STATELESS = topology(subtopology("orders"))
STATEFUL = topology(subtopology("orders", changelogs=(CHANGELOG,)))


async def beat(client: KafkaClient, member: str, epoch: int, **fields: Any) -> dict[str, Any]:
    asked = {"group_id": "g", "member_id": member, "member_epoch": epoch, "endpoint_information_epoch": 0, **fields}
    return await client.ask("StreamsGroupHeartbeat", 1, **asked)


async def join(client: KafkaClient, member: str = "a", given: dict[str, Any] = STATELESS, **fields: Any) -> Any:
    declared = {"topology": given, "rebalance_timeout_ms": 1000, "process_id": f"p-{member}", **NO_TASKS}
    return await beat(client, member, 0, **{**declared, **fields})


def tasks(reply: dict[str, Any], kind: str = "active") -> dict[str, tuple[int, ...]] | None:
    given = reply[f"{kind}_tasks"]
    return None if given is None else {each["subtopology_id"]: each["partitions"] for each in given}


def statuses(reply: dict[str, Any]) -> list[int]:
    return [each["status_code"] for each in reply["status"]]


async def listed(client: KafkaClient, **filters: Any) -> list[tuple[str, ...]]:
    reply = await client.ask("ListGroups", 5, **{"states_filter": [], "types_filter": [], **filters})
    return [
        (each["group_id"], each["protocol_type"], each["group_state"], each["group_type"]) for each in reply["groups"]
    ]


# -- members --


async def test_the_first_member_gets_all_tasks(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        reply = await join(client)
        assert (reply["error_code"], reply["member_epoch"], tasks(reply)) == (ErrorCode.NONE, 2, {"0": (0, 1)})
        assert (tasks(reply, "standby"), tasks(reply, "warmup"), reply["status"]) == ({}, {}, ())
        assert (reply["heartbeat_interval_ms"], reply["task_offset_interval_ms"]) == (5000, 60_000)
        assert reply["acceptable_recovery_lag"] == 10_000
        again = await beat(client, "a", 2)
        assert (again["error_code"], again["member_epoch"], tasks(again)) == (ErrorCode.NONE, 2, None)


async def test_a_member_that_no_record_can_hold_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        tags = [{"key": f"{number}" + "k" * 30_000, "value": "v" * 30_000} for number in range(36)]
        reply = await join(client, client_tags=tags)
        assert reply["error_code"] == ErrorCode.INVALID_REQUEST
        assert reply["error_message"] == "the member is too large for a record of the group"
        assert tasks(await join(client)) == {"0": (0, 1)}


async def test_names_of_any_length_get_an_answer(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        long = "S" * 32_760
        reply = await client.ask(
            "StreamsGroupHeartbeat", 1, group_id=long, member_id="a", member_epoch=5, endpoint_information_epoch=0
        )
        assert reply["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
        await join(client)
        await join(client, long, shutdown_application=True)
        assert Status.SHUTDOWN_APPLICATION in statuses(await join(client, "b"))


async def test_a_group_that_is_named_twice_is_described_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await join(client)
        reply = await client.ask("StreamsGroupDescribe", 1, group_ids=["g", "h", "g"])
        assert [each["group_id"] for each in reply["groups"]] == ["g", "h"]


async def test_two_members_share_the_tasks(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await join(client)
        second = await join(client, "b")
        assert (second["member_epoch"], tasks(second)) == (3, {})
        first = await beat(client, "a", 2)
        assert tasks(first) == {"0": (0,)}
        owned = {"active_tasks": [{"subtopology_id": "0", "partitions": [0]}], "standby_tasks": [], "warmup_tasks": []}
        assert (await beat(client, "a", 2, **owned))["member_epoch"] == 3
        assert tasks(await beat(client, "b", 3)) == {"0": (1,)}
        left = await beat(client, "b", -1)
        assert (left["error_code"], left["member_id"], left["member_epoch"]) == (ErrorCode.NONE, "b", -1)


async def test_the_first_assignment_waits_for_more_members(tmp_path: Path) -> None:
    settings = {"group.streams.initial.rebalance.delay.ms": 1}
    async with serving(tmp_path, **settings) as (broker, client):
        await create(broker)
        first = await join(client)
        assert (first["member_epoch"], tasks(first), statuses(first)) == (1, {}, [Status.ASSIGNMENT_DELAYED])
        reply = await beat(client, "a", 1)
        while not tasks(reply):
            reply = await beat(client, "a", reply["member_epoch"])
        assert (reply["member_epoch"], tasks(reply)) == (2, {"0": (0, 1)})


async def test_members_topology_and_tasks_outlive_the_broker(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await join(client)
    async with serving(tmp_path) as (_, client):
        assert await listed(client) == [("g", "streams", "Stable", "streams")]
        again = await beat(client, "a", 2)
        assert (again["error_code"], again["member_epoch"], tasks(again)) == (ErrorCode.NONE, 2, None)
        assert tasks(await join(client)) == {"0": (0, 1)}


async def test_a_group_is_described(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await join(client, client_tags=[{"key": "zone", "value": "a"}], user_endpoint={"host": "h", "port": 9})
        names = ["g", "h", ""]
        reply = await client.ask("StreamsGroupDescribe", 1, group_ids=names, include_authorized_operations=True)
        group, unknown, unnamed = reply["groups"]
        assert (group["group_state"], group["assignor_name"], group["topology"]["epoch"]) == ("Stable", "sticky", 0)
        assert group["group_epoch"] == group["assignment_epoch"] == 2
        assert group["authorized_operations"] > 0
        (described,) = group["topology"]["subtopologies"]
        assert (described["subtopology_id"], described["source_topics"]) == ("0", ("orders",))
        (member,) = group["members"]
        assert (member["member_id"], member["client_id"], member["client_host"]) == ("a", "app", "/127.0.0.1")
        assert (member["process_id"], member["user_endpoint"]) == ("p-a", {"host": "h", "port": 9})
        assert tasks(member["assignment"]) == tasks(member["target_assignment"]) == {"0": (0, 1)}
        assert (unknown["error_code"], unknown["error_message"]) == (
            ErrorCode.GROUP_ID_NOT_FOUND,
            "Group h not found.",
        )
        assert unnamed["error_code"] == ErrorCode.INVALID_GROUP_ID


async def test_a_request_of_an_unknown_member_or_group_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        unknown = await beat(client, "a", 1)
        assert (unknown["error_code"], unknown["error_message"]) == (
            ErrorCode.GROUP_ID_NOT_FOUND,
            "Streams group g not found.",
        )
        await join(client)
        assert (await beat(client, "b", 1))["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
        assert (await beat(client, "a", 9))["error_code"] == ErrorCode.FENCED_MEMBER_EPOCH
        assert (await beat(client, "", 0))["error_code"] == ErrorCode.INVALID_REQUEST


async def test_topologies_that_cannot_run_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        for given, error in (
            (topology(subtopology("__consumer_offsets")), ErrorCode.STREAMS_INVALID_TOPOLOGY),
            (topology(subtopology("or/ders")), ErrorCode.STREAMS_INVALID_TOPOLOGY),
            (topology(subtopology("orders", source_topic_regex=["o.*"])), ErrorCode.INVALID_REQUEST),
            (
                topology(subtopology("orders", state_changelog_topics=[internal("c", 3)])),
                ErrorCode.STREAMS_INVALID_TOPOLOGY,
            ),
        ):
            assert (await join(client, given=given))["error_code"] == error
        many = topology(*[subtopology("orders", name=str(number)) for number in range(1001)])
        reply = await join(client, given=many)
        assert (reply["error_code"], reply["error_message"]) == (
            ErrorCode.INVALID_REQUEST,
            "a topology may have 1,000 subtopologies and 10,000 topics at most",
        )
        large = topology(subtopology("orders", repartition_sink_topics=["x" * 249] * 5000))
        assert (await join(client, given=large))["error_code"] == ErrorCode.INVALID_REQUEST
        assert await listed(client) == []


async def test_a_topology_with_many_topics_is_served(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        changelogs = tuple(f"{CHANGELOG}-{number}" for number in range(1500))
        reply = await join(client, given=topology(subtopology("orders", changelogs=changelogs)))
        assert statuses(reply) == [Status.MISSING_INTERNAL_TOPICS]
        assert (await beat(client, "a", reply["member_epoch"]))["error_code"] == ErrorCode.NONE


async def test_another_topology_is_refused_and_an_earlier_one_is_stale(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await create(broker, "other")
        await join(client, given=topology(subtopology("orders"), epoch=3))
        other = await join(client, "b", topology(subtopology("orders", "other"), epoch=3))
        assert (other["error_code"], other["error_message"]) == (
            ErrorCode.INVALID_REQUEST,
            "Topology updates are not supported yet.",
        )
        assert statuses(await join(client, "c", topology(subtopology("other"), epoch=2))) == [Status.STALE_TOPOLOGY]


async def test_a_member_requests_the_shutdown_of_the_application(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await join(client)
        await join(client, "b")
        await beat(client, "b", -1, shutdown_application=True)
        assert statuses(await beat(client, "a", 2)) == [Status.SHUTDOWN_APPLICATION]


async def test_members_see_where_states_can_be_queried(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await join(client, "b")
        reply = await join(client, user_endpoint={"host": "h", "port": 9})
        assert reply["endpoint_information_epoch"] == 1
        assert reply["partitions_by_user_endpoint"] == (
            {"user_endpoint": {"host": "h", "port": 9}, "active_partitions": (), "standby_partitions": ()},
        )
        assert (await beat(client, "b", 2, endpoint_information_epoch=1))["partitions_by_user_endpoint"] is None


async def test_a_group_counts_for_who_joins_it(tmp_path: Path) -> None:
    async with serving(tmp_path, **{"warmlog.groups.memory.max.bytes": 1 << 20}) as (broker, client):
        await create(broker, partitions=1000)
        errors = [(await join(client, f"m{number}"))["error_code"] for number in range(150)]
        assert errors[0] == ErrorCode.NONE
        assert errors[-1] == ErrorCode.GROUP_MAX_SIZE_REACHED


async def test_a_group_is_described_natively(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await join(client, instance_id="one")
        await commit(client, "a", 2, 1)
        native = await broker.connect()
        (group,) = (await native.ask(DescribeConsumerGroupsRequest(groups=("g",)))).groups
        assert (group.state, group.protocol_type, group.protocol) == ("Stable", "streams", "sticky")
        (member,) = group.members
        assert (member.member_id, member.instance_id, member.topics) == ("a", "one", ("orders",))
        assert [(each.topic, each.partition) for each in member.partitions] == [("orders", 0), ("orders", 1)]
        assert [(each.partition, each.offset, each.member_id) for each in group.positions] == [
            (0, -1, "a"),
            (1, 7, "a"),
        ]


# -- topics --


async def test_missing_sources_keep_members_from_tasks_until_they_exist(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        reply = await join(client)
        assert (reply["error_code"], tasks(reply)) == (ErrorCode.NONE, {})
        assert [(each["status_code"], each["status_detail"]) for each in reply["status"]] == [
            (Status.MISSING_SOURCE_TOPICS, "Source topics orders are missing.")
        ]
        assert await listed(client) == [("g", "streams", "NotReady", "streams")]
        await create(broker)
        again = await beat(client, "a", reply["member_epoch"])
        assert (tasks(again), again["status"]) == ({"0": (0, 1)}, ())


async def test_internal_topics_are_created(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        reply = await join(client, given=STATEFUL)
        assert [(each["status_code"], each["status_detail"]) for each in reply["status"]] == [
            (Status.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {CHANGELOG}")
        ]
        again = await beat(client, "a", reply["member_epoch"])
        assert (tasks(again), again["status"]) == ({"0": (0, 1)}, ())
        metadata = await client.ask("Metadata", topics=[{"name": CHANGELOG, "topic_id": bytes(16)}])
        assert len(metadata["topics"][0]["partitions"]) == 2
        resource = {"resource_type": 2, "resource_name": CHANGELOG, "configuration_keys": ["cleanup.policy"]}
        described = await client.ask("DescribeConfigs", resources=[resource])
        assert described["results"][0]["configs"][0]["value"] == "compact"


async def test_an_internal_topic_that_cannot_be_created_is_explained(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        wrong = internal(CHANGELOG, cleanup_policy="neither")
        given = topology(subtopology("orders", state_changelog_topics=[wrong]))
        reply = await join(client, given=given)
        (status,) = reply["status"]
        assert status["status_detail"].startswith(
            f"Internal topics are missing: {CHANGELOG}; Creation failed: {CHANGELOG} ("
        )
        again = await beat(client, "a", reply["member_epoch"])
        assert again["status"] == reply["status"]


async def test_tasks_follow_a_source_that_grows(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await join(client)
        grown = [{"name": "orders", "count": 3, "assignments": None}]
        await client.ask("CreatePartitions", topics=grown, timeout_ms=1000, validate_only=False)
        assert tasks(await beat(client, "a", 2)) == {"0": (0, 1, 2)}


# -- offsets --


async def commit(client: KafkaClient, member: str, epoch: int, *partitions: int) -> list[int]:
    offsets = [{"partition_index": each, "committed_offset": 7, "committed_metadata": ""} for each in partitions]
    reply = await client.ask(
        "OffsetCommit", 9, group_id="g", generation_id_or_member_epoch=epoch, member_id=member,
        topics=[{"name": "orders", "partitions": offsets}],
    )  # fmt: skip
    return [each["error_code"] for each in reply["topics"][0]["partitions"]]


async def test_commits_are_checked_against_the_tasks_of_a_member(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await join(client)
        assert await commit(client, "a", 2, 0, 1) == [ErrorCode.NONE, ErrorCode.NONE]
        assert await commit(client, "b", 2, 0) == [ErrorCode.UNKNOWN_MEMBER_ID]
        assert await commit(client, "a", 3, 0) == [ErrorCode.STALE_MEMBER_EPOCH]
        await join(client, "b")
        await beat(client, "a", 2)
        owned = {"active_tasks": [{"subtopology_id": "0", "partitions": [0]}], "standby_tasks": [], "warmup_tasks": []}
        await beat(client, "a", 2, **owned)
        assert await commit(client, "a", 2, 0, 1) == [ErrorCode.NONE, ErrorCode.STALE_MEMBER_EPOCH]
        asked = {"group_id": "g", "member_id": "a", "member_epoch": 2, "topics": None}
        fetched = await client.ask("OffsetFetch", 9, groups=[asked], require_stable=False)
        assert fetched["groups"][0]["error_code"] == ErrorCode.STALE_MEMBER_EPOCH
        fetched = await client.ask("OffsetFetch", 9, groups=[{**asked, "member_epoch": 3}], require_stable=False)
        assert len(fetched["groups"][0]["topics"][0]["partitions"]) == 2


async def test_offsets_of_topics_that_tasks_read_are_not_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await join(client)
        await commit(client, "a", 2, 0)
        topics = [{"name": "orders", "partitions": [{"partition_index": 0}]}]
        reply = await client.ask("OffsetDelete", 0, group_id="g", topics=topics)
        assert reply["topics"][0]["partitions"][0]["error_code"] == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        await beat(client, "a", -1)
        reply = await client.ask("OffsetDelete", 0, group_id="g", topics=topics)
        assert reply["topics"][0]["partitions"][0]["error_code"] == ErrorCode.NONE


async def test_a_group_is_deleted_once_it_is_empty(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await join(client)
        refused = await client.ask("DeleteGroups", groups_names=["g"])
        assert refused["results"][0]["error_code"] == ErrorCode.NON_EMPTY_GROUP
        await beat(client, "a", -1)
        assert await listed(client) == [("g", "streams", "Empty", "streams")]
        deleted = await client.ask("DeleteGroups", groups_names=["g"])
        assert deleted["results"][0]["error_code"] == ErrorCode.NONE
        assert await listed(client) == []
    async with serving(tmp_path) as (_, client):
        assert await listed(client) == []


# -- other kinds of groups --


async def test_an_empty_classic_group_becomes_a_streams_group_with_its_offsets(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await commit(client, "", -1, 0)
        assert tasks(await join(client)) == {"0": (0, 1)}
        asked = {"group_id": "g", "member_id": "a", "member_epoch": 2, "topics": None}
        fetched = await client.ask("OffsetFetch", 9, groups=[asked], require_stable=False)
        assert fetched["groups"][0]["topics"][0]["partitions"][0]["committed_offset"] == 7


async def test_requests_of_other_kinds_do_not_touch_a_streams_group_with_members(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await join(client)
        classic = {"group_id": "g", "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "member_id": ""}
        classic |= {"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": subscription("orders")}]}
        assert (await client.ask("JoinGroup", 9, **classic))["error_code"] == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        consumer = {"group_id": "g", "member_id": "c", "member_epoch": 0, "rebalance_timeout_ms": 1000}
        consumer |= {"subscribed_topic_names": ["orders"], "server_assignor": None, "topic_partitions": []}
        refused = await client.ask("ConsumerGroupHeartbeat", 1, **consumer)
        assert (refused["error_code"], refused["error_message"]) == (
            ErrorCode.GROUP_ID_NOT_FOUND,
            "Group g is not a consumer group.",
        )
        shared = {"group_id": "g", "member_id": "s", "member_epoch": 0, "subscribed_topic_names": ["orders"]}
        refused = await client.ask("ShareGroupHeartbeat", 1, **shared)
        assert refused["error_message"] == "Group g is not a share group."
        described = await client.ask("DescribeGroups", 6, groups=["g"], include_authorized_operations=False)
        assert described["groups"][0]["error_message"] == "Group g is not a classic group."
        assert await listed(client, types_filter=["streams"]) == [("g", "streams", "Stable", "streams")]
        assert await listed(client, types_filter=["consumer"]) == []
        await beat(client, "a", -1)
        joined = await client.ask("JoinGroup", 9, **classic)
        assert joined["error_code"] == ErrorCode.MEMBER_ID_REQUIRED
        assert await listed(client) == [("g", "", "Empty", "classic")]


# -- settings --


async def test_a_group_has_settings_of_its_own(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        changes = {"streams.heartbeat.interval.ms": "7000", "streams.num.standby.replicas": "1"}
        configs = [{"name": name, "config_operation": SET, "value": value} for name, value in changes.items()]
        resource = {"resource_type": GROUP_RESOURCE, "resource_name": "g", "configs": configs}
        altered = await client.ask("IncrementalAlterConfigs", resources=[resource], validate_only=False)
        assert altered["responses"][0]["error_code"] == ErrorCode.NONE
        reply = await join(client, given=STATEFUL)
        assert reply["heartbeat_interval_ms"] == 7000
        reply = await join(client, "b", STATEFUL)
        while not tasks(reply, "standby"):
            await beat(client, "a", 0, **NO_TASKS, topology=STATEFUL, rebalance_timeout_ms=1000)
            reply = await join(client, "b", STATEFUL)
        assert tasks(reply, "standby") != tasks(reply)


async def test_members_without_the_tags_of_their_group_are_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        assert await set_own(client, **{"streams.rack.aware.assignment.tags": "zone,cluster"}) == ErrorCode.NONE
        reply = await join(client, client_tags=[{"key": "zone", "value": "a"}])
        details = {status["status_code"]: status["status_detail"] for status in reply["status"]}
        assert "[cluster]" in details[Status.MISSING_CLIENT_TAGS]
        reply = await join(client, client_tags=[{"key": key, "value": "a"} for key in ("zone", "cluster")])
        assert Status.MISSING_CLIENT_TAGS not in {status["status_code"] for status in reply["status"]}


@pytest.mark.parametrize(
    ("name", "value"),
    [("streams.rack.aware.assignment.tags", "zone,zone"), ("streams.assignor.name", "best")],
)
async def test_settings_of_a_group_that_make_no_sense_are_refused(tmp_path: Path, name: str, value: str) -> None:
    async with serving(tmp_path) as (_, client):
        assert await set_own(client, **{name: value}) == ErrorCode.INVALID_CONFIG


async def set_own(client: KafkaClient, **settings: str) -> int:
    """Change settings of the group; return the error code."""
    configs = [{"name": name, "config_operation": SET, "value": value} for name, value in settings.items()]
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": "g", "configs": configs}
    altered = await client.ask("IncrementalAlterConfigs", resources=[resource], validate_only=False)
    return int(altered["responses"][0]["error_code"])


async def test_too_many_standby_replicas_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, client):
        configs = [{"name": "streams.num.standby.replicas", "config_operation": SET, "value": "3"}]
        resource = {"resource_type": GROUP_RESOURCE, "resource_name": "g", "configs": configs}
        altered = await client.ask("IncrementalAlterConfigs", resources=[resource], validate_only=False)
        assert altered["responses"][0]["error_code"] == ErrorCode.INVALID_CONFIG


async def test_without_the_feature_streams_groups_are_not_served(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, client):
        update = {"feature": "streams.version", "max_version_level": 0, "upgrade_type": 2}
        await client.ask("UpdateFeatures", 1, feature_updates=[update], timeout_ms=1000, validate_only=False)
        assert (await join(client))["error_code"] == ErrorCode.UNSUPPORTED_VERSION
        reply = await client.ask("StreamsGroupDescribe", 0, group_ids=["g"], include_authorized_operations=False)
        assert reply["groups"][0]["error_code"] == ErrorCode.UNSUPPORTED_VERSION
