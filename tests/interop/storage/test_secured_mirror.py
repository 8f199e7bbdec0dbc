"""A Kafka that encrypts and asks for logins is mirrored."""

import random
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from interop.kafka_node import SETTINGS, KafkaNode
from tests.clients.committing import commit
from tests.clients.waiting import until
from tests.interop.storage.mirroring import (
    LIMIT_S,
    PARTITIONS,
    TOPICS,
    committed,
    content,
    ends,
    load,
    mirror_of,
    try_ends,
    wait_for_copy,
)
from warmlog.cli.security.certificates import make

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PASSWORD = "s3cret"
MECHANISM = "SCRAM-SHA-256"


def secured(certificates: Path) -> dict[str, object]:
    """The settings of a Kafka that asks for a certificate and a login, and checks rights."""
    return {
        **SETTINGS,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",  # of the open listeners
        "sasl.enabled.mechanisms": MECHANISM,
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config":
            "org.apache.kafka.common.security.scram.ScramLoginModule required;",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": certificates / "broker.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates / "ca.pem",
        "listener.name.sasl_ssl.ssl.client.auth": "required",
    }  # fmt: skip


def create_user(bootstrap: str, user: str) -> None:
    """Create a user that may read everything, over the open listener."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    alteration = UserScramCredentialUpsertion(user, info, PASSWORD.encode())
    admin = AdminClient({"bootstrap.servers": bootstrap})
    rights = [
        AclBinding(kind, "*", ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
        for kind, operation in (
            (ResourceType.TOPIC, AclOperation.READ),
            (ResourceType.TOPIC, AclOperation.DESCRIBE_CONFIGS),
            (ResourceType.GROUP, AclOperation.DESCRIBE),
        )
    ]
    for each in (*admin.create_acls(rights).values(), *admin.alter_user_scram_credentials([alteration]).values()):
        each.result()


def mirror_settings(directory: Path) -> dict[str, object]:
    """Make certificates and a password in a directory, and return the settings of a mirror that logs in with them."""
    certificates, password = directory / "certificates", directory / "password"
    make(certificates, hosts=["127.0.0.1"], clients=["mirror"])
    password.write_text(f"{PASSWORD}\n")
    password.chmod(0o600)
    return {
        "warmlog.mirror.security.protocol": "SASL_SSL",
        "warmlog.mirror.ca.file": certificates / "ca.pem",
        "warmlog.mirror.certificate.file": certificates / "client-mirror.pem",
        "warmlog.mirror.key.file": certificates / "client-mirror.pem",
        "warmlog.mirror.sasl.mechanism": MECHANISM,
        "warmlog.mirror.user": "mirror",
        "warmlog.mirror.password.file": password,
    }


def test_a_kafka_with_tls_and_logins_is_mirrored(tmp_path: Path) -> None:
    settings = mirror_settings(tmp_path)
    with KafkaNode(tmp_path / "kafka", settings=secured(tmp_path / "certificates"), secured="SASL_SSL") as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        for each in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in TOPICS]).values():
            each.result()
        until(lambda: try_ends(node.bootstrap) is not None, lambda: None, "leaders of the topics")
        with mirror_of(node.secured_bootstrap, tmp_path / "here", settings) as mirror:
            refused = lambda: any("authentication" in line.lower() for line in mirror.told)  # noqa: E731
            until(refused, lambda: None, "a refusal: there is no such user yet", limit_s=LIMIT_S)
            create_user(node.bootstrap, "mirror")
            with load(node.bootstrap, random.Random(5)):
                until(lambda: ends(node.bootstrap)["plain", 0] > 100, lambda: None, "records", limit_s=LIMIT_S)
            commit(node.bootstrap, "readers", TopicPartition("plain", 0, 7))
            wait_for_copy(node.bootstrap, mirror.kafka)
            until(lambda: committed(mirror.kafka, "readers") == 7, lambda: None, "the offset", limit_s=LIMIT_S)
            mirror.end()
            assert not [line for line in mirror.told if "Traceback" in line]
        for topic in TOPICS:
            for index in range(PARTITIONS):
                here, there = content(tmp_path / "here", topic, index), content(node.data, topic, index)
                assert here == there, f"{topic}-{index}"
