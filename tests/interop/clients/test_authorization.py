"""Requests of clients without rights are answered as Kafka's StandardAuthorizer has them answered, code by code.

Clients are told apart by their address: 127.0.0.1 may do everything, 127.0.0.2 what each case gives it.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from interop.java_tools import ToolOutput, call, run
from interop.kafka_node import SETTINGS, WIRE_VERSION, KafkaNode
from tests.broker.api.authorization.rig import STANDARD, codes
from tests.broker.api.authorization.test_walk import GROUP, ID, TOPIC, ask, asked
from tests.broker.clients import batch
from tests.broker.kafka_client import KafkaClient
from tests.protocol.kafka.messages import VERSIONS
from warmlog.broker.security.acls import Operation as Op
from warmlog.broker.security.acls import ResourceType as Kind
from warmlog.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

ADMIN, CLIENT = "127.0.0.1", "127.0.0.2"
AUTHORIZED: Mapping[str, object] = {
    "authorizer.class.name": STANDARD,
    "allow.everyone.if.no.acl.found": "true",
}
ALLOW, DENY = 3, 2
NAMES = {Kind.TOPIC: TOPIC, Kind.GROUP: GROUP, Kind.CLUSTER: "kafka-cluster", Kind.TRANSACTIONAL_ID: ID}
#: The rights of the client: allowed and denied operations.
CASES: Mapping[str, tuple[tuple[Kind, Op, int], ...]] = {
    "nothing": (),
    "describe topic": ((Kind.TOPIC, Op.DESCRIBE, ALLOW),),
    "read topic": ((Kind.TOPIC, Op.READ, ALLOW),),
    "write topic": ((Kind.TOPIC, Op.WRITE, ALLOW),),
    "alter topic": ((Kind.TOPIC, Op.ALTER, ALLOW),),
    "settings of topic": ((Kind.TOPIC, Op.ALTER_CONFIGS, ALLOW),),
    "read group": ((Kind.GROUP, Op.READ, ALLOW),),
    "describe group and topic": ((Kind.GROUP, Op.DESCRIBE, ALLOW), (Kind.TOPIC, Op.DESCRIBE, ALLOW)),
    "describe cluster": ((Kind.CLUSTER, Op.DESCRIBE, ALLOW),),
    "idempotent": ((Kind.CLUSTER, Op.IDEMPOTENT_WRITE, ALLOW),),
    "write id": ((Kind.TRANSACTIONAL_ID, Op.WRITE, ALLOW),),
    "describe id": ((Kind.TRANSACTIONAL_ID, Op.DESCRIBE, ALLOW),),
    "all but read": ((Kind.TOPIC, Op.ALL, ALLOW), (Kind.TOPIC, Op.READ, DENY), (Kind.GROUP, Op.ALL, ALLOW)),
}
#: Fields that depend on the broker, or on time.
OTHERS = {
    "error_message", "message", "host", "port", "brokers", "cluster_id", "controller_id", "node_id", "throttle_time_ms",
    "topic_id", "records", "nodes", "node_endpoints", "api_keys", "member_id", "leader", "leader_id", "topics_hash",
    "partitions_metadata", "coordinator_epoch", "documentation", "configs", "synonyms", "eligible_leader_replicas",
}  # fmt: skip
#: With a right, these change or wait; they are compared without rights.
CHANGING = {
    "DeleteTopics", "DeleteGroups", "DeleteRecords", "JoinGroup", "SyncGroup", "CreatePartitions", "AlterConfigs",
    "IncrementalAlterConfigs", "Produce", "OffsetDelete", "EndTxn", "InitProducerId", "UpdateFeatures",
    "TxnOffsetCommit", "AddOffsetsToTxn", "AddPartitionsToTxn", "OffsetCommit", "LeaveGroup", "Heartbeat",
    "DescribeQuorum", "DescribeLogDirs", "AlterReplicaLogDirs", "DescribeProducers",
}  # fmt: skip
#: Not compared: answered alike by every broker, or about what is not served here.
LEFT_OUT = {
    "ApiVersions", "SaslHandshake", "SaslAuthenticate", "CreateDelegationToken", "RenewDelegationToken",
    "ExpireDelegationToken", "DescribeDelegationToken", "ConsumerGroupHeartbeat", "ConsumerGroupDescribe",
    "UnregisterController", "AddRaftVoter", "RemoveRaftVoter",
}  # fmt: skip


#: Errors of the whole repeat more of the request, or less: their codes are compared.
ECHOING = {"ListPartitionReassignments", "AlterPartitionReassignments", "DescribeUserScramCredentials"}
#: With an error of the whole, an unknown topic id is still reported as such here.
BY_ID = {("OffsetCommit", 10), ("TxnOffsetCommit", 6)}


@asynccontextmanager
async def connected(bootstrap: str, address: str) -> AsyncIterator[KafkaClient]:
    host, port = bootstrap.rsplit(":", 1)
    async with await trio.open_tcp_stream(host, int(port), local_address=address) as stream:
        yield KafkaClient(stream)


def creation(kind: Kind, name: str, operation: Op, permission: int, host: str) -> dict[str, Any]:
    return {
        "resource_type": kind, "resource_name": name, "resource_pattern_type": 3, "principal": "User:ANONYMOUS",
        "host": host, "operation": operation, "permission_type": permission,
    }  # fmt: skip


async def prepare(admin: KafkaClient) -> None:
    """Close the broker for all but the administrator; create a topic with a record, and a committed offset."""
    for kind in (Kind.CLUSTER, Kind.TOPIC, Kind.GROUP, Kind.TRANSACTIONAL_ID):
        name = NAMES[kind] if kind is Kind.CLUSTER else "*"
        await admin.ask("CreateAcls", creations=[creation(kind, name, Op.ALL, ALLOW, ADMIN)])
    kept = [{"name": "retention.ms", "value": "-1"}]  # the record is old
    topic = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1, "configs": kept}
    created = await admin.ask("CreateTopics", topics=[topic], timeout_ms=30_000)
    assert created["topics"][0]["error_code"] == 0, created
    data = {"name": TOPIC, "partition_data": [{"index": 0, "records": batch(b"secret")}]}
    await until(lambda: admin.ask("Produce", 9, acks=-1, timeout_ms=1000, topic_data=[data]))
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    topics = [{"name": TOPIC, "partitions": [partition]}]
    await until(lambda: admin.ask("FindCoordinator", 3, key=GROUP, key_type=0))
    await until(lambda: admin.ask("OffsetCommit", 8, group_id=GROUP, topics=topics, member_id="", generation_id=-1))
    await until(lambda: admin.ask("FindCoordinator", 3, key=ID, key_type=1))
    await until(lambda: admin.ask("InitProducerId", 4, transactional_id=ID, transaction_timeout_ms=60_000))


async def until(request: Any) -> None:
    """Repeat a request until it succeeds."""
    with trio.fail_after(60):
        while codes(await request()) != {0}:  # noqa: ASYNC110  # a real Kafka loads its coordinators
            await trio.sleep(0.1)


def facts(reply: Any, path: str = "") -> list[tuple[str, object]]:
    """Return the values in a reply that do not depend on the broker, without an order."""
    found: list[tuple[str, object]] = []
    if isinstance(reply, dict):
        label = next((str(reply[key]) for key in ("name", "topic", "group_id", "topic_name") if reply.get(key)), "")
        for key, value in reply.items():
            if key not in OTHERS:
                found += facts(value, f"{path}/{label}.{key}")
    elif isinstance(reply, tuple | list):
        for value in reply:
            found += facts(value, path)
    else:
        found.append((path, reply if isinstance(reply, int | str | None) else str(reply)))
    return sorted(found, key=str)


async def answers(bootstrap: str) -> dict[tuple[str, str, int], object]:
    """Return what the client gets for each request, in each case."""
    found: dict[tuple[str, str, int], object] = {}
    async with connected(bootstrap, ADMIN) as admin, connected(bootstrap, CLIENT) as client:
        await prepare(admin)
        for case, rights in CASES.items():
            acls = [
                creation(kind, NAMES[kind], operation, permission, CLIENT) for kind, operation, permission in rights
            ]
            if acls:
                await admin.ask("CreateAcls", creations=acls)
            await trio.sleep(0.3)  # a real Kafka applies ACLs after its answer
            for api, version in VERSIONS:
                if api.name in LEFT_OUT or (case != "nothing" and (api.name in CHANGING or version != api.last)):
                    continue
                values = asked(api, version, TOPIC, GROUP, ID, bytes(16))
                if api.name == "CreateTopics":
                    values["validate_only"] = True
                reply, _ = await ask(client, api, version, values)
                found[case, api.name, version] = facts(reply) if api.name not in ECHOING else codes(reply)
            if acls:
                asked_for = {
                    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
                    "principal_filter": None, "host_filter": CLIENT, "operation": 1, "permission_type": 1,
                }  # fmt: skip
                await admin.ask("DeleteAcls", filters=[asked_for])
    return found


def ours() -> Iterator[str]:
    with Broker(settings={**AUTHORIZED, "auto.create.topics.enable": "false"}) as broker:
        yield broker.kafka


async def test_refusals_are_those_of_kafka(tmp_path: Path) -> None:
    settings = {**SETTINGS, **AUTHORIZED}
    with KafkaNode(tmp_path / "kafka", settings=settings, version=WIRE_VERSION) as node:
        theirs = await answers(node.bootstrap)
    here = await answers(next(found := ours()))
    found.close()
    different = {key: (here[key], theirs[key]) for key in theirs if key[1:] not in BY_ID and here[key] != theirs[key]}
    assert different == {}


# -- kafka-acls --

TOOL_CALLS = {
    "add": call("kafka-acls --add --allow-principal User:alice --operation Read --operation Write --topic orders"),
    "add for consumers": call("kafka-acls --add --allow-principal User:bob --consumer --topic orders --group readers"),
    "add a prefix": call(
        "kafka-acls --add --deny-principal User:* --deny-host 10.0.0.1 --operation All --topic aud"
        " --resource-pattern-type prefixed"
    ),
    "add on the cluster": call("kafka-acls --add --allow-principal User:carol --operation Alter --cluster"),
    "list": call("kafka-acls --list"),
    "list what matches": call("kafka-acls --list --topic audit --resource-pattern-type match"),
    "list of a principal": call("kafka-acls --list --principal User:bob"),
    "remove": call("kafka-acls --remove --force --allow-principal User:alice --operation Read --topic orders"),
    "remove all of a topic": call("kafka-acls --remove --force --topic orders"),
    "list the rest": call("kafka-acls --list"),
    "refused": call("kafka-acls --add --allow-principal alice --operation Read --topic orders"),
}


def lines(output: ToolOutput) -> tuple[int, list[str], bool]:
    """Return what does not depend on the order in which a broker lists ACLs, or on its words for errors."""
    return (
        output.status,
        sorted(line.strip() for line in output.output.splitlines() if line.strip()),
        bool(output.complaints),
    )


def test_kafka_acls_says_what_it_says_of_kafka(tmp_path: Path) -> None:
    settings = {**SETTINGS, "authorizer.class.name": STANDARD, "super.users": "User:ANONYMOUS"}
    with KafkaNode(tmp_path / "kafka", settings=settings) as node:
        theirs = run(node.bootstrap, TOOL_CALLS)
    with Broker(settings={"authorizer.class.name": STANDARD, "super.users": "User:ANONYMOUS"}) as broker:
        here = run(broker.kafka, TOOL_CALLS)
    for name, output in theirs.items():
        if name != "refused":
            assert lines(here[name]) == lines(output), name
    assert "User:alice" in theirs["list"].output
    assert here["refused"].status == theirs["refused"].status


# -- hosts --

HOSTS = (
    "*", "10.0.0.0/8", "10.0.0.1/8", "10.0.0.0/0", "::1/128", "fe80::/10", "1.2.3.4", "nonsense", "", "/", "abc/8",
    "10.0.0.0/40", "10.0.0.0/", "10.0.0/8", "10.0.0.0/255.0.0.0", "10.0.0.0/-1", "10.0.0.0/08", " 10.0.0.0/8",
    "::ffff:10.0.0.0/104", "localhost/8",
)  # fmt: skip


async def accepted(bootstrap: str) -> dict[str, set[int]]:
    async with connected(bootstrap, ADMIN) as admin:
        return {
            host: codes(await admin.ask("CreateAcls", creations=[creation(Kind.TOPIC, "t", Op.READ, ALLOW, host)]))
            for host in HOSTS
        }


async def test_the_same_hosts_are_accepted(tmp_path: Path) -> None:
    settings = {"authorizer.class.name": STANDARD, "super.users": "User:ANONYMOUS"}
    with KafkaNode(tmp_path / "kafka", settings={**SETTINGS, **settings}, version=WIRE_VERSION) as node:
        theirs = await accepted(node.bootstrap)
    with Broker(settings=settings) as broker:
        assert await accepted(broker.kafka) == theirs
