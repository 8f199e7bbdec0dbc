"""Groups of KIP-848 through the Kafka listener: members, commits, other kinds of groups, restarts, settings."""

from collections.abc import AsyncIterator, Generator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.broker.clients import Running, running
from tests.broker.groups.requests import SESSION_MS, subscription
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.broker.groups.effects import consumer as consumer_effects
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import NO_OFFSET, ListGroupsRequest
from warmlog.protocol.native.groups import DescribeConsumerGroupsRequest

SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.assignment.interval.ms": 0,
    "offsets.topic.num.partitions": 2,
}
PARTITIONS = 4
GROUP_RESOURCE = 32
SET, DELETE = 0, 1
EPOCH = 2  # of the first member of a group, as in Kafka 4.4


@asynccontextmanager
async def serving(data_dir: Path, **settings: Any) -> AsyncIterator[tuple[Running, KafkaClient]]:
    async with running(data_dir, SETTINGS | settings) as broker, kafka_client(broker.addresses.kafka, "app") as client:
        while (await client.ask("ListGroups", 5))["error_code"] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            await trio.lowlevel.checkpoint()
        yield broker, client


async def create(broker: Running, topic: str = "orders", partitions: int = PARTITIONS) -> None:
    native = await broker.connect()
    await native.create(topic, partitions=partitions)


async def beat(client: KafkaClient, member: str, epoch: int, *, version: int = 1, **fields: Any) -> dict[str, Any]:
    usual = {
        "rebalance_timeout_ms": -1,
        "subscribed_topic_names": None,
        "server_assignor": None,
        "topic_partitions": None,
    }
    asked = {"group_id": "g", "member_id": member, "member_epoch": epoch, **usual, **fields}
    return await client.ask("ConsumerGroupHeartbeat", version, **asked)


async def join(client: KafkaClient, member: str, *topics: str, **fields: Any) -> dict[str, Any]:
    usual = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [*topics] or ["orders"], "topic_partitions": []}
    return await beat(client, member, 0, **usual | fields)


def owned(reply: dict[str, Any]) -> set[int]:
    """Return the partitions of an assignment; all are of one topic."""
    topics = reply["assignment"]["topic_partitions"]
    return {partition for topic in topics for partition in topic["partitions"]}


async def settle(client: KafkaClient, *members: dict[str, Any]) -> dict[str, set[int]]:
    """Let members send heartbeats until none of their assignments changes, and return those."""
    replies = {reply["member_id"]: reply for reply in members}
    assigned = {name: reply["assignment"] for name, reply in replies.items()}
    unchanged = 0
    while unchanged < 2 * len(replies):
        for name in list(replies):
            partitions = assigned[name]["topic_partitions"] if assigned[name] else []
            reply = await beat(client, name, replies[name]["member_epoch"], topic_partitions=partitions)
            assert reply["error_code"] == ErrorCode.NONE, reply
            is_same = reply["member_epoch"] == replies[name]["member_epoch"] and reply["assignment"] is None
            unchanged = unchanged + 1 if is_same else 0
            if reply["assignment"] is not None:
                assigned[name] = reply["assignment"]
            replies[name] = reply
    return {name: owned({"assignment": each}) for name, each in assigned.items()}


async def commit(client: KafkaClient, epoch: int, member: str, *, partition: int = 0, version: int = 9) -> ErrorCode:
    partitions = [{"partition_index": partition, "committed_offset": 7, "committed_metadata": ""}]
    reply = await client.ask(
        "OffsetCommit",
        version,
        group_id="g",
        generation_id_or_member_epoch=epoch,
        member_id=member,
        topics=[{"name": "orders", "partitions": partitions}],
    )
    return ErrorCode(reply["topics"][0]["partitions"][0]["error_code"])


async def test_partitions_move_to_a_second_member_and_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        first = await join(client, "a")
        assert (first["error_code"], first["member_epoch"], owned(first)) == (ErrorCode.NONE, EPOCH, {0, 1, 2, 3})
        second = await join(client, "b")
        assert owned(second) == set()  # the first has everything, and does not know of the second
        both = await settle(client, first, second)
        assert sorted(map(len, both.values())) == [2, 2]
        assert both["a"] | both["b"] == {0, 1, 2, 3}
        left = await beat(client, "b", -1)
        assert (left["error_code"], left["member_epoch"]) == (ErrorCode.NONE, -1)
        assert await settle(client, await beat(client, "a", EPOCH + 1)) == {"a": {0, 1, 2, 3}}


