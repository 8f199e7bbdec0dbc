"""What a right gives, on a real broker: filters, sessions, changes while a client is connected, both protocols."""

from pathlib import Path
from typing import Any

import pytest
import trio

from tests.broker.api.authorization.rig import SECRET, STANDARD, Certificates, Secured, acl, cluster, codes, secured
from tests.broker.clients import batch, fetch_request, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.broker.security.acls import Operation, PatternType, Permission, ResourceType
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import ListGroupsRequest, OffsetFetchGroup, OffsetFetchRequest
from warmlog.protocol.native.explain import ExplainRequest
from warmlog.protocol.native.groups import DescribeConsumerGroupsRequest, JoinConsumerGroupRequest
from warmlog.protocol.native.messages import VERSIONS
from warmlog.protocol.native.mirrors import DescribeMirrorRequest
from warmlog.protocol.request import (
    AlterTopicsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeTopicsRequest,
    HelloRequest,
    ListOffsetsRequest,
    MetadataRequest,
    NewTopic,
    OffsetQuery,
    TopicAlteration,
)

TOPIC, OTHER, GROUP, ID = "secret-topic", "shown-topic", "secret-group", "secret-id"
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
LIMIT_S = 20


def topic_acl(operation: Operation, name: str = TOPIC, **others: Any) -> Any:
    return acl(ResourceType.TOPIC, name, operation, **others)


def fetch_fields(offset: int = 0, topic: str = TOPIC, **others: Any) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    topics = [{"topic": topic, "partitions": [partition]}]
    return {"max_bytes": 1 << 20, "session_epoch": -1, "max_wait_ms": 0, "topics": topics, **others}


async def ready(broker: Secured) -> tuple[KafkaClient, Any]:
    """Create both topics, and connect as `half`."""
    await broker.prepare(TOPIC, GROUP, ID)
    native = await broker.native("admin")
    await native.create(OTHER)
    return await broker.client("half"), native


async def test_lists_have_only_what_may_be_described(certificates: Certificates, tmp_path: Path) -> None:
    async with secured(certificates, tmp_path / "data") as broker:
        client, _ = await ready(broker)
        await broker.allow(topic_acl(Operation.READ, OTHER), acl(ResourceType.GROUP, "none", Operation.READ))
        found = await client.ask("Metadata", topics=None, include_topic_authorized_operations=True)
        (shown,) = found["topics"]
        assert (shown["name"], shown["topic_authorized_operations"]) == (OTHER, 1 << 3 | 1 << 8)
        both = [{"name": TOPIC, "topic_id": bytes(16)}, {"name": OTHER, "topic_id": bytes(16)}]
        named = await client.ask("Metadata", topics=both)
        assert {each["name"]: each["error_code"] for each in named["topics"]} == {TOPIC: DENIED, OTHER: 0}
        page = await client.ask("DescribeTopicPartitions", topics=(), response_partition_limit=100)
        assert [each["name"] for each in page["topics"]] == [OTHER]
        cursor = {"topic_name": TOPIC, "partition_index": 0}
        page = await client.ask("DescribeTopicPartitions", topics=(), response_partition_limit=1, cursor=cursor)
        assert [each["name"] for each in page["topics"]] == [OTHER]
        assert (await client.ask("ListGroups"))["groups"] == ()
        await broker.allow(cluster(Operation.DESCRIBE))
        assert [each["group_id"] for each in (await client.ask("ListGroups"))["groups"]] == [GROUP]


