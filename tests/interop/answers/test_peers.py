"""The client side of Kafka's protocol against Kafka itself: every API, records byte for byte, and leader epochs."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from interop.kafka_node import KAFKA_VERSION, WIRE_VERSION, KafkaNode
from tests.broker.clients import batch
from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.broker.replication.copies import Copy, filled, followed
from warmlog.broker.replication.peers.errors import PeerUnavailableError
from warmlog.broker.replication.peers.peer import PeerCluster, open_cluster
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import ListGroupsRequest, OffsetFetchRequest, PartitionEntry
from warmlog.protocol.kafka.codec.bounds import NO_TOPIC_ID
from warmlog.protocol.kafka.messages.cluster.configs import (
    ConfigQuery,
    ConfigResourceType,
    ConfigSource,
    DescribeConfigsRequest,
)
from warmlog.protocol.kafka.messages.common import topic_id_text
from warmlog.protocol.kafka.messages.groups.offsets import MemberOffsetFetchGroup
from warmlog.protocol.kafka.messages.records.fetch import DivergedPartition, KafkaFetchedPartition
from warmlog.protocol.kafka.messages.records.offsets import (
    EpochQuery,
    KafkaListOffsetsRequest,
    KafkaOffsetQuery,
    OffsetForLeaderEpochRequest,
)
from warmlog.protocol.kafka.messages.topics.metadata import KafkaMetadataRequest
from warmlog.protocol.kafka.peer_apis import (
    DESCRIBE_CONFIGS,
    FETCH,
    LIST_GROUPS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
)

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

OLDER = "3.9.1"
VERSIONS = pytest.mark.parametrize("version", [WIRE_VERSION, KAFKA_VERSION, OLDER])
GROUP = "readers"
NOW = time.time_ns() // 1_000_000 - 100_000  # Kafka deletes what is older than a week


def address_of(node: KafkaNode) -> tuple[str, int]:
    host, port = node.bootstrap.rsplit(":", 1)
    return host, int(port)


@asynccontextmanager
async def clients(node: KafkaNode) -> AsyncIterator[tuple[KafkaClient, PeerCluster]]:
    async with kafka_client(node.bootstrap) as raw, open_cluster([address_of(node)]) as peer:
        yield raw, peer


async def create(raw: KafkaClient, peer: PeerCluster, name: str, partitions: int, **configs: str) -> None:
    given = tuple({"name": key.replace("_", "."), "value": value} for key, value in configs.items())
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": (),
        "configs": given,
    }
    await raw.ask("CreateTopics", 5, topics=(topic,), timeout_ms=5000, validate_only=False)
    with trio.fail_after(60):
        while any((peer.view.leader_of(name, index) or (-1,))[0] < 0 for index in range(partitions)):
            await peer.refresh()


async def produce(raw: KafkaClient, name: str, *values: bytes) -> None:
    """Append a batch. Kafka names the leader of a new partition before that knows it: the first try may be early."""
    data = {"name": name, "partition_data": ({"index": 0, "records": batch(*values, timestamp=NOW)},)}
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    with trio.fail_after(60):
        while code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            reply = await raw.ask("Produce", 9, transactional_id=None, acks=-1, timeout_ms=5000, topic_data=(data,))
            code = ErrorCode(reply["responses"][0]["partition_responses"][0]["error_code"])
    assert code is ErrorCode.NONE


async def commit(raw: KafkaClient, name: str, offset: int) -> ErrorCode:
    partition = {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_leader_epoch": 0,
        "committed_metadata": "m",
    }
    reply = await raw.ask(
        "OffsetCommit",
        8,
        group_id=GROUP,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=({"name": name, "partitions": (partition,)},),
    )
    return ErrorCode(reply["topics"][0]["partitions"][0]["error_code"])


async def coordinator(peer: PeerCluster) -> int:
    """Kafka creates the topic of the offsets at the first question."""
    with trio.fail_after(60):
        while True:
            try:
                return await peer.coordinator_of(GROUP)
            except PeerUnavailableError:
                await trio.lowlevel.checkpoint()


def log_of(node: KafkaNode, name: str) -> bytes:
    """The batches of a partition."""
    return b"".join([path.read_bytes() for path in sorted((node.data / f"{name}-0").glob("*.log"))])


@VERSIONS
async def test_kafka_answers_every_api(tmp_path: Path, version: str) -> None:
    with KafkaNode(tmp_path / "kafka", version=version) as node:
        async with clients(node) as (raw, peer):
            await create(raw, peer, "orders", 2, max_message_bytes="200000")
            await produce(raw, "orders", b"a", b"b", b"c")
            leader = peer.view.leader_of("orders", 0)
            assert leader is not None

            by_id = KafkaMetadataRequest(topics=("",), topic_ids=(peer.view.topics["orders"].topic_id,))
            (topic,) = (await peer.ask_any(METADATA, by_id)).topics
            assert (topic.name, len(topic.partitions)) == ("orders", 2)
            assert topic.topic_id == topic_id_text(peer.view.topics["orders"].topic_id)

            queries = [
                KafkaOffsetQuery(topic="orders", partition=0, timestamp=time, current_leader_epoch=leader.epoch)
                for time in (-1, -2, -3)
            ]
            found = [
                (await peer.ask(leader.node_id, LIST_OFFSETS, KafkaListOffsetsRequest(partitions=(query,)))).partitions[
                    0
                ]
                for query in queries
            ]
            assert [(one.offset, one.error) for one in found] == [
                (3, ErrorCode.NONE),
                (0, ErrorCode.NONE),
                (2, ErrorCode.NONE),
            ]

            epochs = OffsetForLeaderEpochRequest(
                partitions=(
                    EpochQuery(topic="orders", partition=0, leader_epoch=leader.epoch),
                    EpochQuery(topic="orders", partition=1, leader_epoch=0, current_leader_epoch=leader.epoch + 1),
                )
            )
            ends = (await peer.ask(leader.node_id, OFFSET_FOR_LEADER_EPOCH, epochs)).partitions
            assert {one.partition: (one.end_offset, one.error) for one in ends} == {
                0: (3, ErrorCode.NONE),
                1: (-1, ErrorCode.UNKNOWN_LEADER_EPOCH),
            }

            topics = DescribeConfigsRequest(
                resources=(ConfigQuery(resource_type=ConfigResourceType.TOPIC, name="orders"),)
            )
            (configs,) = (await peer.ask_any(DESCRIBE_CONFIGS, topics)).resources
            limit = {one.name: one for one in configs.configs}["max.message.bytes"]
            assert (limit.value, limit.source) == ("200000", ConfigSource.TOPIC)

            node_id = await coordinator(peer)
            with trio.fail_after(60):
                while await commit(raw, "orders", 2) is not ErrorCode.NONE:
                    pass
            listed = (await peer.ask(node_id, LIST_GROUPS, ListGroupsRequest())).groups
            assert [(one.group, one.state) for one in listed] == [(GROUP, "Empty")]
            for partitions in (None, (PartitionEntry(topic="orders", partition=0),)):
                asked = OffsetFetchRequest(groups=(MemberOffsetFetchGroup(group=GROUP, partitions=partitions),))
                (group,) = (await peer.ask(node_id, OFFSET_FETCH, asked)).groups
                assert [(one.topic, one.offset, one.leader_epoch, one.metadata) for one in group.partitions] == [
                    ("orders", 2, 0, "m")
                ]


@VERSIONS
@pytest.mark.parametrize("by_id", [True, False])
async def test_what_is_fetched_is_what_kafka_stored(tmp_path: Path, version: str, by_id: bool) -> None:
    with KafkaNode(tmp_path / "kafka", version=version) as node:
        async with clients(node) as (raw, peer):
            await create(raw, peer, "orders", 3)
            for number in range(20):
                await produce(raw, "orders", b"early", b"x" * number)
            topic_id = peer.view.topics["orders"].topic_id if by_id else NO_TOPIC_ID
            copies = [Copy("orders", topic_id, index) for index in range(3)]
            async with followed([address_of(node)], *copies, max_bytes=1000):
                await copies[0].until(lambda: copies[0].offset == 40)
                await produce(raw, "orders", b"late")
                await copies[0].until(lambda: copies[0].offset == 41)
                await copies[0].until(lambda: copies[0].found[-1].high_watermark == 41)
        assert copies[0].data == log_of(node, "orders")
        assert {one.error for copy in copies for one in copy.found} == {ErrorCode.NONE}


@VERSIONS
async def test_a_log_that_went_another_way_is_told_where_it_diverged(tmp_path: Path, version: str) -> None:
    """Kafka begins a leader epoch at each start. A copy that has more of an old epoch than Kafka must cut it off."""
    node = KafkaNode(tmp_path / "kafka", version=version)
    with node:
        async with clients(node) as (raw, peer):
            await create(raw, peer, "orders", 1)
            await produce(raw, "orders", b"a", b"b", b"c")
            first = peer.view.leader_of("orders", 0)
    with node:
        async with clients(node) as (raw, peer):
            await create(raw, peer, "orders", 1)
            second = peer.view.leader_of("orders", 0)
            assert first is not None
            assert second is not None
            assert second.epoch > first.epoch
            await produce(raw, "orders", *[b"d"] * 5)
            copy = Copy("orders", peer.view.topics["orders"].topic_id, offset=6)
            copy.epoch = first.epoch
            told: list[tuple[int, int]] = []

            def truncate(found: KafkaFetchedPartition) -> Any:
                if isinstance(found, DivergedPartition):
                    told.append((found.epoch, found.end_offset))
                    copy.offset = found.end_offset
                return step(found)

            step, copy.decide = copy.decide, truncate
            async with followed([address_of(node)], copy):
                await copy.until(lambda: copy.offset == 8)
            assert told == [(first.epoch, 3)]
            assert copy.epoch == second.epoch
            assert log_of(node, "orders").endswith(copy.data)
            assert len(copy.data) == len(batch(*[b"d"] * 5))


@VERSIONS
async def test_a_stale_epoch_is_fenced_and_found_again(tmp_path: Path, version: str) -> None:
    node = KafkaNode(tmp_path / "kafka", version=version)
    with node:
        async with clients(node) as (raw, peer):
            await create(raw, peer, "orders", 1)
    with node:
        async with clients(node) as (raw, peer):
            await create(raw, peer, "orders", 1)
            leader = peer.view.leader_of("orders", 0)
            assert leader is not None
            copy = Copy("orders", peer.view.topics["orders"].topic_id)
            connection = await peer.connection(leader.node_id)
            assert connection.supports(FETCH, 17) or version == OLDER
            for epoch, error in (
                (leader.epoch - 1, ErrorCode.FENCED_LEADER_EPOCH),
                (leader.epoch + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
            ):
                query = KafkaOffsetQuery(topic="orders", partition=0, timestamp=-1, current_leader_epoch=epoch)
                found = await connection.ask(LIST_OFFSETS, KafkaListOffsetsRequest(partitions=(query,)))
                assert found.partitions[0].error is error
            peer.view.topics["orders"].leaders[0] = leader._replace(epoch=leader.epoch - 1)
            await produce(raw, "orders", b"a")
            async with filled(peer, copy):
                await copy.until(lambda: copy.offset == 1)
            assert peer.view.leader_of("orders", 0) == leader
