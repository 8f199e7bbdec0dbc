"""Requests about the cluster, its features, controller and log directories, and about security."""

from collections.abc import Mapping
from typing import Any

from interop.compare.session import Session


def requests(s: Session) -> None:
    """Describe the cluster, in usual and unusual ways."""
    s.ask("versions", "ApiVersions", client_software_name="compare", client_software_version="1")
    if s.level == "highest":
        s.ask(
            "versions for a client without a name", "ApiVersions", client_software_name="", client_software_version=""
        )
        s.ask("versions for a bad name", "ApiVersions", client_software_name="a b", client_software_version="1")
        _expected_nodes(s)
    topic = s.topic("t", 3)
    other = s.topic("u", 1)
    s.ask("cluster", "DescribeCluster", include_cluster_authorized_operations=True, endpoint_type=1)
    s.ask("cluster without operations", "DescribeCluster", endpoint_type=1)
    s.ask("cluster by controllers", "DescribeCluster", endpoint_type=2)
    s.ask("cluster by an unknown endpoint", "DescribeCluster", endpoint_type=9)
    s.ask("cluster with fenced", "DescribeCluster", endpoint_type=1, include_fenced_brokers=True)
    for count in (1, 2, 100, 0, -1):
        s.ask(
            f"partitions limit {count}",
            "DescribeTopicPartitions",
            topics=[{"name": topic}, {"name": other}],
            response_partition_limit=count,
            cursor=None,
        )
    cursor = {"topic_name": topic, "partition_index": 1}
    s.ask(
        "partitions from a cursor",
        "DescribeTopicPartitions",
        topics=[{"name": topic}],
        response_partition_limit=9,
        cursor=cursor,
    )
    cursor = {"topic_name": topic, "partition_index": -1}
    s.ask(
        "partitions from a bad cursor",
        "DescribeTopicPartitions",
        topics=[{"name": topic}],
        response_partition_limit=9,
        cursor=cursor,
    )
    cursor = {"topic_name": s.name("z"), "partition_index": 0}
    s.ask(
        "partitions behind all",
        "DescribeTopicPartitions",
        topics=[{"name": topic}],
        response_partition_limit=9,
        cursor=cursor,
    )
    s.ask(
        "partitions of unknown",
        "DescribeTopicPartitions",
        topics=[{"name": s.name("no")}],
        response_partition_limit=9,
        cursor=None,
    )
    _directories(s, topic)
    _controller(s, topic)
    _coordinators(s)


def _expected_nodes(s: Session) -> None:
    found = s.quietly("DescribeCluster", endpoint_type=1)
    cluster, node = found["cluster_id"], found["brokers"][0]["broker_id"]
    client: dict[str, Any] = {"client_software_name": "compare", "client_software_version": "1"}
    for label, cluster_id, node_id in (
        ("the node", cluster, node),
        ("another node", cluster, node + 7),
        ("another cluster", "another", node),
        ("a cluster without a node", cluster, -1),
        ("a node without a cluster", None, node),
        ("a negative node", cluster, -2),
    ):
        s.ask(f"versions of {label}", "ApiVersions", **client, cluster_id=cluster_id, node_id=node_id)


def _directories(s: Session, topic: str) -> None:
    s.ask("directories of a topic", "DescribeLogDirs", topics=[{"topic": topic, "partitions": [0, 1, 2]}])
    s.ask("directories of unknown", "DescribeLogDirs", topics=[{"topic": s.name("no"), "partitions": [0]}])
    s.ask("directories of an unknown partition", "DescribeLogDirs", topics=[{"topic": topic, "partitions": [7]}])
    s.ask("directories of none", "DescribeLogDirs", topics=[])
    s.ask("all directories", "DescribeLogDirs", topics=None)


