"""Settings of the topics and brokers of a cluster."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.broker.clients import batch
from tests.broker.clustered.three_brokers import IDS, LIMIT_S, NONE, Cluster, three_brokers, topic
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.cluster.configs import ConfigResourceType

DYNAMIC_BROKER, DYNAMIC_DEFAULT, DEFAULT = 2, 3, 5


async def alter(cluster: Cluster, kind: int, name: str, setting: str, value: str, *, at: int = 1) -> int:
    configs = [{"name": setting, "config_operation": 0, "value": value}]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    reply = await cluster.clients[at].ask("IncrementalAlterConfigs", resources=[resource])
    (found,) = reply["responses"]
    return int(found["error_code"])


async def described(cluster: Cluster, kind: int, name: str, setting: str, *, at: int) -> dict[str, Any]:
    asked = [{"resource_type": kind, "resource_name": name, "configuration_keys": [setting]}]
    reply = await cluster.clients[at].ask("DescribeConfigs", resources=asked)
    (found,) = reply["results"]
    return dict(found["configs"][0]) if found["configs"] else {"error_code": found["error_code"]}


async def until(
    cluster: Cluster, kind: int, name: str, setting: str, condition: Callable[[dict[str, Any]], bool], *, at: int
) -> None:
    """Ask a broker until a setting is as wanted."""
    with trio.fail_after(LIMIT_S):
        while not condition(await described(cluster, kind, name, setting, at=at)):
            pass


async def test_settings_of_a_topic_are_altered_at_any_broker_and_known_to_all(cluster: Cluster) -> None:
    await cluster.create(topic("t", [(1, 2, 3)]))
    await cluster.until("t", lambda one: True, at=3)
    assert await alter(cluster, ConfigResourceType.TOPIC, "t", "retention.ms", "77", at=3) == NONE
    for at in IDS:
        await until(cluster, ConfigResourceType.TOPIC, "t", "retention.ms", lambda one: one["value"] == "77", at=at)


async def test_defaults_of_all_brokers_are_known_to_all(cluster: Cluster) -> None:
    assert await alter(cluster, ConfigResourceType.BROKER, "", "log.retention.ms", "77", at=2) == NONE
    for at in IDS:
        await until(
            cluster,
            ConfigResourceType.BROKER,
            str(at),
            "log.retention.ms",
            lambda one: (one["value"], one["config_source"]) == ("77", DYNAMIC_DEFAULT),
            at=at,
        )


async def test_settings_of_one_broker_are_its_own(cluster: Cluster) -> None:
    assert await alter(cluster, ConfigResourceType.BROKER, "2", "log.retention.ms", "77", at=2) == NONE
    mine = await described(cluster, ConfigResourceType.BROKER, "2", "log.retention.ms", at=2)
    assert (mine["value"], mine["config_source"]) == ("77", DYNAMIC_BROKER)
    other = await described(cluster, ConfigResourceType.BROKER, "1", "log.retention.ms", at=1)
    assert other["config_source"] != DYNAMIC_BROKER


async def test_settings_of_a_broker_are_asked_for_there(cluster: Cluster) -> None:
    assert await alter(cluster, ConfigResourceType.BROKER, "2", "log.retention.ms", "77") == ErrorCode.INVALID_REQUEST
    found = await described(cluster, ConfigResourceType.BROKER, "2", "log.retention.ms", at=1)
    assert found["error_code"] == ErrorCode.INVALID_REQUEST


async def test_all_brokers_are_listed_as_resources(cluster: Cluster) -> None:
    reply = await cluster.clients[2].ask("ListConfigResources", resource_types=(ConfigResourceType.BROKER,))
    assert [one["resource_name"] for one in reply["config_resources"]] == ["1", "2", "3"]


# -- min.insync.replicas -----------------------------------------------------------------------------------------------

MIN_ISR = "min.insync.replicas"


async def test_the_default_of_min_isr_depends_on_the_replication_factor(cluster: Cluster) -> None:
    await cluster.create(topic("one", [(1,)]), topic("two", [(1, 2)]), topic("three", [(1, 2, 3)]))
    for name, value in (("one", "1"), ("two", "1"), ("three", "2")):
        await cluster.until(name, lambda one: True, at=2)
        found = await described(cluster, ConfigResourceType.TOPIC, name, MIN_ISR, at=2)
        assert (found["value"], found["config_source"]) == (value, DEFAULT)


async def test_a_configured_min_isr_of_1_counts_as_set(tmp_path: Path) -> None:
    async with three_brokers(tmp_path, {MIN_ISR: 1}) as cluster:
        await cluster.create(topic("t", [(1, 2, 3)]))
        await until(
            cluster,
            ConfigResourceType.TOPIC,
            "t",
            MIN_ISR,
            lambda one: (one["value"], one["config_source"]) == ("1", DYNAMIC_DEFAULT),
            at=1,
        )


@pytest.mark.parametrize(("setting", "value"), [(MIN_ISR, "1"), ("unclean.leader.election.enable", "true")])
async def test_what_brokers_must_agree_on_is_not_set_for_one(cluster: Cluster, setting: str, value: str) -> None:
    assert await alter(cluster, ConfigResourceType.BROKER, "1", setting, value) == ErrorCode.INVALID_REQUEST
    found = await described(cluster, ConfigResourceType.BROKER, "1", setting, at=1)
    assert found["config_source"] == DEFAULT
    assert await alter(cluster, ConfigResourceType.BROKER, "", setting, value) == NONE


async def test_another_min_isr_takes_effect_at_once(cluster: Cluster) -> None:
    await cluster.create(topic("t", [(1, 2, 3)]))
    await cluster.produce("t", b"zero")
    await cluster.stop(3)
    await cluster.until("t", lambda one: 3 not in one["isr_nodes"])
    for value, error in (("3", ErrorCode.NOT_ENOUGH_REPLICAS), ("2", NONE)):
        assert await alter(cluster, ConfigResourceType.TOPIC, "t", MIN_ISR, value) == NONE
        assert await produced(cluster) == error


async def produced(cluster: Cluster) -> int:
    topic_id = (await cluster.described("t"))["topic_id"]
    data = [{"topic_id": topic_id, "partition_data": [{"index": 0, "records": batch(b"more")}]}]
    reply = await cluster.clients[1].ask("Produce", acks=-1, timeout_ms=10_000, topic_data=data)
    return int(reply["responses"][0]["partition_responses"][0]["error_code"])


async def test_settings_of_a_group_are_kept_for_all_brokers(cluster: Cluster) -> None:
    name, setting = "a/group", "consumer.session.timeout.ms"
    assert await alter(cluster, ConfigResourceType.GROUP, name, setting, "50000", at=2) == NONE
    assert (
        await alter(cluster, ConfigResourceType.GROUP, "other", "share.isolation.level", "read_committed", at=3) == NONE
    )
    for at in IDS:
        await until(cluster, ConfigResourceType.GROUP, name, setting, lambda one: one.get("value") == "50000", at=at)
    assert await alter(cluster, ConfigResourceType.GROUP, name, "no.such", "1", at=2) == ErrorCode.INVALID_CONFIG
