"""What a source is asked, and what is made of answers that are partial, refused or not to be trusted."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from tests.broker.clients import Running
from tests.broker.replication.peers.scripted_cluster import Cluster, scripted_cluster
from tests.broker.replication.peers.scripted_peer import groups_named
from warmlog.broker.mirror.plan import SourceTopic
from warmlog.broker.mirror.source import TOPICS_PER_REQUEST, GroupOffsets, SourceCluster
from warmlog.broker.replication.peers.errors import PeerError
from warmlog.broker.replication.peers.peer import open_cluster
from warmlog.broker.settings.settings import Settings
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import (
    CoordinatorLocation,
    FetchedOffset,
    FetchedOffsets,
    FindCoordinatorResponse,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetFetchResponse,
    OffsetToCommit,
)
from warmlog.protocol.kafka.api import Call
from warmlog.protocol.kafka.messages.cluster.configs import (
    ConfigEntry,
    ConfigResourceType,
    ConfigSource,
    ConfigType,
    DescribeConfigsResponse,
    DescribedConfigs,
)
from warmlog.protocol.response import MetadataResponse, PartitionMetadata, TopicMetadata


@asynccontextmanager
async def source_at(*bootstrap: tuple[str, int]) -> AsyncIterator[SourceCluster]:
    async with open_cluster(list(bootstrap), random=Random(1)) as cluster:
        yield SourceCluster(cluster, settings=Settings())


async def test_our_broker_is_a_source(broker: Running) -> None:
    native = await broker.connect()
    await native.create("orders", 3, cleanup_policy="compact", max_message_bytes="2000")
    await native.create("audit", 1)
    await native.create("other", 1)
    commit = OffsetCommitRequest(group="readers", partitions=(OffsetToCommit(topic="orders", partition=1, offset=7),))
    while (await native.ask(commit)).partitions[0].error is not ErrorCode.NONE:
        pass  # the coordinator's topic is being created
    host, port = broker.addresses.kafka.rsplit(":", 1)
    async with source_at((host, int(port))) as source:
        topics = await source.topics(lambda name: name != "other")
        assert [(topic.name, topic.partitions, topic.configs) for topic in topics] == [
            ("audit", 1, {}),
            ("orders", 3, {"cleanup.policy": "compact", "max.message.bytes": "2000"}),
        ]
        assert len({topic.topic_id for topic in topics}) == 2
        assert await source.groups(lambda _: True) == ["readers"]
        assert await source.groups(lambda name: name == "others") == []
        ((group, offsets),) = await source.committed(["readers"])
        assert group == "readers"
        assert [(one.topic, one.partition, one.offset) for one in offsets] == [("orders", 1, 7)]


@dataclass(slots=True)
class Script:
    """What the brokers of a scripted source have."""

    names: list[str] = field(default_factory=lambda: ["orders"])
    partitions: tuple[int, ...] = (0,)
    configs: dict[str, str] = field(default_factory=dict)
    config_error: ErrorCode = ErrorCode.NONE
    list_errors: dict[int, ErrorCode] = field(default_factory=dict)
    offset_error: ErrorCode = ErrorCode.NONE
    told: tuple[str, ...] | None = None  # names of groups in a response, whatever was asked


class ScriptedSource(Cluster):
    def __init__(self) -> None:
        super().__init__()
        self.script = Script()

    def metadata(self) -> MetadataResponse:
        partitions = tuple(
            PartitionMetadata(partition=index, leader=1, leader_epoch=0, replicas=(1,), in_sync=(1,))
            for index in self.script.partitions
        )
        topics = tuple(TopicMetadata(name=name, partitions=partitions) for name in self.script.names)
        known = super().metadata()
        return MetadataResponse(cluster_id="source", controller=1, brokers=known.brokers, topics=topics)

    async def answer(self, node: int, call: Call) -> object:
        script = self.script
        request: Any = call.request
        match call.api.name:
            case "DescribeConfigs":
                return DescribeConfigsResponse(resources=tuple(self._described(one.name) for one in request.resources))
            case "ListGroups":
                error = script.list_errors.get(node, ErrorCode.NONE)
                return ListGroupsResponse(groups=(), error=error) if error else groups_named(f"of {node}")
            case "FindCoordinator":
                keys = [CoordinatorLocation(key=key, node_id=1) for key in request.keys]
                return FindCoordinatorResponse(coordinators=tuple(keys))
            case "OffsetFetch":
                names = script.told or [one.group for one in request.groups]
                return OffsetFetchResponse(groups=tuple(self._offsets(name) for name in names))
        return await super().answer(node, call)

    def _described(self, name: str) -> DescribedConfigs:
        entries = [
            ConfigEntry(name=key, value=value, source=ConfigSource.TOPIC, type=ConfigType.STRING)
            for key, value in self.script.configs.items()
        ]
        return DescribedConfigs(
            resource_type=ConfigResourceType.TOPIC, name=name, configs=tuple(entries), error=self.script.config_error
        )

    def _offsets(self, group: str) -> FetchedOffsets:
        one = FetchedOffset(topic="orders", partition=0, offset=3, error=self.script.offset_error)
        return FetchedOffsets(group=group, partitions=(one,))


@asynccontextmanager
async def scripted_source(*nodes: int) -> AsyncIterator[tuple[ScriptedSource, SourceCluster]]:
    async with scripted_cluster(*(nodes or (1,)), make=ScriptedSource) as cluster:
        assert isinstance(cluster, ScriptedSource)
        async with source_at(*cluster.bootstrap(*(nodes or (1,)))) as source:
            yield cluster, source


async def test_a_request_names_a_bounded_number_of_topics() -> None:
    async with scripted_source() as (cluster, source):
        cluster.script.names = [f"t{number:04}" for number in range(2 * TOPICS_PER_REQUEST + 1)]
        assert [topic.name for topic in await source.topics(lambda _: True)] == cluster.script.names
        assert cluster.asked.count((1, "DescribeConfigs")) == 3


async def test_settings_that_are_not_known_here_are_left_out_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with scripted_source() as (cluster, source):
        cluster.script.configs = {"retention.ms": "5", "from.the.future": "1"}
        for _ in range(2):
            (topic,) = await source.topics(lambda _: True)
            assert topic.configs == {"retention.ms": "5"}
    assert len([line for line in caplog.messages if "from.the.future" in line]) == 1


async def test_a_topic_that_is_not_told_of_completely_waits(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted_source() as (cluster, source):
        cluster.script.partitions = (0, 2)
        assert await source.topics(lambda _: True) == []
        cluster.script.partitions = (0, 1, 2)
        cluster.script.config_error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert await source.topics(lambda _: True) == []
        assert "topic orders: cannot get its settings: TOPIC_AUTHORIZATION_FAILED" in caplog.messages
        cluster.script.config_error = ErrorCode.NONE
        (topic,) = await source.topics(lambda _: True)
        assert topic == SourceTopic(name="orders", topic_id=topic.topic_id, partitions=3, configs={})


async def test_internal_topics_are_not_mirrored() -> None:
    async with scripted_source() as (cluster, source):
        cluster.script.names = ["__consumer_offsets", "__transaction_state", "__share_group_state", "_own"]
        assert [topic.name for topic in await source.topics(lambda _: True)] == ["_own"]


async def test_groups_are_those_of_all_brokers_that_answer() -> None:
    async with scripted_source(1, 2, 3) as (cluster, source):
        cluster.dropped.add(2)
        cluster.script.list_errors[3] = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await source.groups(lambda _: True) == ["of 1"]
        cluster.script.list_errors = dict.fromkeys((1, 2, 3), ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        with pytest.raises(PeerError):
            await source.groups(lambda _: True)


async def test_offsets_that_may_still_change_wait(caplog: pytest.LogCaptureFixture) -> None:
    async with scripted_source() as (cluster, source):
        cluster.script.offset_error = ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert await source.committed(["g"]) == []
        assert "group g: cannot get its committed offsets: UNSTABLE_OFFSET_COMMIT" in caplog.messages
        cluster.script.offset_error = ErrorCode.NONE
        (found,) = await source.committed(["g"])
        assert isinstance(found, GroupOffsets)
        assert cluster.asked.count((1, "FindCoordinator")) == 2


async def test_offsets_of_groups_that_were_not_asked_for_are_dropped() -> None:
    async with scripted_source() as (cluster, source):
        cluster.script.told = ("g", "another")
        assert [one.group for one in await source.committed(["g"])] == ["g"]
