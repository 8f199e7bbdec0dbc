"""What rights give in share groups: members, records, offsets, both protocols."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.broker.api.authorization.rig import SECRET, Certificates, Secured, acl, codes, secured
from tests.broker.api.share.members import ACCEPT, Member, acquired, values
from tests.broker.clients import batch
from warmlog.broker.security.acls import Operation, ResourceType
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.native.messages import VERSIONS
from warmlog.protocol.native.share import (
    AcknowledgedOffsets,
    AcknowledgedPartition,
    Acknowledgement,
    AcknowledgeShareGroupRequest,
    AlterGroupsRequest,
    FetchShareGroupRequest,
    GroupAlteration,
    HeartbeatShareGroupRequest,
    ResetShareGroupRequest,
    ShareStart,
)
from warmlog.protocol.request import HelloRequest

TOPIC, OTHER, GROUP = "secret-topic", "shown-topic", "secret-group"
NO_TOPIC, NO_GROUP = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED
LIMIT_S = 20
LONG_MS = 20_000
SETTINGS = {"share_coordinator_state_topic_num_partitions": 1, "group_share_assignment_interval_ms": 0}


def of_topic(operation: Operation, name: str = TOPIC) -> Any:
    return acl(ResourceType.TOPIC, name, operation)


def of_group(operation: Operation) -> Any:
    return acl(ResourceType.GROUP, GROUP, operation)


async def beat(client: Any, member: str, epoch: int, *topics: str) -> dict[str, Any]:
    asked = {"group_id": GROUP, "member_id": member, "member_epoch": epoch}
    reply = await client.ask("ShareGroupHeartbeat", 1, **asked, subscribed_topic_names=topics or None)
    return dict(reply)


@asynccontextmanager
async def shared(certificates: Certificates, directory: Path) -> AsyncIterator[Secured]:
    """A broker with two topics of a record each, and a group that begins at their first ones."""
    async with secured(certificates, directory / "data", **SETTINGS) as broker:
        native = await broker.native("admin")
        for topic in (TOPIC, OTHER):
            await native.create(topic)
            assert (await native.produce(topic, batch(SECRET))).error is ErrorCode.NONE
        found = await broker.admin.ask("Metadata", topics=[{"name": TOPIC, "topic_id": bytes(16)}])
        broker.topic_id = found["topics"][0]["topic_id"]
        starts = [
            {"topic_name": topic, "partitions": [{"partition_index": 0, "start_offset": 0}]} for topic in (TOPIC, OTHER)
        ]
        while True:
            reply = await broker.admin.ask("AlterShareGroupOffsets", group_id=GROUP, topics=starts)
            if codes(reply) == {ErrorCode.NONE}:
                break
            assert codes(reply) <= {0, 14, 15, 16}, reply
        yield broker


@asynccontextmanager
async def joined(broker: Secured, *topics: str) -> AsyncIterator[None]:
    """A member that has been assigned the partitions of topics, while the context lasts."""
    reply = await beat(broker.admin, "admins", 0, *topics)
    while reply["assignment"] is None or len(reply["assignment"]["topic_partitions"]) != len(topics):
        assert reply["error_code"] == ErrorCode.NONE, reply
        reply = await beat(broker.admin, "admins", reply["member_epoch"], *topics)
    yield
    await beat(broker.admin, "admins", -1)


async def offsets(client: Any, *topics: str) -> dict[str, tuple[int, int]]:
    """Return start offset and error by topic, of all topics if none is named."""
    named = [{"topic_name": topic, "partitions": [0]} for topic in topics] or None
    reply = await client.ask("DescribeShareGroupOffsets", 1, groups=[{"group_id": GROUP, "topics": named}])
    (group,) = reply["groups"]
    if group["error_code"]:
        return {"": (-1, group["error_code"])}
    return {
        topic["topic_name"]: (topic["partitions"][0]["start_offset"], topic["partitions"][0]["error_code"])
        for topic in group["topics"]
    }


async def test_a_member_needs_read_on_the_group_and_describe_on_its_topics(
    certificates: Certificates, tmp_path: Path
) -> None:
    async with shared(certificates, tmp_path) as broker:
        client = await broker.client("half")
        await broker.allow(of_topic(Operation.ALL), of_group(Operation.DESCRIBE))
        assert (await beat(client, "m", 0, TOPIC))["error_code"] == NO_GROUP
        await broker.allow(of_group(Operation.READ))
        assert (await beat(client, "m", 0, TOPIC))["error_code"] == NO_TOPIC
        assert (await beat(client, 37 * "m", 0, TOPIC))["error_code"] == ErrorCode.INVALID_REQUEST, "first, as Kafka"
        absent = await beat(client, "m", 0, "absent-topic")
        assert absent["error_code"] == NO_TOPIC
        await broker.allow(of_group(Operation.READ), of_topic(Operation.DESCRIBE))
        assert (await beat(client, "m", 0, TOPIC))["error_code"] == ErrorCode.NONE


async def test_a_description_of_a_group_names_no_hidden_topics(certificates: Certificates, tmp_path: Path) -> None:
    async with shared(certificates, tmp_path) as broker, joined(broker, TOPIC, OTHER):
        client = await broker.client("half")

        async def described() -> dict[str, Any]:
            return dict((await client.ask("ShareGroupDescribe", 1, group_ids=[GROUP]))["groups"][0])

        assert (await described())["error_code"] == NO_GROUP
        await broker.allow(of_group(Operation.DESCRIBE), of_topic(Operation.DESCRIBE, OTHER))
        hidden = await described()
        assert (hidden["error_code"], hidden["members"]) == (NO_TOPIC, ())
        await broker.allow(of_group(Operation.DESCRIBE), of_topic(Operation.DESCRIBE), of_topic(Operation.READ, OTHER))
        shown = await described()
        assert (shown["error_code"], len(shown["members"])) == (ErrorCode.NONE, 1)


async def test_offsets_are_shown_and_changed_by_topic(certificates: Certificates, tmp_path: Path) -> None:
    async with shared(certificates, tmp_path) as broker:
        client = await broker.client("half")
        assert await offsets(client) == {"": (-1, NO_GROUP)}
        await broker.allow(of_group(Operation.DESCRIBE), of_topic(Operation.DESCRIBE, OTHER))
        assert await offsets(client) == {OTHER: (0, 0)}
        assert await offsets(client, TOPIC, OTHER) == {TOPIC: (-1, NO_TOPIC), OTHER: (0, 0)}
        assert await offsets(client, "absent-topic") == {"absent-topic": (-1, NO_TOPIC)}
        starts = [
            {"topic_name": topic, "partitions": [{"partition_index": 0, "start_offset": 1}]} for topic in (TOPIC, OTHER)
        ]
        refused = await client.ask("AlterShareGroupOffsets", group_id=GROUP, topics=starts)
        assert refused["error_code"] == NO_GROUP
        named = [{"topic_name": topic} for topic in (TOPIC, OTHER)]
        refused = await client.ask("DeleteShareGroupOffsets", group_id=GROUP, topics=named)
        assert refused["error_code"] == NO_GROUP
        await broker.allow(of_group(Operation.ALL), of_topic(Operation.DESCRIBE), of_topic(Operation.READ, OTHER))
        altered = await client.ask("AlterShareGroupOffsets", group_id=GROUP, topics=starts)
        results = {each["topic_name"]: each["partitions"][0]["error_code"] for each in altered["responses"]}
        assert results == {TOPIC: NO_TOPIC, OTHER: 0}
        assert await offsets(client, TOPIC, OTHER) == {TOPIC: (0, 0), OTHER: (1, 0)}
        deleted = await client.ask("DeleteShareGroupOffsets", group_id=GROUP, topics=named)
        assert {each["topic_name"]: each["error_code"] for each in deleted["responses"]} == {TOPIC: NO_TOPIC, OTHER: 0}
        assert await offsets(client) == {TOPIC: (0, 0)}


async def test_records_need_read_on_group_and_topic_with_each_request(
    certificates: Certificates, tmp_path: Path
) -> None:
    async with shared(certificates, tmp_path) as broker:
        client = await broker.client("half")
        member = Member(client, "m", broker.topic_id, GROUP)
        await broker.allow(of_topic(Operation.READ), of_group(Operation.DESCRIBE))
        assert (await member.fetch())["error_code"] == NO_GROUP
        await broker.allow(of_group(Operation.READ), of_topic(Operation.DESCRIBE))
        member.epoch = 0
        assert (await member.fetch())["error_code"] == NO_TOPIC
        await broker.allow(of_group(Operation.READ), of_topic(Operation.READ))
        got = await member.fetch(max_wait_ms=LONG_MS)
        assert (acquired(got), values(got)) == ([(0, 0, 1)], [SECRET])
        await broker.allow(of_group(Operation.READ))
        assert await member.acknowledge((0, 0, [ACCEPT])) is NO_TOPIC
        assert (await member.fetch())["error_code"] == NO_TOPIC
        await broker.allow(of_topic(Operation.READ))
        assert await member.acknowledge((0, 0, [ACCEPT]), epoch=member.epoch) is NO_GROUP


async def test_a_share_fetch_that_waits_ends_with_the_right(certificates: Certificates, tmp_path: Path) -> None:
    async with shared(certificates, tmp_path) as broker:
        client, native = await broker.client("half"), await broker.native("admin")
        member = Member(client, "m", broker.topic_id, GROUP)
        await broker.allow(of_group(Operation.READ), of_topic(Operation.READ))
        assert acquired(await member.fetch(max_wait_ms=LONG_MS)) == [(0, 0, 1)]
        await member.send_fetch(max_wait_ms=10 * LONG_MS)
        await broker.allow(of_group(Operation.READ))
        assert (await native.produce(TOPIC, batch(SECRET))).error is ErrorCode.NONE
        with trio.fail_after(LIMIT_S):
            result = member.result(await client.reply())
        assert (result["error_code"], acquired(result), bytes(result["records"] or b"")) == (NO_TOPIC, [], b"")


async def test_a_share_fetch_that_waits_acquires_nothing_without_read_on_its_group(
    certificates: Certificates, tmp_path: Path
) -> None:
    async with shared(certificates, tmp_path) as broker:
        client, native = await broker.client("half"), await broker.native("admin")
        member = Member(client, "m", broker.topic_id, GROUP)
        await broker.allow(of_group(Operation.READ), of_topic(Operation.READ))
        assert acquired(await member.fetch(max_wait_ms=LONG_MS)) == [(0, 0, 1)]
        await member.send_fetch(max_wait_ms=10 * LONG_MS)
        await broker.allow(of_topic(Operation.READ))
        assert (await native.produce(TOPIC, batch(SECRET))).error is ErrorCode.NONE
        with trio.fail_after(LIMIT_S):
            reply = await client.reply()
        assert (reply["error_code"], reply["responses"]) == (ErrorCode.NONE, ())
        await broker.allow(of_group(Operation.READ), of_topic(Operation.READ))
        assert acquired(await member.fetch(max_wait_ms=LONG_MS)) == [(1, 1, 1)]


@pytest.mark.parametrize("topic", [TOPIC, "absent-topic"])
async def test_the_native_protocol_has_the_same_checks_of_share_groups(
    certificates: Certificates, tmp_path: Path, topic: str
) -> None:
    async with shared(certificates, tmp_path) as broker:
        client = await broker.broker.connect(tls=certificates.contexts["half"], hello=False)
        await client.ask(HelloRequest(versions=VERSIONS, client="test"))
        ack = AcknowledgedOffsets(first_offset=0, last_offset=0, acknowledgement=Acknowledgement.ACCEPT)
        of_member = {"group": GROUP, "member_id": "m"}
        partition = AcknowledgedPartition(topic=topic, partition=0)
        acknowledged = AcknowledgedPartition(topic=topic, partition=0, acknowledgements=(ack,))
        requests = [
            HeartbeatShareGroupRequest(**of_member, member_epoch=0, topics=(topic,)),
            FetchShareGroupRequest(**of_member, session_epoch=0, max_wait_ms=0, partitions=(partition,)),
            AcknowledgeShareGroupRequest(**of_member, session_epoch=1, partitions=(acknowledged,)),
            ResetShareGroupRequest(group=GROUP, starts=(ShareStart(topic=topic, partition=0, offset=0),)),
        ]
        await broker.allow(of_topic(Operation.ALL), of_topic(Operation.ALL, "absent-topic"))
        for request in requests:
            assert (await client.ask(request)).error is NO_GROUP, request
        alteration = GroupAlteration(name=GROUP, configs={"share.auto.offset.reset": "earliest"})
        (result,) = (await client.ask(AlterGroupsRequest(groups=(alteration,)))).groups
        assert result.error is NO_GROUP
        await broker.allow(of_group(Operation.READ))
        assert (await client.ask(requests[0])).error is NO_TOPIC
        for request in requests[1:]:
            (outcome,) = (await client.ask(request)).partitions
            assert outcome.error is NO_TOPIC, request