async def test_a_certificate_to_which_no_rule_applies_is_refused(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with secured(certificates, tmp_path / "data") as broker:
        client = await broker.client("unmapped")  # with TLS 1.3, the client's part of the handshake is over
        with trio.fail_after(LIMIT_S), pytest.raises((trio.BrokenResourceError, AssertionError)):
            await client.ask("ApiVersions", 0)
    assert "no rule of ssl.principal.mapping.rules applies to 'O=nobody'" in caplog.text


async def test_the_operations_on_the_cluster_are_those_allowed(certificates: Certificates, tmp_path: Path) -> None:
    async with secured(certificates, tmp_path / "data") as broker:
        client = await broker.client("half")

        async def operations() -> int:
            reply = await client.ask("DescribeCluster", include_cluster_authorized_operations=True)
            return int(reply["cluster_authorized_operations"])

        await broker.allow(cluster(Operation.CREATE))
        assert await operations() == 0
        await broker.allow(cluster(Operation.CREATE), cluster(Operation.ALTER))
        assert await operations() == 1 << 5 | 1 << 7 | 1 << 8
        old = await client.ask("Metadata", 8, topics=(), include_cluster_authorized_operations=True)
        assert old["cluster_authorized_operations"] == 1 << 5 | 1 << 7 | 1 << 8


async def test_offsets_of_a_group_are_shown_by_topic(certificates: Certificates, tmp_path: Path) -> None:
    async with secured(certificates, tmp_path / "data") as broker:
        client, _ = await ready(broker)
        await broker.allow(acl(ResourceType.GROUP, GROUP, Operation.DESCRIBE))
        groups = [{"group_id": GROUP, "topics": None, "member_id": None, "member_epoch": -1}]
        found = await client.ask("OffsetFetch", 9, groups=groups)
        assert found["groups"][0]["topics"] == ()
        partitions = [{"name": TOPIC, "partition_indexes": [0]}, {"name": OTHER, "partition_indexes": [0]}]
        asked = [{**groups[0], "topics": partitions}]
        await broker.allow(acl(ResourceType.GROUP, GROUP, Operation.DESCRIBE), topic_acl(Operation.DESCRIBE))
        (group,) = (await client.ask("OffsetFetch", 9, groups=asked))["groups"]
        errors = {each["name"]: each["partitions"][0]["error_code"] for each in group["topics"]}
        assert errors == {TOPIC: 0, OTHER: DENIED}
        assert (await client.ask("OffsetFetch", 9, groups=groups))["groups"][0]["topics"][0]["name"] == TOPIC


async def test_a_produce_is_refused_by_partition(certificates: Certificates, tmp_path: Path) -> None:
    async with secured(certificates, tmp_path / "data") as broker:
        client, _ = await ready(broker)
        await broker.allow(topic_acl(Operation.WRITE, OTHER))
        data = [
            {"name": name, "partition_data": [{"index": 0, "records": batch(b"x")}]} for name in (TOPIC, OTHER, TOPIC)
        ]
        reply = await client.ask("Produce", 9, acks=1, timeout_ms=1000, topic_data=data)
        outcomes = [
            (each["name"], part["error_code"]) for each in reply["responses"] for part in each["partition_responses"]
        ]
        assert outcomes == [(TOPIC, DENIED), (OTHER, 0), (TOPIC, DENIED)]
        ends = await broker.admin.ask(
            "ListOffsets", 5, replica_id=-1,
            topics=[{"name": n, "partitions": [{"partition_index": 0, "timestamp": -1}]} for n in (TOPIC, OTHER)],
        )  # fmt: skip
        assert [each["partitions"][0]["offset"] for each in ends["topics"]] == [1, 1]


@pytest.mark.parametrize("count", [1, 600])
async def test_a_produce_creates_topics_only_with_create(
    certificates: Certificates, tmp_path: Path, count: int
) -> None:
    async with secured(certificates, tmp_path / "data") as broker:
        client = await broker.client("half")
        write = acl(ResourceType.TOPIC, "new-", Operation.WRITE, pattern=PatternType.PREFIXED)
        data = [
            {"name": f"new-{number}", "partition_data": [{"index": 0, "records": batch(b"x")}]}
            for number in range(count)
        ]
        await broker.allow(write)
        reply = await client.ask("Produce", 9, acks=1, timeout_ms=1000, topic_data=data)
        assert codes(reply) == {DENIED}
        assert (await broker.admin.ask("Metadata", topics=None))["topics"] == ()
        if count == 1:
            await broker.allow(write, cluster(Operation.CREATE))
            reply = await client.ask("Produce", 9, acks=1, timeout_ms=1000, topic_data=data)
            assert codes(reply) == {0}


@pytest.mark.parametrize("by_cluster", [True, False])
async def test_metadata_creates_topics_only_with_create(
    certificates: Certificates, tmp_path: Path, *, by_cluster: bool
) -> None:
    async with secured(certificates, tmp_path / "data") as broker:
        client = await broker.client("half")
        asked = {"topics": [{"name": TOPIC, "topic_id": bytes(16)}], "allow_auto_topic_creation": True}
        await broker.allow(topic_acl(Operation.DESCRIBE))
        assert (await client.ask("Metadata", **asked))["topics"][0]["error_code"] == DENIED
        right = cluster(Operation.CREATE) if by_cluster else topic_acl(Operation.CREATE)
        await broker.allow(topic_acl(Operation.DESCRIBE), right)
        assert (await client.ask("Metadata", **asked))["topics"][0]["error_code"] == 0


async def test_a_fetch_that_waits_ends_with_the_right(certificates: Certificates, tmp_path: Path) -> None:
    async with secured(certificates, tmp_path / "data") as broker:
        client, native = await ready(broker)
        await broker.allow(topic_acl(Operation.READ))
        await client.send("Fetch", 12, **fetch_fields(1, min_bytes=1, max_wait_ms=LIMIT_S * 1000))
        await broker.allow()
        assert (await native.produce(TOPIC, batch(SECRET))).error is ErrorCode.NONE
        with trio.fail_after(LIMIT_S):
            reply = await client.reply()
        assert codes(reply) == {0, DENIED}
        assert not len(reply["responses"][0]["partitions"][0]["records"] or b"")


async def test_a_fetch_session_is_checked_again_when_rights_change(certificates: Certificates, tmp_path: Path) -> None:
    async with secured(certificates, tmp_path / "data") as broker:
        client, _ = await ready(broker)
        await broker.allow(topic_acl(Operation.READ))
        full = await client.ask("Fetch", 12, **fetch_fields(1, session_epoch=0))
        session = {"session_id": full["session_id"], "max_bytes": 1 << 20, "max_wait_ms": 0, "topics": ()}
        assert session["session_id"]
        quiet = await client.ask("Fetch", 12, **session, session_epoch=1)
        assert quiet["responses"] == ()
        await broker.allow()
        refused = await client.ask("Fetch", 12, **session, session_epoch=2)
        assert codes(refused) == {0, DENIED}
        await broker.allow(topic_acl(Operation.READ))
        again = await client.ask("Fetch", 12, **session, session_epoch=3)
        assert codes(again) == {0}


async def test_a_fetch_session_belongs_to_its_principal(certificates: Certificates, tmp_path: Path) -> None:
    async with secured(certificates, tmp_path / "data") as broker:
        client, _ = await ready(broker)
        await broker.allow(topic_acl(Operation.READ))
        full = await client.ask("Fetch", 12, **fetch_fields(0, session_epoch=0))
        session = {"session_id": full["session_id"], "max_bytes": 1 << 20, "max_wait_ms": 0, "topics": ()}
        for thief in (await broker.client("stranger"), broker.admin):
            stolen = await thief.ask("Fetch", 12, **session, session_epoch=1)
            assert stolen["error_code"] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            await thief.ask("Fetch", 12, **session, session_epoch=-1)  # which would close it
        kept = await client.ask("Fetch", 12, **session, session_epoch=1)
        assert kept["error_code"] == 0


async def test_only_brokers_send_what_brokers_send(certificates: Certificates, tmp_path: Path) -> None:
    async with secured(certificates, tmp_path / "data") as broker:
        client, _ = await ready(broker)
        every = [topic_acl(Operation.ALL), acl(ResourceType.TRANSACTIONAL_ID, ID, Operation.ALL)]
        await broker.allow(*every)
        follower = await client.ask("Fetch", 12, **fetch_fields(replica_id=1))
        assert codes(follower) == {0, DENIED}
        marker = {"producer_id": 1, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0,
                  "topics": [{"name": TOPIC, "partition_indexes": [0]}]}  # fmt: skip
        assert codes(await client.ask("WriteTxnMarkers", markers=[marker])) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
        transaction = {"transactional_id": ID, "producer_id": 1, "producer_epoch": 0, "verify_only": True,
                       "topics": [{"name": TOPIC, "partitions": [0]}]}  # fmt: skip
        added = await client.ask("AddPartitionsToTxn", 5, transactions=[transaction])
        assert added["error_code"] == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        await broker.allow(*every, cluster(Operation.CLUSTER_ACTION))
        assert DENIED not in codes(await client.ask("Fetch", 12, **fetch_fields(replica_id=1)))
        added = await client.ask("AddPartitionsToTxn", 5, transactions=[transaction])
        assert added["error_code"] == 0


async def test_an_idempotent_producer_needs_a_topic_to_write_to(certificates: Certificates, tmp_path: Path) -> None:
    async with secured(certificates, tmp_path / "data") as broker:
        client = await broker.client("half")
        asked = {"transactional_id": None, "transaction_timeout_ms": 1000}
        for acls, may in (
            ((), False),
            ((topic_acl(Operation.WRITE),), True),
            ((topic_acl(Operation.WRITE), topic_acl(Operation.WRITE, permission=Permission.DENY)), False),
            ((cluster(Operation.IDEMPOTENT_WRITE),), True),
        ):
            await broker.allow(*acls)
            assert codes(await client.ask("InitProducerId", **asked)) == {0 if may else 31}, acls


async def test_a_created_topic_shows_its_settings_with_describe_configs(
    certificates: Certificates, tmp_path: Path
) -> None:
    async with secured(certificates, tmp_path / "data") as broker:
        client = await broker.client("half")
        await broker.allow(cluster(Operation.CREATE), topic_acl(Operation.DESCRIBE_CONFIGS))
        topics = [{"name": name, "num_partitions": 2, "replication_factor": 1} for name in (TOPIC, OTHER)]
        shown, hidden = (await client.ask("CreateTopics", topics=topics, timeout_ms=1000))["topics"]
        assert (shown["error_code"], shown["num_partitions"], shown["topic_config_error_code"]) == (0, 2, 0)
        assert shown["configs"]
        assert (hidden["error_code"], hidden["num_partitions"], hidden["topic_config_error_code"]) == (0, -1, DENIED)
        assert not hidden["configs"]


async def test_the_native_protocol_has_the_same_checks(certificates: Certificates, tmp_path: Path) -> None:
    async with secured(certificates, tmp_path / "data") as broker:
        await broker.prepare(TOPIC, GROUP, ID)
        stranger = await broker.native("stranger")
        assert (await stranger.produce(TOPIC, batch(b"x"))).error is DENIED
        assert (await stranger.fetch(TOPIC, 0)).error is DENIED
        asked = [
            MetadataRequest(topics=(TOPIC,)),
            DescribeTopicsRequest(topics=(TOPIC,)),
            DeleteTopicsRequest(topics=(TOPIC,)),
            AlterTopicsRequest(topics=(TopicAlteration(name=TOPIC, partitions=2),)),
            CreateTopicsRequest(topics=(NewTopic(name="mine"),)),
        ]
        for request in asked:
            assert (await stranger.ask(request)).topics[0].error is DENIED, request
        query = OffsetQuery(topic=TOPIC, partition=0, timestamp=-1)
        assert (await stranger.ask(ListOffsetsRequest(partitions=(query,)))).partitions[0].error is DENIED
        assert (await stranger.ask(MetadataRequest())).topics == ()
        newest = await broker.broker.connect(tls=certificates.contexts["stranger"], hello=False)
        await newest.ask(HelloRequest(versions=VERSIONS, client="test"))
        for request, code in (
            (ExplainRequest(topic=TOPIC, partition=0, offset=0), DENIED),
            (JoinConsumerGroupRequest(group=GROUP, topics=(TOPIC,)), ErrorCode.GROUP_AUTHORIZATION_FAILED),
            (DescribeMirrorRequest(), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ):
            assert (await newest.ask(request)).error is code, request
        assert (await newest.ask(ListGroupsRequest())).groups == ()
        for request in (
            DescribeConsumerGroupsRequest(groups=(GROUP,)),
            OffsetFetchRequest(groups=(OffsetFetchGroup(group=GROUP),)),
        ):
            (group,) = (await newest.ask(request)).groups
            assert group.error is ErrorCode.GROUP_AUTHORIZATION_FAILED
        half = await broker.native("half")
        await broker.allow(topic_acl(Operation.READ))
        reply = await half.ask(fetch_request(TOPIC, 0))
        assert SECRET in bytes(reply.partitions[0].records)


# -- ACLs themselves --

FILTER = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
CREATION = {
    "resource_type": 2, "resource_name": "orders", "resource_pattern_type": 3, "principal": "User:a", "host": "*",
    "operation": 3, "permission_type": 3,
}  # fmt: skip
OPEN = {"authorizer.class.name": STANDARD, "super.users": "User:ANONYMOUS"}


async def test_acls_survive_a_restart_and_are_there_once(tmp_path: Path) -> None:
    async with running(tmp_path, OPEN) as broker, kafka_client(broker.addresses.kafka) as client:
        for _ in range(2):
            reply = await client.ask("CreateAcls", creations=[CREATION, CREATION])
            assert codes(reply) == {0}
    async with running(tmp_path, OPEN) as broker, kafka_client(broker.addresses.kafka) as client:
        (resource,) = (await client.ask("DescribeAcls", **FILTER))["resources"]
        assert len(resource["acls"]) == 1
        deleted = await client.ask("DeleteAcls", filters=[FILTER, FILTER, {**FILTER, "operation": 99}])
        assert [len(each["matching_acls"]) for each in deleted["filter_results"]] == [1, 1, 0]
        assert deleted["filter_results"][2]["error_code"] == ErrorCode.INVALID_REQUEST
        assert (await client.ask("DescribeAcls", **FILTER))["resources"] == ()


async def test_many_acls_are_created_and_deleted(tmp_path: Path) -> None:
    async with running(tmp_path, OPEN) as broker, kafka_client(broker.addresses.kafka) as client:
        creations = [{**CREATION, "resource_name": f"t{number}"} for number in range(300)]
        assert codes(await client.ask("CreateAcls", creations=creations)) == {0}
        assert len((await client.ask("DescribeAcls", **FILTER))["resources"]) == 300
        deleted = await client.ask("DeleteAcls", filters=[FILTER])
        assert len(deleted["filter_results"][0]["matching_acls"]) == 300
        assert (await client.ask("DescribeAcls", **FILTER))["resources"] == ()


async def test_an_invalid_acl_does_not_hinder_the_others(tmp_path: Path) -> None:
    async with running(tmp_path, OPEN) as broker, kafka_client(broker.addresses.kafka) as client:
        creations = [{**CREATION, "principal": "nobody"}, CREATION, {**CREATION, "operation": 1}]
        reply = await client.ask("CreateAcls", creations=creations)
        assert [each["error_code"] for each in reply["results"]] == [42, 0, 42]
        assert (await client.ask("DescribeAcls", **{**FILTER, "pattern_type_filter": 0}))["error_code"] == 42
