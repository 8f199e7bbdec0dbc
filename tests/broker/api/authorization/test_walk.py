"""Every API of Kafka's protocol, in every version, asked by principals without the rights.

Requests are made from the tables of the messages, so that an API cannot be left out.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.api.authorization.rig import SECRET, UNAUTHORIZED, Certificates, Secured, acl, cluster, codes, secured
from tests.broker.clients import batch
from tests.broker.kafka_client import KafkaClient
from tests.protocol.kafka.messages import TABLES, VERSIONS, values_of
from warmlog.broker.api.authorization.table import ROWS
from warmlog.broker.security.acls import Operation, Permission, ResourceType
from warmlog.protocol.kafka.api import Api
from warmlog.protocol.kafka.codec.schema import Field, Primitive

TOPIC, ABSENT = "secret-topic", "absent-topic"
GROUP, NO_GROUP = "secret-group", "absent-group"
ID, NO_ID = "secret-id", "absent-id"
OTHER_ID = b"\x01" * 16
GROUP_FIELDS = {"group_id", "groups", "groups_names", "group_ids", "coordinator_keys", "key"}
ID_FIELDS = {"transactional_id", "transactional_ids"}
FIXED: dict[str, Any] = {
    "acks": 1, "isolation_level": 0, "session_id": 0, "session_epoch": -1, "protocol_type": "consumer",
    "protocol_name": "range", "max_bytes": 1 << 20, "partition_max_bytes": 1 << 20, "timeout_ms": 1000,
    "replica_id": -1, "current_leader_epoch": -1, "timestamp": -2, "include_topic_authorized_operations": True,
    "include_cluster_authorized_operations": True, "producer_id": -1, "producer_epoch": -1, "num_partitions": 1,
    "replication_factor": 1, "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "assignments": 0,
    "member_id": "", "group_instance_id": None, "generation_id": -1, "generation_id_or_member_epoch": -1,
    "response_partition_limit": 100, "client_software_name": "test", "client_software_version": "1",
    "resource_type": 2, "duration_filter": -1, "state_filters": 0, "producer_id_filters": 0, "retention_time_ms": -1,
    "states_filter": 0, "types_filter": 0, "last_fetched_epoch": -1, "allow_auto_topic_creation": False,
    "transactional_id_pattern": None, "configs": 0, "forgotten_topics_data": 0, "count": 2,
    "resource_type_filter": 2, "pattern_type_filter": 3, "resource_pattern_type": 3, "operation": 3,
    "permission_type": 3, "endpoint_type": 1, "cluster_id": None, "node_id": -1, "cursor": None,
    "configuration_keys": None,
}  # fmt: skip
FIRST_METADATA_BY_ID = 12
RECORDS = batch(b"from a stranger")
#: Of unknown topics, and of requests that no version allows.
REFUSED = {3, 42, 100}
#: These answer alike whatever is asked for.
OPEN = {
    "SaslHandshake", "SaslAuthenticate", "ApiVersions", "CreateDelegationToken", "RenewDelegationToken",
    "ExpireDelegationToken", "DescribeDelegationToken", "ConsumerGroupHeartbeat", "ConsumerGroupDescribe",
}  # fmt: skip


def asked(
    api: Api, version: int, topic: str, group: str, transactional_id: str, topic_id: bytes, *, lists: bool = False
) -> dict[str, Any]:
    """Return a request that names these. `lists`: that asks for all, where a version can."""

    texts = dict.fromkeys(GROUP_FIELDS, group) | dict.fromkeys(
        ID_FIELDS, transactional_id if api.name != "Produce" else None
    )
    if api.name == "Metadata" and version >= FIRST_METADATA_BY_ID and topic_id != bytes(16):
        texts["name"] = None
    others = {"data": b"", "bytes": b"", "boolean": False}

    def pick(field: Field, nullable: bool) -> Any:
        if not isinstance(field.kind, Primitive):
            count = FIXED.get(field.name, 1)
            return (None if nullable else 0) if lists else count
        if field.name in FIXED or field.name == "records":
            return FIXED.get(field.name, RECORDS)
        if field.kind.layout == "uuid":
            return topic_id if field.name == "topic_id" else bytes(16)
        if field.kind.layout == "string":
            return texts.get(field.name, topic)
        return others.get(field.kind.layout, 0)

    values = values_of(TABLES[f"{api.name}Request"], version, pick)
    if api.name == "DeleteTopics" and version >= 6 and not lists:
        by_id = topic_id != bytes(16)
        values["topics"] = [{"name": None if by_id else topic, "topic_id": topic_id}]
    return values


async def ask(client: KafkaClient, api: Api, version: int, values: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Return a reply, and its bytes."""
    await client.send(api.name, version, **values)
    found = await client._frame()
    assert found is not None, f"closed instead of an answer to {api.name} {version}"
    data = bytes(found)
    client._reader.feed(len(data).to_bytes(4) + data)
    return await client.reply(), data


def walked() -> Iterator[tuple[Api, int]]:
    for api, version in VERSIONS:
        if api.name not in OPEN:
            yield api, version


async def test_a_stranger_learns_nothing_from_any_api(certificates: Certificates, tmp_path: Path) -> None:
    async with secured(certificates, tmp_path / "data") as broker:
        await broker.prepare(TOPIC, GROUP, ID)
        clients = [await broker.client("stranger"), await broker.client(None)]
        for api, version in walked():
            for client in clients:
                await walk_as_stranger(broker, client, api, version)


