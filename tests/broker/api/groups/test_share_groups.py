"""Share groups (KIP-932) through the Kafka listener: members, offsets, other kinds of groups, restarts, settings."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.broker.clients import Running, batch, running
from tests.broker.groups.requests import subscription
from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.broker.rig import rig
from warmlog.protocol.errors import ErrorCode

SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.share.assignment.interval.ms": 0,
    "offsets.topic.num.partitions": 2,
    "share.coordinator.state.topic.num.partitions": 2,
}
GROUP_RESOURCE = 32
SET = 0
UNKNOWN_START = -1


@asynccontextmanager
async def serving(data_dir: Path, **settings: Any) -> AsyncIterator[tuple[Running, KafkaClient]]:
    async with running(data_dir, SETTINGS | settings) as broker, kafka_client(broker.addresses.kafka, "app") as client:
        while (await client.ask("ListGroups", 5))["error_code"] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            await trio.lowlevel.checkpoint()
        yield broker, client


async def create(broker: Running, topic: str = "orders", partitions: int = 2) -> None:
    native = await broker.connect()
    await native.create(topic, partitions=partitions)


async def beat(client: KafkaClient, member: str, epoch: int, **fields: Any) -> dict[str, Any]:
    asked = {"group_id": "g", "member_id": member, "member_epoch": epoch, **fields}
    return await client.ask("ShareGroupHeartbeat", 1, **asked)


async def join(client: KafkaClient, member: str = "a", *topics: str) -> dict[str, Any]:
    return await beat(client, member, 0, subscribed_topic_names=[*topics] or ["orders"])


def owned(reply: dict[str, Any]) -> set[int]:
    """Return the partitions of an assignment; all are of one topic."""
    return {partition for topic in reply["assignment"]["topic_partitions"] for partition in topic["partitions"]}


async def assigned(client: KafkaClient, member: str = "a", *topics: str, count: int = 2) -> dict[str, Any]:
    """Join, and send heartbeats until the member has so many partitions."""
    reply = await join(client, member, *topics)
    while reply["assignment"] is None or len(owned(reply)) != count:
        assert reply["error_code"] == ErrorCode.NONE, reply
        reply = await beat(client, member, reply["member_epoch"], subscribed_topic_names=[*topics] or ["orders"])
    return reply


async def offsets(client: KafkaClient, *partitions: int, topic: str = "orders") -> dict[int, tuple[int, int, int]]:
    """Return start offset, lag and error of partitions, all of them if none is given."""
    topics = [{"topic_name": topic, "partitions": [*partitions]}] if partitions else None
    reply = await client.ask("DescribeShareGroupOffsets", 1, groups=[{"group_id": "g", "topics": topics}])
    (group,) = reply["groups"]
    assert group["error_code"] == ErrorCode.NONE
    return {
        each["partition_index"]: (each["start_offset"], each["lag"], each["error_code"])
        for topic in group["topics"]
        for each in topic["partitions"]
    }


async def alter(client: KafkaClient, starts: dict[int, int], group: str = "g") -> dict[str, Any]:
    partitions = [{"partition_index": partition, "start_offset": start} for partition, start in starts.items()]
    topics = [{"topic_name": "orders", "partitions": partitions}]
    return await client.ask("AlterShareGroupOffsets", 0, group_id=group, topics=topics)


async def delete(client: KafkaClient, *topics: str, group: str = "g") -> dict[str, Any]:
    named = [{"topic_name": topic} for topic in topics]
    return await client.ask("DeleteShareGroupOffsets", 0, group_id=group, topics=named)


async def listed(client: KafkaClient, **filters: Any) -> list[tuple[str, ...]]:
    reply = await client.ask("ListGroups", 5, states_filter=[], types_filter=[], **filters)
    return [
        (each["group_id"], each["protocol_type"], each["group_state"], each["group_type"]) for each in reply["groups"]
    ]


# -- members --


async def test_partitions_are_assigned_once_their_states_are_there(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        first = await join(client)
        assert (first["error_code"], first["member_epoch"], owned(first)) == (ErrorCode.NONE, 2, set())
        assert first["heartbeat_interval_ms"] == 5000
        assert owned(await assigned(client)) == {0, 1}
        assert await offsets(client) == {0: (UNKNOWN_START, -1, 0), 1: (UNKNOWN_START, -1, 0)}


async def test_a_group_can_be_deleted_whose_topic_was_deleted_while_no_coordinator_served_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await assigned(client)
        await beat(client, "a", -1)
    async with rig(tmp_path) as stopped:
        assert await stopped.partitions.delete_all(["orders"], trio.lowlevel.checkpoint) == {}
    async with serving(tmp_path) as (_, client):
        assert await offsets(client) == {}
        reply = await client.ask("DeleteGroups", groups_names=["g"])
        assert [each["error_code"] for each in reply["results"]] == [ErrorCode.NONE]


async def test_two_members_share_the_partitions(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await assigned(client)
        second = await join(client, "b")
        first = await beat(client, "a", second["member_epoch"] - 1)
        assert owned(first) | owned(second) == {0, 1}
        assert owned(first) & owned(second) == set()
        left = await beat(client, "b", -1)
        assert (left["error_code"], left["member_id"], left["member_epoch"]) == (ErrorCode.NONE, "b", -1)


async def test_a_group_is_described(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await assigned(client)
        reply = await client.ask("ShareGroupDescribe", 1, group_ids=["g", "h", ""], include_authorized_operations=True)
        group, unknown, unnamed = reply["groups"]
        assert (group["group_state"], group["assignor_name"]) == ("Stable", "simple")
        assert group["group_epoch"] == group["assignment_epoch"]
        assert group["authorized_operations"] > 0
        (member,) = group["members"]
        assert (member["member_id"], member["client_id"], member["client_host"]) == ("a", "app", "/127.0.0.1")
        assert member["subscribed_topic_names"] == ("orders",)
        (topic,) = member["assignment"]["topic_partitions"]
        assert (topic["topic_name"], topic["partitions"]) == ("orders", (0, 1))
        assert (unknown["error_code"], unknown["error_message"]) == (
            ErrorCode.GROUP_ID_NOT_FOUND,
            "Group h not found.",
        )
        assert unnamed["error_code"] == ErrorCode.INVALID_GROUP_ID


async def test_members_and_offsets_outlive_the_broker(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        member = await assigned(client)
    async with serving(tmp_path) as (_, client):
        assert await listed(client) == [("g", "share", "Stable", "share")]
        again = await beat(client, "a", member["member_epoch"], subscribed_topic_names=["orders"])
        assert (again["member_epoch"], owned(again)) == (member["member_epoch"], {0, 1})


async def test_a_request_of_an_unknown_member_or_group_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        unknown = await beat(client, "a", 1)
        assert (unknown["error_code"], unknown["error_message"]) == (
            ErrorCode.GROUP_ID_NOT_FOUND,
            "Share group g not found.",
        )
        await join(client)
        assert (await beat(client, "b", 1))["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
        assert (await beat(client, "a", 9))["error_code"] == ErrorCode.FENCED_MEMBER_EPOCH
        assert (await beat(client, "", 0))["error_code"] == ErrorCode.INVALID_REQUEST


async def test_a_group_counts_for_who_joins_it(tmp_path: Path) -> None:
    async with serving(tmp_path, **{"warmlog.groups.memory.max.bytes": 1 << 20}) as (broker, client):
        await create(broker, partitions=1000)
        errors = [(await join(client, f"m{number}"))["error_code"] for number in range(120)]
        assert errors[0] == ErrorCode.NONE
        assert errors[-1] == ErrorCode.GROUP_MAX_SIZE_REACHED


# -- other kinds of groups --


async def test_requests_of_other_kinds_do_not_touch_a_share_group(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await assigned(client)
        protocols = [{"name": "range", "metadata": subscription("orders")}]
        joined = await client.ask(
            "JoinGroup", 9, group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, member_id="",
            protocol_type="consumer", protocols=protocols,
        )  # fmt: skip
        assert joined["error_code"] == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        consumer = await client.ask(
            "ConsumerGroupHeartbeat", 1, group_id="g", member_id="c", member_epoch=0, rebalance_timeout_ms=1000,
            subscribed_topic_names=["orders"], server_assignor=None, topic_partitions=[],
        )  # fmt: skip
        assert (consumer["error_code"], consumer["error_message"]) == (
            ErrorCode.GROUP_ID_NOT_FOUND,
            "Group g is not a consumer group.",
        )
        partitions = [{"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}]
        committed = await client.ask(
            "OffsetCommit", 9, group_id="g", generation_id_or_member_epoch=-1, member_id="",
            topics=[{"name": "orders", "partitions": partitions}],
        )  # fmt: skip
        assert committed["topics"][0]["partitions"][0]["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
        fetched = await client.ask(
            "OffsetFetch", 9, groups=[{"group_id": "g", "member_id": None, "member_epoch": -1, "topics": None}],
            require_stable=False,
        )  # fmt: skip
        assert fetched["groups"][0]["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
        deleted = await client.ask("OffsetDelete", 0, group_id="g", topics=[])
        assert deleted["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
        described = await client.ask("DescribeGroups", 6, groups=["g"], include_authorized_operations=False)
        assert described["groups"][0]["error_message"] == "Group g is not a classic group."
        assert await listed(client) == [("g", "share", "Stable", "share")]


async def test_a_share_group_does_not_replace_another_group(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        partitions = [{"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}]
        await client.ask(
            "OffsetCommit", 9, group_id="g", generation_id_or_member_epoch=-1, member_id="",
            topics=[{"name": "orders", "partitions": partitions}],
        )  # fmt: skip
        refused = await join(client)
        assert (refused["error_code"], refused["error_message"]) == (
            ErrorCode.GROUP_ID_NOT_FOUND,
            "Group g is not a share group.",
        )
        assert (await alter(client, {0: 0}))["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
        assert (await delete(client, "orders"))["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND


# -- offsets --


async def test_offsets_of_a_group_without_members_can_be_altered(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        native = await broker.connect()
        for record in (b"1", b"2", b"3"):
            await native.produce("orders", batch(record))
        reply = await alter(client, {0: 1, 5: 0, 1: -5})
        assert (reply["error_code"], reply["responses"][0]["topic_name"]) == (ErrorCode.NONE, "orders")
        errors = {each["partition_index"]: each["error_code"] for each in reply["responses"][0]["partitions"]}
        assert errors == {
            0: ErrorCode.NONE,
            1: ErrorCode.INVALID_REQUEST,
            5: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert await offsets(client) == {0: (1, 2, 0)}
        assert await offsets(client, 0, 1, 9) == {0: (1, 2, 0), 1: (-1, -1, 0), 9: (-1, -1, 0)}
        assert await listed(client) == [("g", "share", "Empty", "share")]
        await alter(client, {0: 2})
        assert (await offsets(client))[0][0] == 2
        await assigned(client)
        reply = await alter(client, {0: 0})
        assert (reply["error_code"], reply["error_message"]) == (ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
        assert reply["responses"] == ()


async def test_altering_nothing_that_exists_creates_no_group(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, client):
        reply = await alter(client, {0: 1})
        outcome = reply["responses"][0]["partitions"][0]
        assert outcome["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await listed(client) == []
        assert (await alter(client, {0: 1}, group=""))["error_code"] == ErrorCode.INVALID_GROUP_ID


async def test_offsets_of_a_group_without_members_can_be_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await create(broker, "other")
        assert (await delete(client, "orders"))["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
        await assigned(client)
        refused = await delete(client, "orders")
        assert (refused["error_code"], refused["error_message"]) == (
            ErrorCode.NON_EMPTY_GROUP,
            "The group is not empty.",
        )
        await beat(client, "a", -1)
        reply = await delete(client, "orders", "other", "missing")
        errors = {each["topic_name"]: (each["error_code"], each["error_message"]) for each in reply["responses"]}
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert errors == {
            "orders": (ErrorCode.NONE, None),
            "other": (unknown, "There is no offset information to delete."),
            "missing": (unknown, "This server does not host this topic-partition."),
        }
        assert await offsets(client) == {}
        assert owned(await assigned(client)) == {0, 1}


async def test_a_group_is_deleted_with_its_offsets(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await alter(client, {0: 1})
        await assigned(client)
        refused = await client.ask("DeleteGroups", 2, groups_names=["g"])
        assert refused["results"][0]["error_code"] == ErrorCode.NON_EMPTY_GROUP
        await beat(client, "a", -1)
        deleted = await client.ask("DeleteGroups", 2, groups_names=["g"])
        assert deleted["results"][0]["error_code"] == ErrorCode.NONE
        assert await listed(client) == []
        assert await offsets(client, 0) == {0: (UNKNOWN_START, -1, 0)}
    async with serving(tmp_path) as (_, client):
        assert await listed(client) == []


async def test_a_deleted_topic_is_forgotten(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await create(broker, "other", 1)
        await assigned(client, "a", "orders", "other", count=2)
        await client.ask("DeleteTopics", 6, topics=[{"name": "orders", "topic_id": bytes(16)}], timeout_ms=1000)
        reply = await beat(client, "a", -1)
        assert reply["error_code"] == ErrorCode.NONE
        assert list(await offsets(client)) == [0]


# -- settings --


async def test_a_group_has_settings_of_its_own(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)

        async def change(name: str, value: str) -> ErrorCode:
            configs = [{"name": name, "config_operation": SET, "value": value}]
            resource = {"resource_type": GROUP_RESOURCE, "resource_name": "g", "configs": configs}
            reply = await client.ask("IncrementalAlterConfigs", resources=[resource], validate_only=False)
            return ErrorCode(reply["responses"][0]["error_code"])

        assert await change("share.heartbeat.interval.ms", "6000") is ErrorCode.NONE
        assert (await join(client))["heartbeat_interval_ms"] == 6000
        for name, value in [
            ("share.heartbeat.interval.ms", "1"),
            ("share.session.timeout.ms", "1"),
            ("share.auto.offset.reset", "sometimes"),
            ("share.auto.offset.reset", "by_duration:-PT1H"),
            ("share.auto.offset.reset", "by_duration:P"),
            ("share.isolation.level", "serializable"),
            ("errors.deadletterqueue.topic.name", "dlq." + 300 * "x"),
            ("errors.deadletterqueue.topic.name", "dlq.no topic"),
            ("share.renew.acknowledge.enable", "perhaps"),
            ("errors.deadletterqueue.topic.name", "__x"),
        ]:
            assert await change(name, value) is ErrorCode.INVALID_CONFIG, (name, value)
        for name, value in [
            ("share.auto.offset.reset", "earliest"),
            ("share.auto.offset.reset", "by_duration:P1DT2H3.5S"),
            ("share.isolation.level", "read_committed"),
            ("share.renew.acknowledge.enable", "false"),
            ("errors.deadletterqueue.topic.name", "dlq.orders"),
            ("errors.deadletterqueue.copy.record.enable", "true"),
        ]:
            assert await change(name, value) is ErrorCode.NONE, (name, value)


@pytest.mark.parametrize("level", [0, 1])
async def test_share_groups_need_their_feature(tmp_path: Path, level: int) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        update = {"feature": "share.version", "max_version_level": level, "upgrade_type": 2}
        reply = await client.ask("UpdateFeatures", 1, timeout_ms=1000, feature_updates=[update], validate_only=False)
        assert reply["error_code"] == ErrorCode.NONE
        expected = ErrorCode.NONE if level else ErrorCode.UNSUPPORTED_VERSION
        assert (await join(client))["error_code"] == expected
        reply = await client.ask("DescribeShareGroupOffsets", 1, groups=[{"group_id": "g", "topics": None}])
        assert reply["groups"][0]["error_code"] == expected