def _controller(s: Session, topic: str) -> None:
    quorum = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    s.ask(
        "quorum of another topic",
        "DescribeQuorum",
        topics=[{"topic_name": topic, "partitions": [{"partition_index": 0}]}],
    )
    s.ask(
        "quorum of another partition", "DescribeQuorum", topics=[{**quorum[0], "partitions": [{"partition_index": 1}]}]
    )
    s.ask(
        "elect preferred",
        "ElectLeaders",
        election_type=0,
        topic_partitions=[{"topic": topic, "partitions": [0, 1]}],
        timeout_ms=5000,
    )
    s.ask(
        "elect unclean",
        "ElectLeaders",
        election_type=1,
        topic_partitions=[{"topic": topic, "partitions": [0]}],
        timeout_ms=5000,
    )
    s.ask(
        "elect unknown", "ElectLeaders", topic_partitions=[{"topic": s.name("no"), "partitions": [0]}], timeout_ms=5000
    )
    s.ask(
        "elect an unknown partition",
        "ElectLeaders",
        topic_partitions=[{"topic": topic, "partitions": [9]}],
        timeout_ms=5000,
    )
    s.ask("reassignments", "ListPartitionReassignments", topics=None, timeout_ms=5000)
    asked = [{"name": topic, "partition_indexes": [0]}]
    s.ask("reassignments of a topic", "ListPartitionReassignments", topics=asked, timeout_ms=5000)
    for label, partition, replicas in (
        ("here", 0, [1]),
        ("elsewhere", 0, [2]),
        ("nowhere", 0, []),
        ("twice", 0, [1, 1]),
        ("none", 0, None),
        ("of unknown", 9, [1]),
    ):
        asked = [{"name": topic, "partitions": [{"partition_index": partition, "replicas": replicas}]}]
        s.ask(f"reassign {label}", "AlterPartitionReassignments", topics=asked, timeout_ms=5000)
    for label, feature, level, kind in (
        ("the same", "metadata.version", 33, 1),
        ("too high", "metadata.version", 9999, 1),
        ("unknown", "no.such", 1, 1),
        ("deleted", "metadata.version", 0, 2),
        ("negative", "metadata.version", -3, 1),
        ("of no kind", "metadata.version", 33, 0),
    ):
        update = {"feature": feature, "max_version_level": level, "upgrade_type": kind}
        s.ask(f"feature {label}", "UpdateFeatures", feature_updates=[update], timeout_ms=5000, validate_only=True)
    s.ask("no features", "UpdateFeatures", feature_updates=[], timeout_ms=5000, validate_only=True)
    s.ask("resources", "ListConfigResources", resource_types=[2])
    s.ask("resources of brokers", "ListConfigResources", resource_types=[4])
    s.ask("resources of groups", "ListConfigResources", resource_types=[32])
    s.ask("resources of no type", "ListConfigResources", resource_types=[99])
    s.ask("unregister unknown", "UnregisterBroker", broker_id=77)
    if s.serves("UnregisterController"):
        s.ask("unregister an unknown controller", "UnregisterController", controller_id=77)


def _coordinators(s: Session) -> None:
    for kind in (0, 1, 2):
        s.ask(
            f"coordinator of type {kind}",
            "FindCoordinator",
            key=s.name("g"),
            key_type=kind,
            coordinator_keys=[s.name("g")],
        )
    s.ask("coordinator of no type", "FindCoordinator", key="g", key_type=9, coordinator_keys=["g"])
    s.ask("coordinator of an empty group", "FindCoordinator", key="", key_type=0, coordinator_keys=[""])
    if s.level != "lowest":
        s.ask("no coordinators", "FindCoordinator", coordinator_keys=[], key="")
        s.ask("a coordinator twice", "FindCoordinator", coordinator_keys=[s.name("g"), s.name("g")], key="g")


