"""Groups that change their protocol while they have members, through the Kafka listener."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.broker.api.groups.test_consumer_groups import PARTITIONS, beat, commit, create, join, owned, serving
from tests.broker.groups.requests import SESSION_MS
from tests.broker.kafka_client import KafkaClient
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import PartitionEntry
from warmlog.protocol.kafka.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)

ALL = set(range(PARTITIONS))


class ClassicMember:
    """A member of the classic protocol with a cooperative assignor."""

    def __init__(self, client: KafkaClient, instance: str | None = None) -> None:
        self._client = client
        self._ids: dict[str, Any] = {"group_instance_id": instance}
        self.member_id = ""
        self.generation = -1
        self.owned: set[int] = set()

    async def ask_to_join(self, *topics: str) -> dict[str, Any]:
        owned = tuple(PartitionEntry(topic="orders", partition=each) for each in sorted(self.owned))
        subscription = Subscription(topics=topics or ("orders",), owned=owned, generation=self.generation)
        reply = await self._client.ask(
            "JoinGroup",
            9,
            group_id="g",
            member_id=self.member_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=[{"name": "cooperative-sticky", "metadata": encode_subscription(subscription)}],
            **self._ids,
        )
        if reply["error_code"] == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = reply["member_id"]
            return await self.ask_to_join(*topics)
        if reply["error_code"] == ErrorCode.NONE:
            self.member_id, self.generation = reply["member_id"], reply["generation_id"]
        return reply

    async def sync(self, assignments: Mapping[str, set[int]] | None = None) -> ErrorCode:
        given = [
            {
                "member_id": member,
                "assignment": encode_assignment(
                    Assignment(
                        partitions=tuple(PartitionEntry(topic="orders", partition=each) for each in sorted(taken))
                    )
                ),
            }
            for member, taken in (assignments or {}).items()
        ]
        reply = await self._client.ask(
            "SyncGroup",
            5,
            group_id="g",
            generation_id=self.generation,
            member_id=self.member_id,
            protocol_type="consumer",
            protocol_name="cooperative-sticky",
            assignments=given,
            **self._ids,
        )
        if reply["error_code"] == ErrorCode.NONE:
            self.owned = {each.partition for each in decode_assignment(reply["assignment"]).partitions}
        return ErrorCode(reply["error_code"])

    async def join(self) -> None:
        """Join as the only member of a group, and assign everything to it."""
        assert (await self.ask_to_join())["error_code"] == ErrorCode.NONE
        assert await self.sync({self.member_id: ALL}) is ErrorCode.NONE

    async def rejoin(self) -> None:
        assert (await self.ask_to_join())["error_code"] == ErrorCode.NONE
        assert await self.sync() is ErrorCode.NONE

    async def beat(self) -> ErrorCode:
        reply = await self._client.ask(
            "Heartbeat", 4, group_id="g", generation_id=self.generation, member_id=self.member_id, **self._ids
        )
        return ErrorCode(reply["error_code"])

    async def settle(self) -> None:
        """Join again until heartbeats do not ask for it any more."""
        while (error := await self.beat()) is ErrorCode.REBALANCE_IN_PROGRESS:
            await self.rejoin()
        assert error is ErrorCode.NONE

    async def leave(self) -> ErrorCode:
        reply = await self._client.ask("LeaveGroup", 5, group_id="g", members=[{"member_id": self.member_id}])
        return ErrorCode(reply["members"][0]["error_code"])


async def types(client: KafkaClient) -> list[tuple[str, str]]:
    listed = await client.ask("ListGroups", 5, states_filter=[], types_filter=[])
    return [(each["group_type"], each["group_state"]) for each in listed["groups"]]


async def settle(client: KafkaClient, member: str, epoch: int, held: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Send two heartbeats of a member of the consumer protocol; return its epoch and what it has."""
    for _ in range(2):
        partitions = held["assignment"]["topic_partitions"]
        reply = await beat(client, member, epoch, topic_partitions=partitions)
        assert reply["error_code"] == ErrorCode.NONE
        epoch, held = reply["member_epoch"], reply if reply["assignment"] is not None else held
    return epoch, held