async def test_a_group_continues_after_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        first, second = await join(client, "a"), await join(client, "b")
        before = await settle(client, first, second)
        described = await client.ask("ConsumerGroupDescribe", 1, group_ids=["g"])
    async with serving(tmp_path) as (broker, client):
        assert await client.ask("ConsumerGroupDescribe", 1, group_ids=["g"]) == described
        epoch = described["groups"][0]["group_epoch"]
        for name in ("a", "b"):
            reply = await beat(
                client, name, epoch, rebalance_timeout_ms=60_000, subscribed_topic_names=["orders"], topic_partitions=[]
            )
            assert reply["error_code"] == ErrorCode.NONE
            assert owned(reply) == before[name]


async def test_new_partitions_are_assigned_without_a_join(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        first = await join(client, "a", "orders", "later")
        assert owned(first) == {0, 1, 2, 3}
        reply = await client.ask(
            "CreatePartitions", topics=[{"name": "orders", "count": 6, "assignments": None}], timeout_ms=5000
        )
        assert reply["results"][0]["error_code"] == ErrorCode.NONE
        with trio.fail_after(10):
            while len((grown := await settle(client, await beat(client, "a", EPOCH)))["a"]) < 6:
                pass
        assert grown == {"a": set(range(6))}


async def test_commits_are_checked_against_the_members_epoch(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await join(client, "a")
        assert await commit(client, EPOCH, "a") is ErrorCode.NONE
        assert await commit(client, EPOCH + 1, "a") is ErrorCode.STALE_MEMBER_EPOCH
        assert await commit(client, EPOCH, "nobody") is ErrorCode.UNKNOWN_MEMBER_ID
        assert await commit(client, -1, "") is ErrorCode.UNKNOWN_MEMBER_ID
        assert await commit(client, EPOCH, "a", version=8) is ErrorCode.UNSUPPORTED_VERSION
        fetched = await client.ask(
            "OffsetFetch", 9, groups=[{"group_id": "g", "member_id": "a", "member_epoch": 5, "topics": None}]
        )
        assert fetched["groups"][0]["error_code"] == ErrorCode.STALE_MEMBER_EPOCH
        fetched = await client.ask(
            "OffsetFetch", 9, groups=[{"group_id": "g", "member_id": "a", "member_epoch": EPOCH, "topics": None}]
        )
        assert fetched["groups"][0]["topics"][0]["partitions"][0]["committed_offset"] == 7
        await beat(client, "a", -1)
        assert await commit(client, -1, "") is ErrorCode.NONE


async def test_a_group_of_another_kind_is_replaced_when_it_is_empty_only(tmp_path: Path) -> None:
    classic = {
        "group_id": "g",
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription("orders")}],
    }
    async with serving(tmp_path, **{"group.consumer.migration.policy": "disabled"}) as (broker, client):
        await create(broker)
        assert await commit(client, -1, "") is ErrorCode.NONE  # a group with offsets only
        await join(client, "a")
        assert (await client.ask("JoinGroup", 9, member_id="", **classic))["error_code"] in {
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            ErrorCode.MEMBER_ID_REQUIRED,
        }
        await beat(client, "a", -1)
        told = await client.ask("JoinGroup", 9, member_id="", **classic)
        assert told["error_code"] == ErrorCode.MEMBER_ID_REQUIRED
        joined = await client.ask("JoinGroup", 9, member_id=told["member_id"], **classic)
        assert joined["error_code"] == ErrorCode.NONE
        refused = await join(client, "a")
        assert refused["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
        left = await client.ask("LeaveGroup", 4, group_id="g", members=[{"member_id": told["member_id"]}])
        assert left["error_code"] == ErrorCode.NONE
        assert (await join(client, "a"))["member_epoch"] == EPOCH
    async with serving(tmp_path) as (_, client):
        listed = await client.ask("ListGroups", 5, states_filter=[], types_filter=["consumer"])
        assert [(each["group_id"], each["group_type"], each["group_state"]) for each in listed["groups"]] == [
            ("g", "consumer", "Stable")
        ]
        fetched = await client.ask("OffsetFetch", 9, groups=[{"group_id": "g", "topics": None}])
        assert fetched["groups"][0]["topics"][0]["partitions"][0]["committed_offset"] == 7


async def test_a_deleted_group_does_not_come_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        await join(client, "a")
        deleted = await client.ask("DeleteGroups", 2, groups_names=["g"])
        assert deleted["results"][0]["error_code"] == ErrorCode.NON_EMPTY_GROUP
        await beat(client, "a", -1)
        deleted = await client.ask("DeleteGroups", 2, groups_names=["g"])
        assert deleted["results"][0]["error_code"] == ErrorCode.NONE
    async with serving(tmp_path) as (_, client):
        described = await client.ask("ConsumerGroupDescribe", 1, group_ids=["g"])
        assert described["groups"][0]["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_groups_own_settings_take_effect_at_once(tmp_path: Path) -> None:
    async def alter(client: KafkaClient, value: str | None, name: str = "consumer.heartbeat.interval.ms") -> ErrorCode:
        change = {"name": name, "config_operation": DELETE if value is None else SET, "value": value}
        resource = {"resource_type": GROUP_RESOURCE, "resource_name": "g", "configs": [change]}
        reply = await client.ask("IncrementalAlterConfigs", resources=[resource])
        return ErrorCode(reply["responses"][0]["error_code"])

    async with serving(tmp_path) as (broker, client):
        await create(broker)
        assert (await join(client, "a"))["heartbeat_interval_ms"] == 5000
        assert await alter(client, "7000") is ErrorCode.NONE
        assert (await beat(client, "a", EPOCH))["heartbeat_interval_ms"] == 7000
        assert await alter(client, "1") is ErrorCode.INVALID_CONFIG
        assert await alter(client, "60000") is ErrorCode.INVALID_CONFIG
        assert await alter(client, "50000", "consumer.session.timeout.ms") is ErrorCode.NONE
        assert await alter(client, None) is ErrorCode.NONE
        assert (await beat(client, "a", EPOCH))["heartbeat_interval_ms"] == 5000


@pytest.mark.parametrize("version", [0, 1])
async def test_without_the_feature_the_protocol_is_refused_with_a_message(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path) as (_, client):
        update = {"feature": "group.version", "max_version_level": 0, "upgrade_type": 2}
        reply = await client.ask("UpdateFeatures", feature_updates=[update], timeout_ms=5000)
        assert reply["error_code"] == ErrorCode.NONE
        refused = await join(client, "m", version=version)
        assert refused["error_code"] == ErrorCode.UNSUPPORTED_VERSION
        assert "group.version" in refused["error_message"]
        described = await client.ask("ConsumerGroupDescribe", version, group_ids=["g"])
        assert described["groups"][0]["error_code"] == ErrorCode.UNSUPPORTED_VERSION


async def test_native_clients_describe_groups_of_the_consumer_protocol(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        joined = await join(client, "a")
        assert await commit(client, joined["member_epoch"], "a") is ErrorCode.NONE
        native = await broker.connect()
        (listed,) = (await native.ask(ListGroupsRequest())).groups
        assert (listed.group, listed.type, listed.state) == ("g", "consumer", "Stable")
        (described,) = (await native.ask(DescribeConsumerGroupsRequest(groups=("g",)))).groups
        assert (described.state, described.protocol, described.error) == ("Stable", "uniform", ErrorCode.NONE)
        (member,) = described.members
        assert (member.member_id, member.topics, len(member.partitions)) == ("a", ("orders",), PARTITIONS)
        assert [each.offset for each in described.positions if each.offset != NO_OFFSET] == [7]
        reply = await client.ask("DescribeGroups", 6, groups=["g"])
        assert reply["groups"][0]["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND


async def test_an_expression_without_end_delays_neither_other_groups_nor_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def matches(patterns: Iterable[str], names: Iterable[str]) -> Generator[None, None, dict[str, tuple[str, ...]]]:
        while "endless" in patterns:
            yield
        return {pattern: tuple(name for name in names if name == "orders") for pattern in patterns}

    monkeypatch.setattr(consumer_effects, "matches", matches)
    fields: dict[str, Any] = {"subscribed_topic_names": None}
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        slow = await join(client, "a", group_id="slow", subscribed_topic_regex="endless", **fields)
        assert slow["error_code"] == ErrorCode.NONE
        reply = await join(client, "a", subscribed_topic_regex="orders", **fields)
        with trio.fail_after(20):
            while not reply["assignment"] or not owned(reply):
                reply = await beat(client, "a", reply["member_epoch"])
    assert owned(reply) == set(range(PARTITIONS))
