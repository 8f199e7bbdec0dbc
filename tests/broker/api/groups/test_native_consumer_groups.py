"""Consumer groups (KIP-848) on the native listener, heartbeat by heartbeat, beside members with a Kafka client."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.clients import RawClient, Running, running
from tests.broker.kafka_client import kafka_client
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import OffsetCommitRequest, OffsetToCommit, PartitionEntry
from warmlog.protocol.native.groups import (
    DescribeConsumerGroupsRequest,
    HeartbeatConsumerGroupRequest,
    HeartbeatConsumerGroupResponse,
    JoinConsumerGroupRequest,
)
from warmlog.protocol.request import DeleteTopicsRequest
from warmlog.protocol.response import ErrorResponse

SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.assignment.interval.ms": 0,
    "offsets.topic.num.partitions": 1,
}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, SETTINGS) as broker:
        client = await broker.connect()
        await client.create("t", partitions=4)
        await client.create("u", partitions=2)
        yield broker


def held(*indexes: int, topic: str = "t") -> tuple[PartitionEntry, ...]:
    return tuple([PartitionEntry(topic=topic, partition=index) for index in indexes])


async def beat(client: RawClient, member: str, epoch: int, **fields: Any) -> Any:
    return await client.ask(
        HeartbeatConsumerGroupRequest(**{"group": "g", "member_id": member, "member_epoch": epoch, **fields})
    )


async def join(client: RawClient, member: str, **fields: Any) -> HeartbeatConsumerGroupResponse:
    joined = await beat(client, member, 0, **{"topics": ("t",), **fields})
    assert isinstance(joined, HeartbeatConsumerGroupResponse), joined
    return joined


async def test_a_member_is_assigned_partitions_by_name(served: Running) -> None:
    client = await served.connect()
    joined = await join(client, "a", topics=("t", "u", "missing"))
    assert set(joined.partitions or ()) == {*held(0, 1, 2, 3), *held(0, 1, topic="u")}
    assert joined.heartbeat_interval_ms == 5000
    again = await beat(client, "a", joined.member_epoch, partitions=joined.partitions)
    assert (again.member_epoch, again.partitions) == (joined.member_epoch, None)


async def test_partitions_move_when_their_owner_no_longer_reports_them(served: Running) -> None:
    client = await served.connect()
    first = await join(client, "a")
    assert (await join(client, "b")).partitions == ()
    asked = await beat(client, "a", first.member_epoch, partitions=first.partitions)
    assert len(asked.partitions) == 2
    second = await beat(client, "b", 3)
    assert not second.partitions  # they are still held
    assert (await beat(client, "a", first.member_epoch, partitions=asked.partitions)).member_epoch == 3
    second = await beat(client, "b", 3)
    assert {*second.partitions, *asked.partitions} == set(held(0, 1, 2, 3))
    assert (await beat(client, "b", -1)).member_epoch == -1
    assert set((await beat(client, "a", 3)).partitions) == set(held(0, 1, 2, 3))


async def test_a_pattern_subscribes_to_topics(served: Running) -> None:
    client = await served.connect()
    joined = await join(client, "a", topics=(), pattern="u|none")
    while not joined.partitions:
        joined = await beat(client, "a", joined.member_epoch)
    assert set(joined.partitions) == set(held(0, 1, topic="u"))
    refused = await beat(client, "b", 0, pattern="(")
    assert isinstance(refused, ErrorResponse)
    assert refused.error is ErrorCode.INVALID_REGULAR_EXPRESSION


async def test_a_deleted_topic_is_left_out(served: Running) -> None:
    client = await served.connect()
    joined = await join(client, "a", topics=("t", "u"))
    await client.ask(DeleteTopicsRequest(topics=("u",)))
    left = await beat(client, "a", joined.member_epoch, topics=("t", "u"), partitions=joined.partitions)
    while not left.partitions:
        left = await beat(client, "a", left.member_epoch, partitions=held(0, 1, 2, 3))
    assert set(left.partitions) == set(held(0, 1, 2, 3))


async def test_members_of_both_protocols_share_a_group(served: Running) -> None:
    client = await served.connect()
    first = await join(client, "a")
    async with kafka_client(served.addresses.kafka, "app") as kafka:
        await kafka.ask(
            "ConsumerGroupHeartbeat", 1, group_id="g", member_id="k", member_epoch=0, rebalance_timeout_ms=60_000,
            subscribed_topic_names=["t"], server_assignor=None, topic_partitions=[],
        )  # fmt: skip
        kept = (await beat(client, "a", first.member_epoch, partitions=first.partitions)).partitions
        assert len(kept) == 2
        (described,) = (await client.ask(DescribeConsumerGroupsRequest(groups=("g",)))).groups
        assert {member.member_id for member in described.members} == {"a", "k"}
        assert described.protocol == "uniform"


async def test_commits_need_the_epoch(served: Running) -> None:
    client = await served.connect()
    epoch = (await join(client, "a")).member_epoch
    offsets = (OffsetToCommit(topic="t", partition=0, offset=7),)
    for given, error in ((epoch, ErrorCode.NONE), (epoch + 1, ErrorCode.STALE_MEMBER_EPOCH)):
        request = OffsetCommitRequest(group="g", generation=given, member_id="a", partitions=offsets)
        assert (await client.ask(request)).partitions[0].error is error


async def test_what_is_refused(served: Running) -> None:
    client = await served.connect()
    joined = await join(client, "a", instance_id="i")
    cases = (
        (beat(client, "a", joined.member_epoch + 1, instance_id="i"), ErrorCode.FENCED_MEMBER_EPOCH),
        (beat(client, "b", 1), ErrorCode.UNKNOWN_MEMBER_ID),
        (beat(client, "b", 0, topics=("t",), instance_id="i"), ErrorCode.UNRELEASED_INSTANCE_ID),
        (beat(client, "b", 0, topics=("t",), assignor="none"), ErrorCode.UNSUPPORTED_ASSIGNOR),
        (beat(client, "b", 0), ErrorCode.INVALID_REQUEST),
        (beat(client, "", 0, topics=("t",)), ErrorCode.INVALID_REQUEST),
    )
    for answer, error in cases:
        refused = await answer
        assert isinstance(refused, ErrorResponse)
        assert refused.error is error
    assert (await beat(client, "a", -2, instance_id="i")).member_epoch == -2
    assert set((await join(client, "c", instance_id="i")).partitions or ()) == set(held(0, 1, 2, 3))


async def test_without_conversion_a_group_of_classic_members_takes_no_other(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS | {"group.consumer.migration.policy": "disabled"}) as broker:
        client = await broker.connect()
        await client.create("t", partitions=4)
        await client.ask(JoinConsumerGroupRequest(group="classic", topics=("t",)))
        refused = await beat(client, "a", 0, group="classic", topics=("t",))
        assert refused.error is ErrorCode.GROUP_ID_NOT_FOUND
        assert "classic" in (refused.message or "")
