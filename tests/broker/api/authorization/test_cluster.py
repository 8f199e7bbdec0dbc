"""A cluster with an authorizer: brokers that only have CLUSTER_ACTION replicate, and clients have their rights."""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.broker.api.authorization.rig import STANDARD
from tests.broker.cluster.certificates import Authority
from tests.warmlog.cli.nodes.running import nodes

LIMIT_S = 60
RECORDS = 100


def allowed(kind: ResourceType, name: str, principal: str, operation: AclOperation) -> AclBinding:
    pattern = ResourcePatternType.LITERAL
    return AclBinding(kind, name, pattern, f"User:{principal}", "*", operation, AclPermissionType.ALLOW)


def create(admin: AdminClient, *acls: AclBinding) -> None:
    for future in admin.create_acls(list(acls)).values():
        future.result(LIMIT_S)


def produced(client: dict[str, Any], count: int, **others: Any) -> list[KafkaError]:
    failures: list[KafkaError] = []
    producer = Producer({**client, "acks": "all", **others})
    for number in range(count):
        producer.produce("t", value=b"%d" % number, on_delivery=lambda error, _: error and failures.append(error))
    assert producer.flush(LIMIT_S) == 0
    return failures


@pytest.mark.timeout(240)
def test_brokers_with_cluster_action_replicate_and_clients_have_their_rights(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    issued = {name: authority.issue(name, subject=f"/CN={name}") for name in ("broker", "admin", "alice", "bob")}
    store = tmp_path / "store.pem"
    store.write_text(issued["broker"].key.read_text() + issued["broker"].certificate.read_text())
    options = [
        "listeners=SSL://127.0.0.1:0",
        f"ssl.keystore.location={store}",
        f"ssl.truststore.location={authority.ca}",
        "ssl.client.auth=required",
        "ssl.principal.mapping.rules=RULE:^CN=(.*)$/$1/",
        f"authorizer.class.name={STANDARD}",
        "super.users=User:admin",
    ]
    assigned = [word for option in options for word in ("--set", option)]
    with nodes(tmp_path / "data", 3, *assigned, addresses=("--http", "none")) as running:
        lines = [dict(word.split("=") for word in line.split() if "=" in word) for line in running.lines[1:4]]

        def client(name: str) -> dict[str, Any]:
            return {
                "bootstrap.servers": lines[0]["ssl"],
                "security.protocol": "ssl",
                "ssl.ca.location": str(authority.ca),
                "ssl.certificate.location": str(issued[name].certificate),
                "ssl.key.location": str(issued[name].key),
            }

        admin = AdminClient(client("admin"))
        create(admin, allowed(ResourceType.BROKER, "kafka-cluster", "broker", AclOperation.CLUSTER_ACTION))
        created = admin.create_topics([NewTopic("t", 3, 3, config={"min.insync.replicas": "3"})])
        created["t"].result(LIMIT_S)
        (failure,) = {error.code() for error in produced(client("alice"), 1)}
        assert failure == KafkaError.TOPIC_AUTHORIZATION_FAILED
        create(
            admin,
            allowed(ResourceType.TOPIC, "t", "alice", AclOperation.WRITE),
            allowed(ResourceType.TRANSACTIONAL_ID, "x", "alice", AclOperation.WRITE),
            allowed(ResourceType.TOPIC, "t", "bob", AclOperation.READ),
            allowed(ResourceType.GROUP, "g", "bob", AclOperation.READ),
        )
        assert produced(client("alice"), RECORDS, **{"enable.idempotence": True}) == []
        transactional = Producer({**client("alice"), "transactional.id": "x"})
        transactional.init_transactions(LIMIT_S)
        transactional.begin_transaction()
        for partition in range(3):
            transactional.produce("t", value=b"committed", partition=partition)
        transactional.commit_transaction(LIMIT_S)
        transactional.close()  # else it connects to the cluster, and logs that, for as long as the run lasts
        consumer = Consumer({**client("bob"), "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        found = consumer.consume(RECORDS + 3, LIMIT_S)
        assert len([each for each in found if each.error() is None]) == RECORDS + 3
        consumer.commit(asynchronous=False)
        consumer.close()
        reader = AdminClient(client("bob"))
        with pytest.raises(KafkaException) as refused:
            create(reader, allowed(ResourceType.TOPIC, "t", "bob", AclOperation.ALL))
        assert refused.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
        assert len(admin.describe_acls(_anything()).result(LIMIT_S)) == 5
        assert running.stop() == 0


def _anything() -> AclBindingFilter:
    return AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