async def walk_as_stranger(broker: Secured, client: KafkaClient, api: Api, version: int) -> None:
    place = f"{api.name} {version}"
    for topic_id in (bytes(16), broker.topic_id):
        values = asked(api, version, TOPIC, GROUP, ID, topic_id)
        reply, data = await ask(client, api, version, values)
        has_error = not (api.name == "DescribeLogDirs" and version < 3)
        if has_error and ROWS[api_of(api)].missing not in {"", "left out"}:
            assert codes(reply) & (UNAUTHORIZED | REFUSED), (place, reply)
        assert SECRET not in data, place
        if topic_id != bytes(16):
            continue
        assert broker.topic_id not in data, place
        other = asked(api, version, ABSENT, NO_GROUP, NO_ID, topic_id)
        absent = (await ask(client, api, version, other))[1]
        for real, unreal in ((TOPIC, ABSENT), (GROUP, NO_GROUP), (ID, NO_ID)):
            absent = absent.replace(unreal.encode(), real.encode())
        assert data == absent, f"{place} tells what exists"
    _, listed = await ask(client, api, version, asked(api, version, "", "", "", bytes(16), lists=True))
    assert b"secret" not in listed, place
    assert broker.topic_id not in listed, place
    assert SECRET not in listed, place


SIMPLE = re.compile(r"([A-Z_]+) (Topic|Group|Cluster|TransactionalId)")
KINDS = {
    "Topic": (ResourceType.TOPIC, TOPIC),
    "Group": (ResourceType.GROUP, GROUP),
    "Cluster": (ResourceType.CLUSTER, "kafka-cluster"),
    "TransactionalId": (ResourceType.TRANSACTIONAL_ID, ID),
}


def simple_rows() -> Iterator[tuple[Api, Operation, ResourceType, str]]:
    """Return the APIs that need one right."""
    for api, version in VERSIONS:
        row = ROWS[api_of(api)]
        match = SIMPLE.fullmatch(row.needs)
        if match is not None and version == api.last and row.missing != "left out":
            kind, name = KINDS[match[2]]
            yield api, Operation[match[1]], kind, name


def api_of(api: Api) -> str:
    """Return the key of an API in the table."""
    names = {each: key for key, row in ROWS.items() for each in row.name.split(", ")}
    return names[api.name]


async def test_the_only_right_that_an_api_needs_is_enough_and_needed(
    certificates: Certificates, tmp_path: Path
) -> None:
    rows = list(simple_rows())
    assert len(rows) > 25
    async with secured(certificates, tmp_path / "data") as broker:
        await broker.prepare(TOPIC, GROUP, ID)
        client = await broker.client("half")
        whole = [
            acl(ResourceType.TOPIC, TOPIC, Operation.ALL),
            acl(ResourceType.GROUP, GROUP, Operation.ALL),
            acl(ResourceType.TRANSACTIONAL_ID, ID, Operation.ALL),
            cluster(Operation.ALL),
        ]
        for api, operation, kind, name in rows:
            values = asked(api, api.last, TOPIC, GROUP, ID, bytes(16))
            await broker.allow(*whole, acl(kind, name, operation, permission=Permission.DENY))
            reply, _ = await ask(client, api, api.last, values)
            assert codes(reply) & UNAUTHORIZED, (api.name, reply)
            if api.name in {"DeleteRecords", "DeleteGroups"}:
                values = asked(api, api.last, ABSENT, NO_GROUP, ID, bytes(16))
                name = {TOPIC: ABSENT, GROUP: NO_GROUP}[name]  # noqa: PLW2901
            await broker.allow(acl(kind, name, operation))
            reply, _ = await ask(client, api, api.last, values)
            assert not codes(reply) & UNAUTHORIZED, (api.name, reply)


async def test_records_are_hidden_from_who_may_do_everything_but_read(
    certificates: Certificates, tmp_path: Path
) -> None:
    async with secured(certificates, tmp_path / "data") as broker:
        await broker.prepare(TOPIC, GROUP, ID)
        client = await broker.client("half")
        await broker.allow(
            acl(ResourceType.TOPIC, TOPIC, Operation.ALL),
            acl(ResourceType.TOPIC, TOPIC, Operation.READ, permission=Permission.DENY),
        )
        for api, version in VERSIONS:
            if api.name != "Fetch":
                continue
            for topic_id in (bytes(16), broker.topic_id):
                reply, data = await ask(client, api, version, asked(api, version, TOPIC, GROUP, ID, topic_id))
                assert SECRET not in data
                assert codes(reply) & (UNAUTHORIZED | {100}), reply
        await broker.allow(acl(ResourceType.TOPIC, TOPIC, Operation.READ))
        fetch = next(api for api, _ in VERSIONS if api.name == "Fetch")
        _, data = await ask(client, fetch, 12, asked(fetch, 12, TOPIC, GROUP, ID, bytes(16)))
        assert SECRET in data


def test_every_api_of_the_protocol_has_a_row() -> None:
    names = {each for row in ROWS.values() for each in row.name.split(", ")}
    missing = {api.name for api, _ in VERSIONS} - names
    assert not missing


@pytest.mark.parametrize("key", list(ROWS))
def test_a_row_says_what_it_needs(key: str) -> None:
    row = ROWS[key]
    assert row.needs
    assert bool(row.missing) == (not row.needs.startswith("nothing"))
