"""Logins over TLS with librdkafka, whose clients try again after a failure."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from tests.broker.cluster.certificates import Authority
from warmlog.cli.root import root
from warmlog.testing import Broker

LIMIT_S = 30
MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"]
PASSWORD = "open=sesame,s3cret"


@pytest.fixture
def broker(store: Path, tmp_path: Path) -> Iterator[Broker]:
    arguments = ["user", "create", "admin", "--new-password-file", "-", "--data-dir", str(tmp_path / "data")]
    assert CliRunner().invoke(root, arguments, input=f"{PASSWORD}\n").exit_code == 0
    settings = {
        "listener.security.protocol.map": "kafka:SASL_SSL",
        "ssl.keystore.location": store,
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "connections.max.reauth.ms": "2000",
    }
    with Broker(data_dir=tmp_path / "data", settings=settings) as broker:
        yield broker


def client(
    broker: Broker, authority: Authority, mechanism: str, user: str = "admin", password: str = PASSWORD
) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.kafka,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(authority.ca),
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_clients_log_in_produce_and_consume(broker: Broker, authority: Authority, mechanism: str) -> None:
    config = client(broker, authority, mechanism)
    producer = Producer(config)
    for number in range(500):
        producer.produce("t", str(number).encode())
    assert producer.flush(LIMIT_S) == 0
    consumer = Consumer({**config, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    found = [message.value() for message in consumer.consume(500, LIMIT_S)]
    consumer.close()
    assert sorted(int(value or b"") for value in found) == list(range(500))


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [("admin", "wrong"), ("nobody", PASSWORD)])
def test_a_wrong_password_and_an_unknown_user_get_the_same_error(
    broker: Broker, authority: Authority, mechanism: str, user: str, password: str
) -> None:
    errors: list[KafkaError] = []
    config = {**client(broker, authority, mechanism, user, password), "error_cb": errors.append}
    admin = AdminClient(config)
    while not errors:
        admin.poll(1)
    assert any("invalid credentials" in error.str() for error in errors), errors


def test_an_administrator_creates_users(broker: Broker, authority: Authority) -> None:
    admin = AdminClient(client(broker, authority, "SCRAM-SHA-512"))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    upsertion = UserScramCredentialUpsertion("a,b=c", info, b"s3cret")
    admin.alter_user_scram_credentials([upsertion])["a,b=c"].result(LIMIT_S)
    described = admin.describe_user_scram_credentials(["a,b=c"])["a,b=c"].result(LIMIT_S)
    assert [(each.mechanism, each.iterations) for each in described.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_256, 4096)
    ]
    other = AdminClient(client(broker, authority, "SCRAM-SHA-256", "a,b=c", "s3cret"))
    assert other.list_topics(timeout=LIMIT_S).brokers
