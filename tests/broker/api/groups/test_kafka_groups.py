"""Requests about groups through the Kafka listener, each at least once, with the codes that clients look for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.broker.clients import Running, running
from tests.broker.groups.requests import SESSION_MS, subscription
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.broker.net import request_handling
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import CoordinatorType, GroupState

SETTINGS = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 2}


@asynccontextmanager
async def serving(data_dir: Path) -> AsyncIterator[tuple[Running, KafkaClient]]:
    async with running(data_dir, SETTINGS) as broker, kafka_client(broker.addresses.kafka, "app") as client:
        native = await broker.connect()
        await native.create("orders", partitions=2)
        yield broker, client


def join_fields(member_id: str = "", **fields: Any) -> dict[str, Any]:
    return {
        "group_id": "g",
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": 60_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription("orders")}],
        **fields,
    }


async def join(client: KafkaClient) -> dict[str, Any]:
    """Become the only member, stable."""
    told = await client.ask("JoinGroup", **join_fields())
    assert told["error_code"] == ErrorCode.MEMBER_ID_REQUIRED
    joined = await client.ask("JoinGroup", **join_fields(told["member_id"]))
    assert joined["error_code"] == ErrorCode.NONE
    synced = await client.ask(
        "SyncGroup",
        **as_member(joined),
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": joined["member_id"], "assignment": b"mine"}],
    )
    assert (synced["error_code"], bytes(synced["assignment"])) == (ErrorCode.NONE, b"mine")
    return joined


def as_member(joined: dict[str, Any]) -> dict[str, Any]:
    return {"group_id": "g", "generation_id": joined["generation_id"], "member_id": joined["member_id"]}


async def commit(
    client: KafkaClient, version: int = 9, *, topic: str = "orders", partition: int = 0, **who: Any
) -> ErrorCode:
    partitions = [{"partition_index": partition, "committed_offset": 7, "committed_metadata": "note"}]
    fields: dict[str, Any] = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", **who}
    reply = await client.ask("OffsetCommit", version, topics=[{"name": topic, "partitions": partitions}], **fields)
    return ErrorCode(reply["topics"][0]["partitions"][0]["error_code"])


async def test_this_broker_coordinates_every_group(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        for version in (0, 3, 6):
            keys: dict[str, Any] = {"coordinator_keys": ["g", "h"]} if version >= 4 else {"key": "g"}
            reply = await client.ask("FindCoordinator", version, **keys)
            found = reply["coordinators"] if version >= 4 else [reply]
            assert {one["error_code"] for one in found} == {0}
            assert {f"{one['host']}:{one['port']}" for one in found} == {broker.addresses.kafka}


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (CoordinatorType.SHARE, ErrorCode.INVALID_REQUEST),
        (77, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_other_coordinators_are_not_here(tmp_path: Path, kind: int, error: ErrorCode) -> None:
    async with serving(tmp_path) as (_, client):
        reply = await client.ask("FindCoordinator", coordinator_keys=["t"], key_type=kind)
        (found,) = reply["coordinators"]
        assert (found["error_code"], found["node_id"]) == (error, -1)
        assert found["error_message"]


async def test_a_members_life(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, client):
        joined = await join(client)
        assert joined["member_id"].startswith("app-")
        assert (await client.ask("Heartbeat", **as_member(joined)))["error_code"] == ErrorCode.NONE
        member = {"generation_id_or_member_epoch": 1, "member_id": joined["member_id"]}
        assert await commit(client, **member) is ErrorCode.NONE
        assert await commit(client, **{**member, "generation_id_or_member_epoch": 3}) is ErrorCode.ILLEGAL_GENERATION
        assert await commit(client, topic="none", **member) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await commit(client) is ErrorCode.UNKNOWN_MEMBER_ID
        gone = {"group_id": "gone", **member}
        assert await commit(client, 9, **gone) is ErrorCode.GROUP_ID_NOT_FOUND
        assert await commit(client, 8, **gone) is ErrorCode.ILLEGAL_GENERATION, "older clients know no other"
        left = await client.ask("LeaveGroup", group_id="g", members=[{"member_id": joined["member_id"]}])
        assert [one["error_code"] for one in left["members"]] == [ErrorCode.NONE]
        assert (await client.ask("Heartbeat", **as_member(joined)))["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID


async def test_offsets_of_several_groups_are_fetched(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, client):
        assert await commit(client) is ErrorCode.NONE
        assert await commit(client, group_id="h", partition=1) is ErrorCode.NONE
        groups = [
            {"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [0, 1]}]},
            {"group_id": "h", "topics": None},
            {"group_id": "nobody", "topics": None},
        ]
        reply = await client.ask("OffsetFetch", 9, groups=groups, require_stable=True)
        found = [
            (group["group_id"], one["partition_index"], one["committed_offset"], one["metadata"], one["error_code"])
            for group in reply["groups"]
            for topic in group["topics"]
            for one in topic["partitions"]
        ]
        assert found == [("g", 0, 7, "note", 0), ("g", 1, -1, "", 0), ("h", 1, 7, "note", 0)]
        assert {group["error_code"] for group in reply["groups"]} == {0}


async def test_groups_are_listed_by_state_and_type_and_described(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, client):
        joined = await join(client)
        await commit(client, group_id="simple")

        async def listed(states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> list[str]:
            reply = await client.ask("ListGroups", states_filter=states, types_filter=types)
            return sorted(group["group_id"] for group in reply["groups"])

        assert await listed() == ["g", "simple"]
        assert await listed(states=("stable",)) == ["g"]
        assert await listed(states=("Empty", "Dead")) == ["simple"]
        assert await listed(types=("Classic",)) == ["g", "simple"]
        assert await listed(types=("consumer",)) == []
        described = (await client.ask("DescribeGroups", groups=["g", "nobody"]))["groups"]
        assert described[0]["group_state"] == GroupState.STABLE
        (member,) = described[0]["members"]
        assert (member["member_id"], member["client_id"], member["client_host"]) == (
            joined["member_id"],
            "app",
            "/127.0.0.1",
        )
        assert bytes(member["member_assignment"]) == b"mine"
        assert (described[1]["group_state"], described[1]["error_code"]) == (
            GroupState.DEAD,
            ErrorCode.GROUP_ID_NOT_FOUND,
        )


async def test_a_group_in_a_rebalance_is_described_with_its_former_assignments(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client), kafka_client(broker.addresses.kafka) as second:
        first = await join(client)
        told = await second.ask("JoinGroup", **join_fields())
        await second.send("JoinGroup", **join_fields(told["member_id"]))
        described: dict[str, Any] = {}
        with trio.fail_after(30):
            while described.get("group_state") != GroupState.PREPARING_REBALANCE:
                (described,) = (await client.ask("DescribeGroups", groups=["g"]))["groups"]
        assert {one["member_id"]: bytes(one["member_assignment"]) for one in described["members"]} == {
            first["member_id"]: b"mine",
            told["member_id"]: b"",
        }
        await client.ask("JoinGroup", **join_fields(first["member_id"]))
        (described,) = (await client.ask("DescribeGroups", groups=["g"]))["groups"]
        assert described["group_state"] == GroupState.COMPLETING_REBALANCE
        assert {bytes(one["member_assignment"]) for one in described["members"]} == {b"mine", b""}
        await second.reply()


async def test_offsets_and_groups_are_deleted(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, client):
        joined = await join(client)
        await commit(client, generation_id_or_member_epoch=1, member_id=joined["member_id"])

        async def delete_offsets(group: str) -> tuple[ErrorCode, list[ErrorCode]]:
            topics = [{"name": "orders", "partitions": [{"partition_index": 0}]}]
            reply = await client.ask("OffsetDelete", group_id=group, topics=topics)
            errors = [one["error_code"] for topic in reply["topics"] for one in topic["partitions"]]
            return ErrorCode(reply["error_code"]), [ErrorCode(error) for error in errors]

        assert await delete_offsets("g") == (ErrorCode.NONE, [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC])
        assert (await delete_offsets("nobody"))[0] is ErrorCode.GROUP_ID_NOT_FOUND

        async def delete(*groups: str) -> list[int]:
            reply = await client.ask("DeleteGroups", groups_names=list(groups))
            return [one["error_code"] for one in reply["results"]]

        assert await delete("g", "nobody") == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
        await client.ask("LeaveGroup", group_id="g", members=[{"member_id": joined["member_id"]}])
        assert await delete_offsets("g") == (ErrorCode.NONE, [ErrorCode.NONE])
        assert await delete("g", "g") == [ErrorCode.NONE]
        assert (await client.ask("ListGroups"))["groups"] == ()


async def test_a_client_that_goes_away_while_it_waits_leaves_its_member(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        joined = await join(client)
        async with kafka_client(broker.addresses.kafka) as second:
            told = await second.ask("JoinGroup", **join_fields())
            await second.send("JoinGroup", **join_fields(told["member_id"]))
            with trio.fail_after(10):
                while (await client.ask("Heartbeat", **as_member(joined)))["error_code"] == ErrorCode.NONE:
                    pass
        again = await client.ask("JoinGroup", **join_fields(joined["member_id"]))
        assert again["generation_id"] == 2
        assert len(again["members"]) == 2


async def test_who_waits_for_a_rebalance_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        joined = await join(client)
        async with kafka_client(broker.addresses.kafka) as second:
            told = await second.ask("JoinGroup", **join_fields())
            await second.send("JoinGroup", **join_fields(told["member_id"]))
            with trio.fail_after(10):
                while (await client.ask("Heartbeat", **as_member(joined)))["error_code"] == ErrorCode.NONE:
                    pass
            broker.stop.set()
            assert (await second.reply())["error_code"] == ErrorCode.NOT_COORDINATOR
            await broker.ended.wait()


async def test_a_member_that_half_closes_is_answered_but_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_handling, "HALF_CLOSED_MEMBER_S", 0.1)
    async with serving(tmp_path) as (broker, client):
        await join(client)
        async with kafka_client(broker.addresses.kafka) as other:
            await other.send("JoinGroup", **join_fields())
            await other.stream.send_eof()
            told = await other.reply()
            assert told["error_code"] == ErrorCode.MEMBER_ID_REQUIRED
            assert await other.stream.receive_some() == b""
        async with kafka_client(broker.addresses.kafka) as other:
            await other.send("JoinGroup", **join_fields(told["member_id"]))  # waits until the first one joins again
            await other.stream.send_eof()
            assert await other.stream.receive_some() == b""
