"""Groups on the native listener, request by request, beside members that come over Kafka's."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.broker.clients import RawClient, Running, batch, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    DeleteGroupsRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetToCommit,
    PartitionEntry,
)
from warmlog.protocol.kafka.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from warmlog.protocol.native.groups import (
    DescribeConsumerGroupsRequest,
    JoinConsumerGroupRequest,
    JoinConsumerGroupResponse,
)

SETTINGS = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, SETTINGS) as broker:
        client = await broker.connect()
        await client.create("t", partitions=4)
        await client.create("u", partitions=2)
        yield broker


def join(**fields: Any) -> JoinConsumerGroupRequest:
    return JoinConsumerGroupRequest(**{"group": "g", "topics": ("t",), **fields})


def indexes(partitions: Any, topic: str = "t") -> list[int]:
    return [one.partition for one in partitions if one.topic == topic]


async def ask_in_time(client: RawClient, request: Any) -> Any:
    with trio.fail_after(20):
        return await client.ask(request)


class KafkaMember:
    """A member over Kafka's listener, as its clients behave."""

    def __init__(self, client: KafkaClient, protocol: str = "range", topics: tuple[str, ...] = ("t",)) -> None:
        self._client = client
        self._named = {"protocol_type": "consumer", "protocol_name": protocol}
        self._metadata = encode_subscription(Subscription(topics=topics))
        self.member_id = ""
        self.joined: dict[str, Any] = {}

    async def join(self) -> dict[str, Any]:
        with trio.fail_after(20):
            self.joined = await self._join()
            if self.joined["error_code"] == ErrorCode.MEMBER_ID_REQUIRED:
                self.joined = await self._join()
        return self.joined

    async def _join(self) -> dict[str, Any]:
        protocol = {"name": self._named["protocol_name"], "metadata": self._metadata}
        reply = await self._client.ask(
            "JoinGroup", group_id="g", member_id=self.member_id, protocol_type="consumer", protocols=(protocol,),
            session_timeout_ms=30_000, rebalance_timeout_ms=30_000,
        )  # fmt: skip
        self.member_id = reply["member_id"]
        return reply

    async def sync(self, assignments: dict[str, list[int]] | None = None) -> list[int]:
        given = [
            {
                "member_id": member_id,
                "assignment": encode_assignment(
                    Assignment(partitions=tuple(PartitionEntry(topic="t", partition=one) for one in partitions))
                ),
            }
            for member_id, partitions in (assignments or {}).items()
        ]
        with trio.fail_after(20):
            reply = await self._client.ask(
                "SyncGroup", group_id="g", generation_id=self.joined["generation_id"], member_id=self.member_id,
                assignments=given, **self._named,
            )  # fmt: skip
        assert reply["error_code"] == ErrorCode.NONE
        return indexes(decode_assignment(bytes(reply["assignment"])).partitions)


async def test_the_only_member_has_all_partitions(served: Running) -> None:
    client = await served.connect()
    joined = await ask_in_time(client, join(topics=("t", "u", "missing")))
    assert (joined.generation, joined.is_leader) == (1, True)
    assert (indexes(joined.partitions), indexes(joined.partitions, "u")) == ([0, 1, 2, 3], [0, 1])
    assert joined.member_id.startswith("test-")
    beat = HeartbeatRequest(group="g", generation=1, member_id=joined.member_id)
    assert (await client.ask(beat)).error is ErrorCode.NONE


async def rejoin_when_told(client: RawClient, joined: JoinConsumerGroupResponse) -> JoinConsumerGroupResponse:
    """Heartbeats until the partitions are divided anew, then joins again."""
    beat = HeartbeatRequest(group="g", generation=joined.generation, member_id=joined.member_id)
    with trio.fail_after(20):
        while (await client.ask(beat)).error is not ErrorCode.REBALANCE_IN_PROGRESS:
            pass
        again = await client.ask(join(member_id=joined.member_id))
    assert isinstance(again, JoinConsumerGroupResponse)
    return again


async def test_several_members_divide_the_partitions(served: Running) -> None:
    one, two = await served.connect(), await served.connect()
    first = await ask_in_time(one, join())
    found: dict[str, JoinConsumerGroupResponse] = {}
    async with trio.open_nursery() as nursery:

        async def second() -> None:
            found["two"] = await ask_in_time(two, join())

        nursery.start_soon(second)
        found["one"] = await rejoin_when_told(one, first)
    assert {joined.generation for joined in found.values()} == {2}
    assert [joined.is_leader for joined in found.values()].count(True) == 1
    assert sorted(indexes(found["one"].partitions) + indexes(found["two"].partitions)) == [0, 1, 2, 3]
    assert len(indexes(found["one"].partitions)) == 2
    leave = LeaveGroupRequest(group="g", members=(LeavingMember(member_id=found["two"].member_id),))
    assert (await two.ask(leave)).members[0].error is ErrorCode.NONE
    assert indexes((await rejoin_when_told(one, found["one"])).partitions) == [0, 1, 2, 3]


@pytest.mark.parametrize("leader", ["native", "kafka"])
async def test_native_and_kafka_members_share_a_group(served: Running, leader: str) -> None:
    native = await served.connect()
    async with kafka_client(served.addresses.kafka) as client:
        member = KafkaMember(client)
        if leader == "native":
            first = await ask_in_time(native, join())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(member.join)
                joined = await rejoin_when_told(native, first)
            assert joined.is_leader
            assert sorted(await member.sync() + indexes(joined.partitions)) == [0, 1, 2, 3]
            return
        await member.join()
        await member.sync({member.member_id: [0, 1, 2, 3]})
        replies: list[Any] = []
        async with trio.open_nursery() as nursery:

            async def join_native() -> None:
                replies.append(await ask_in_time(native, join()))

            nursery.start_soon(join_native)
            while not member.joined.get("members") or len(member.joined["members"]) < 2:
                await member.join()
            (other,) = {one["member_id"] for one in member.joined["members"]} - {member.member_id}
            assert await member.sync({member.member_id: [3], other: [0, 1, 2]}) == [3]
        assert (replies[0].is_leader, indexes(replies[0].partitions)) == (False, [0, 1, 2])