async def test_a_group_changes_to_the_consumer_protocol_and_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        first = ClassicMember(client)
        await first.join()
        assert await commit(client, first.generation, first.member_id) is ErrorCode.NONE
        reply = await join(client, "b")
        assert (reply["error_code"], reply["member_epoch"]) == (ErrorCode.NONE, first.generation + 1)
        assert owned(reply) == set()
        assert await types(client) == [("consumer", "Reconciling")]
        assert await first.beat() is ErrorCode.REBALANCE_IN_PROGRESS
        await first.settle()
        assert len(first.owned) == 2
        assert first.generation == reply["member_epoch"]
        epoch, held = await settle(client, "b", reply["member_epoch"], reply)
        assert owned(held) == ALL - first.owned
        assert await types(client) == [("consumer", "Stable")]
        assert await commit(client, first.generation, first.member_id, version=8) is ErrorCode.NONE
        assert await commit(client, first.generation - 1, first.member_id) is ErrorCode.NONE  # KIP-1251
        assert await commit(client, first.generation + 1, first.member_id) is ErrorCode.ILLEGAL_GENERATION
        assert (await beat(client, "b", -1))["error_code"] == ErrorCode.NONE
        assert await types(client) == [("classic", "PreparingRebalance")]
        assert await first.beat() is ErrorCode.REBALANCE_IN_PROGRESS
        await first.join()
        assert first.owned == ALL
        assert first.generation == epoch + 1
        assert await types(client) == [("classic", "Stable")]
    async with serving(tmp_path) as (_, client):
        assert await types(client) == [("classic", "Stable")]
        fetched = await client.ask("OffsetFetch", 9, groups=[{"group_id": "g", "topics": None}])
        assert fetched["groups"][0]["topics"][0]["partitions"][0]["committed_offset"] == 7


async def test_a_mixed_group_is_loaded_with_members_of_both_protocols(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        first = ClassicMember(client)
        await first.join()
        reply = await join(client, "b")
        await first.settle()
    async with serving(tmp_path) as (_, client):
        again = ClassicMember(client)
        again.__dict__ |= {each: getattr(first, each) for each in ("member_id", "generation", "owned")}
        await again.settle()
        _, held = await settle(client, "b", reply["member_epoch"], reply)
        assert (again.owned, owned(held)) == (first.owned, ALL - first.owned)
        assert await types(client) == [("consumer", "Stable")]


async def test_classic_members_join_and_leave_a_mixed_group(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        reply = await join(client, "b")
        first, second = ClassicMember(client), ClassicMember(client)
        await first.rejoin()
        assert first.owned == set()  # the other member has everything, and does not know of this one
        epoch, held = await settle(client, "b", reply["member_epoch"], reply)
        await first.settle()
        assert first.owned == ALL - owned(held)
        await second.rejoin()
        assert await first.leave() is ErrorCode.NONE
        assert await first.leave() is ErrorCode.UNKNOWN_MEMBER_ID
        for _ in range(3):
            await second.settle()
            epoch, held = await settle(client, "b", epoch, held)
        assert (len(second.owned), second.owned | owned(held)) == (2, ALL)
        assert await first.beat() is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_static_member_changes_its_protocol_and_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        first = ClassicMember(client, "one")
        await first.join()
        reply = await join(client, "b", instance_id="one")
        assert (reply["error_code"], owned(reply)) == (ErrorCode.NONE, ALL)
        assert await types(client) == [("consumer", "Stable")]
        assert await first.beat() is ErrorCode.FENCED_INSTANCE_ID
        back = ClassicMember(client, "one")
        await back.rejoin()
        assert back.owned == ALL
        assert await types(client) == [("classic", "Stable")]
        assert (await beat(client, "b", reply["member_epoch"]))["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND


REASON = "Cannot upgrade classic group g to consumer group because "


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
async def test_a_group_keeps_the_classic_protocol_where_the_policy_says_so(tmp_path: Path, policy: str) -> None:
    async with serving(tmp_path, **{"group.consumer.migration.policy": policy}) as (broker, client):
        await create(broker)
        first = ClassicMember(client)
        await first.join()
        reply = await join(client, "b")
        assert reply["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
        assert reply["error_message"] == REASON + "online upgrade is disabled."
        assert await first.beat() is ErrorCode.NONE
        assert await types(client) == [("classic", "Stable")]


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
async def test_a_group_keeps_the_consumer_protocol_where_the_policy_says_so(tmp_path: Path, policy: str) -> None:
    async with serving(tmp_path, **{"group.consumer.migration.policy": policy}) as (broker, client):
        await create(broker)
        await join(client, "b")
        first = ClassicMember(client)
        await first.rejoin()
        assert (await beat(client, "b", -1))["error_code"] == ErrorCode.NONE
        await first.settle()
        assert first.owned == ALL
        assert await types(client) == [("consumer", "Stable")]


async def test_a_refused_heartbeat_converts_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        first = ClassicMember(client)
        await first.join()
        reply = await join(client, "b", subscribed_topic_names=None, subscribed_topic_regex="a(")
        assert reply["error_code"] == ErrorCode.INVALID_REGULAR_EXPRESSION
        assert await types(client) == [("classic", "Stable")]
        assert await first.beat() is ErrorCode.NONE


async def test_a_group_of_opaque_assignments_is_not_converted(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        await create(broker)
        first = ClassicMember(client)
        await first.ask_to_join()
        given = [{"member_id": first.member_id, "assignment": b"\0"}]
        fields = {"group_id": "g", "generation_id": first.generation, "member_id": first.member_id}
        assert (await client.ask("SyncGroup", 3, assignments=given, **fields))["error_code"] == ErrorCode.NONE
        reply = await join(client, "b")
        assert reply["error_message"] == REASON + "the embedded consumer protocol is malformed."
        assert await types(client) == [("classic", "Stable")]