def security(s: Session) -> None:
    """Send requests that a node without security refuses."""
    acl = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    filters: dict[str, Any] = {
        "resource_type_filter": 1,
        "pattern_type_filter": 1,
        "operation": 1,
        "permission_type": 1,
    }
    filters |= {"resource_name_filter": None, "principal_filter": None, "host_filter": None}
    s.ask("acls", "DescribeAcls", **filters)
    s.ask(
        "acls of a topic",
        "DescribeAcls",
        **(filters | {"resource_type_filter": 2, "resource_name_filter": "t", "pattern_type_filter": 3}),
    )
    s.ask("create an acl", "CreateAcls", creations=[acl])
    s.ask("create acls", "CreateAcls", creations=[acl, acl])
    s.ask("create no acls", "CreateAcls", creations=[])
    s.ask("delete acls", "DeleteAcls", filters=[filters])
    s.ask("delete no acls", "DeleteAcls", filters=[])
    s.ask("quotas", "DescribeClientQuotas", components=[], strict=False)
    s.ask(
        "strict quotas",
        "DescribeClientQuotas",
        components=[{"entity_type": "user", "match_type": 2, "match": None}],
        strict=True,
    )
    s.ask(
        "quotas of a user",
        "DescribeClientQuotas",
        components=[{"entity_type": "user", "match_type": 0, "match": "a"}],
        strict=True,
    )
    s.ask(
        "quotas of no type",
        "DescribeClientQuotas",
        components=[{"entity_type": "", "match_type": 0, "match": "a"}],
        strict=True,
    )
    s.ask(
        "quotas of an unknown type",
        "DescribeClientQuotas",
        components=[{"entity_type": "moon", "match_type": 0, "match": "a"}],
        strict=True,
    )
    s.ask(
        "quotas of no match",
        "DescribeClientQuotas",
        components=[{"entity_type": "user", "match_type": 9, "match": "a"}],
        strict=True,
    )
    s.ask(
        "quotas twice",
        "DescribeClientQuotas",
        components=[{"entity_type": "user", "match_type": 2, "match": None}] * 2,
        strict=True,
    )
    _alter_quotas(s)
    s.ask("credentials", "DescribeUserScramCredentials", users=None)
    s.ask("credentials of no users", "DescribeUserScramCredentials", users=[])
    s.ask("credentials of a user", "DescribeUserScramCredentials", users=[{"name": "a"}])
    s.ask("credentials of a user twice", "DescribeUserScramCredentials", users=[{"name": "a"}, {"name": "a"}])
    s.ask("delete credentials", "AlterUserScramCredentials", deletions=[{"name": "a", "mechanism": 1}], upsertions=[])
    s.ask("handshake", "SaslHandshake", mechanism="PLAIN", on=1)
    s.ask("authenticate", "SaslAuthenticate", auth_bytes=b"x", on=2)
    s.ask("create a token", "CreateDelegationToken", renewers=[], max_lifetime_ms=1000)
    s.ask("renew a token", "RenewDelegationToken", hmac=b"x", renew_period_ms=1000)
    s.ask("expire a token", "ExpireDelegationToken", hmac=b"x", expiry_time_period_ms=1000)
    s.ask("tokens", "DescribeDelegationToken", owners=None)
    s.ask("tokens of an owner", "DescribeDelegationToken", owners=[{"principal_type": "User", "principal_name": "a"}])


def _alter_quotas(s: Session) -> None:
    """Set quotas that throttle nobody, and remove them; also send invalid ones."""

    def alter(label: str, *changes: tuple[Mapping[str, str | None], Mapping[str, float | None]], **fields: Any) -> None:
        entries = [
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
                "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops.items()],
            }
            for entity, ops in changes
        ]
        s.ask(label, "AlterClientQuotas", entries=entries, **fields)

    high = {"producer_byte_rate": 1e12, "request_percentage": 1e6}
    alter("alter no quotas")
    alter("only validate quotas", ({"user": "a"}, high), validate_only=True)
    alter("set quotas", ({"user": "a"}, high))
    alter("set quotas of a client of a user", ({"user": "a", "client-id": None}, {"consumer_byte_rate": 1e12}))
    alter("set a rate of connections", ({"ip": "10.1.2.3"}, {"connection_creation_rate": 1e6}))
    alter("set a rate of mutations", ({"client-id": "c"}, {"controller_mutation_rate": 0.5}))
    for entity_type in ("user", "client-id", "ip"):
        components = [{"entity_type": entity_type, "match_type": 2, "match": None}]
        s.ask(f"set quotas of {entity_type}", "DescribeClientQuotas", components=components, strict=True)
    alter("remove quotas that there are not", ({"user": "b"}, {"producer_byte_rate": None, "speed": None}))
    alter("a quota of nobody", ({}, high))
    alter("a quota of an unknown type", ({"moon": "a"}, high))
    alter("a quota of an empty name", ({"user": ""}, high))
    alter("a quota of a user and an address", ({"user": "a", "ip": "10.1.2.3"}, high))
    alter("a quota of no address", ({"ip": "not an address"}, {"connection_creation_rate": 1.0}))
    alter("an unknown quota", ({"user": "a"}, {"speed": 1.0}))
    alter("a quota of another kind", ({"ip": None}, high))
    alter("a quota of zero", ({"user": "a"}, {"producer_byte_rate": 0.0}))
    alter("a negative quota", ({"user": "a"}, {"request_percentage": -1.0}))
    alter("a fraction of a byte", ({"user": "a"}, {"consumer_byte_rate": 1.5}))
    alter("too many connections", ({"ip": None}, {"connection_creation_rate": 2.0**31}))
    nothing = {"producer_byte_rate": None, "request_percentage": None}
    alter("remove quotas", ({"user": "a"}, nothing))
    alter("remove a quota of a client", ({"user": "a", "client-id": None}, {"consumer_byte_rate": None}))
    alter("remove a rate of connections", ({"ip": "10.1.2.3"}, {"connection_creation_rate": None}))
    alter("remove a rate of mutations", ({"client-id": "c"}, {"controller_mutation_rate": None}))
    s.ask("no quotas again", "DescribeClientQuotas", components=[], strict=False)