async def test_who_divides_in_another_way_stays_out(served: Running) -> None:
    native = await served.connect()
    async with kafka_client(served.addresses.kafka) as client:
        member = KafkaMember(client, protocol="cooperative-sticky")
        await member.join()
        await member.sync({member.member_id: [0]})
        refused = await ask_in_time(native, join())
        assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert "range" in refused.message


async def test_a_member_that_goes_before_its_answer_is_none(served: Running) -> None:
    native, looker = await served.connect(), await served.connect()
    async with kafka_client(served.addresses.kafka) as client:
        member = KafkaMember(client)
        await member.join()
        await member.sync({member.member_id: [0, 1, 2, 3]})
        await native.send(join())  # waits for the member to join again
        with trio.fail_after(20):
            while len((await describe(looker)).members) < 2:
                await trio.lowlevel.checkpoint()
            await native.stream.aclose()
            while len((await describe(looker)).members) > 1:
                await trio.lowlevel.checkpoint()


async def describe(client: RawClient, group: str = "g") -> Any:
    (described,) = (await client.ask(DescribeConsumerGroupsRequest(groups=(group,)))).groups
    return described


async def test_a_group_with_its_lag(served: Running) -> None:
    client = await served.connect()
    for _ in range(3):
        await client.produce("t", batch(b"x"), partition=2)
    offsets = (
        OffsetToCommit(topic="t", partition=2, offset=1, metadata="m"),
        OffsetToCommit(topic="u", partition=0, offset=0),
    )
    committed = await client.ask(OffsetCommitRequest(group="g", partitions=offsets))
    assert [one.error for one in committed.partitions] == [ErrorCode.NONE] * 2
    joined = await ask_in_time(client, join())
    described = await describe(client)
    assert (described.state, described.protocol_type, described.protocol) == ("Stable", "consumer", "range")
    (member,) = described.members
    assert (member.client_id, member.topics, indexes(member.partitions)) == ("test", ("t",), [0, 1, 2, 3])
    owner = joined.member_id
    assert [
        (one.topic, one.partition, one.offset, one.log_start_offset, one.high_watermark, one.lag, one.member_id)
        for one in described.positions
    ] == [
        ("t", 0, -1, 0, 0, None, owner), ("t", 1, -1, 0, 0, None, owner), ("t", 2, 1, 0, 3, 2, owner),
        ("t", 3, -1, 0, 0, None, owner), ("u", 0, 0, 0, 0, 0, None),
    ]  # fmt: skip
    listed = (await client.ask(ListGroupsRequest())).groups
    assert [(one.group, one.state, one.protocol_type) for one in listed] == [("g", "Stable", "consumer")]
    fetched = (await client.ask(OffsetFetchRequest(groups=(OffsetFetchGroup(group="g"),)))).groups[0]
    assert [(one.topic, one.partition, one.offset, one.metadata) for one in fetched.partitions] == [
        ("t", 2, 1, "m"), ("u", 0, 0, ""),
    ]  # fmt: skip


async def test_a_group_of_other_than_consumers_is_described_without_partitions(served: Running) -> None:
    native = await served.connect()
    async with kafka_client(served.addresses.kafka) as client:
        protocol = {"name": "default", "metadata": b"\0\1whatever"}
        asked = {"group_id": "workers", "protocol_type": "connect", "protocols": (protocol,)}
        timeouts = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000}
        joined = await client.ask("JoinGroup", 3, **asked, **timeouts)
        assignment = {"member_id": joined["member_id"], "assignment": b"\0\1more"}
        await client.ask(
            "SyncGroup",
            3,
            group_id="workers",
            generation_id=1,
            member_id=joined["member_id"],
            assignments=(assignment,),
        )
        described = await describe(native, "workers")
        assert (described.state, described.protocol_type, described.positions) == ("Stable", "connect", ())
        assert [(one.topics, one.partitions) for one in described.members] == [((), ())]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 2_000_000_000}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
async def test_joins_that_are_refused(served: Running, fields: dict[str, Any], error: ErrorCode) -> None:
    client = await served.connect()
    refused = await ask_in_time(client, join(**fields))
    assert refused.error is error
    assert refused.message


async def test_what_members_alone_may_do(served: Running) -> None:
    client = await served.connect()
    joined = await ask_in_time(client, join())
    offset = (OffsetToCommit(topic="t", partition=0, offset=1),)
    for fields, error in (
        ({"generation": 1, "member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 7, "member_id": joined.member_id}, ErrorCode.ILLEGAL_GENERATION),
        ({}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 1, "member_id": joined.member_id}, ErrorCode.NONE),
    ):
        committed = await client.ask(OffsetCommitRequest(group="g", partitions=offset, **fields))
        assert committed.partitions[0].error is error
    deleted = await client.ask(DeleteGroupsRequest(groups=("g", "nobody")))
    assert [one.error for one in deleted.groups] == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    unknown = await describe(client, "nobody")
    assert (unknown.state, unknown.error) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)


async def test_members_over_the_limit_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS | {"group.max.size": 1}) as broker:
        one, two = await broker.connect(), await broker.connect()
        await one.create("t")
        await ask_in_time(one, join())
        refused = await ask_in_time(two, join())
        assert refused.error is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert "group.max.size" in refused.message
