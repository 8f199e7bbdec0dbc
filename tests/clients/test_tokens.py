"""Clients of other authors log in with tokens."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AsyncTokenProvider
from aiokafka.errors import KafkaError as AsyncKafkaError
from confluent_kafka import Consumer, KafkaError, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

from tests.clients.test_aiokafka import in_loop
from tests.issuer import CLIENT, SECRET, Issuer, running_issuer
from warmlog.broker.security.sasl import Login
from warmlog.testing import Broker

LIMIT_S = 30


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with running_issuer() as issuer:
        yield issuer


@pytest.fixture
def address(tmp_path: Path, issuer: Issuer) -> Iterator[str]:
    settings = {"listener.security.protocol.map": "kafka:SASL_PLAINTEXT", **issuer.settings()}
    with Broker(data_dir=tmp_path / "data", settings=settings) as broker:
        yield broker.kafka


def of_librdkafka(address: str, **others: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "OAUTHBEARER",
        **others,
    }


def with_credentials(address: str, issuer: Issuer, secret: str = SECRET) -> dict[str, Any]:
    """Return the settings with which librdkafka fetches tokens itself."""
    return {
        **of_librdkafka(address),
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": CLIENT,
        "sasl.oauthbearer.client.secret": secret,
        "sasl.oauthbearer.token.endpoint.url": f"{issuer.url}/token",
        "sasl.oauthbearer.scope": "kafka",
    }


def produce_and_consume(config: dict[str, Any]) -> None:
    producer = Producer(config)
    producer.produce("t", b"a value")
    assert producer.flush(LIMIT_S) == 0
    consumer = Consumer({**config, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    assert [message.value() for message in consumer.consume(1, LIMIT_S)] == [b"a value"]
    consumer.close()


def test_librdkafka_with_a_function_that_returns_tokens(address: str, issuer: Issuer) -> None:
    def token(_config: str) -> tuple[str, float]:
        return issuer.token(), time.time() + issuer.lifetime_s

    produce_and_consume(of_librdkafka(address, oauth_cb=token))


def test_librdkafka_with_client_credentials(address: str, issuer: Issuer) -> None:
    produce_and_consume(with_credentials(address, issuer))
    assert issuer.grants >= 2
    assert set(issuer.scopes) == {"kafka"}


def test_librdkafka_logs_in_again_on_an_open_connection(
    tmp_path: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete: list[Login] = []
    advanced = Login.advanced

    def counted(login: Login) -> None:
        advanced(login)
        complete.append(login)

    monkeypatch.setattr(Login, "advanced", counted)
    given = {"listener.security.protocol.map": "kafka:SASL_PLAINTEXT", "connections.max.reauth.ms": "2000"}
    errors: list[KafkaError] = []
    with Broker(data_dir=tmp_path / "data", settings={**issuer.settings(), **given}) as broker:
        producer = Producer({**with_credentials(broker.kafka, issuer), "error_cb": errors.append})
        while len(complete) < len(set(complete)) + 2:
            producer.produce("t", b"a value")
            assert producer.flush(LIMIT_S) == 0
        assert errors == []
        del producer


def test_librdkafka_reports_that_its_token_is_refused(address: str, issuer: Issuer) -> None:
    errors: list[KafkaError] = []

    def token(_config: str) -> tuple[str, float]:
        return issuer.token(aud="another"), time.time() + issuer.lifetime_s

    producer = Producer(of_librdkafka(address, oauth_cb=token, error_cb=errors.append))
    while not any(error.code() == KafkaError._AUTHENTICATION for error in errors):
        producer.poll(0.1)
    assert any("invalid_token" in error.str() for error in errors)


def test_kafka_python_with_a_token_provider(address: str, issuer: Issuer) -> None:
    class Tokens(AbstractTokenProvider):
        def token(self) -> str:
            return issuer.token()

        def extensions(self) -> dict[str, str]:
            return {"trace": "7"}

    config: dict[str, Any] = {
        "bootstrap_servers": address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": Tokens(),
    }
    with KafkaProducer(**config) as producer:
        producer.send("t", b"a value").get(LIMIT_S)
    with KafkaConsumer("t", auto_offset_reset="earliest", **config) as consumer:
        assert next(consumer).value == b"a value"


def test_aiokafka_with_a_token_provider(address: str, issuer: Issuer) -> None:
    class Tokens(AsyncTokenProvider):
        def __init__(self, audience: str) -> None:
            self._audience = audience

        async def token(self) -> str:
            return issuer.token(aud=self._audience)

    def config(audience: str = "warmlog") -> dict[str, Any]:
        return {
            "bootstrap_servers": address,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": Tokens(audience),
        }

    async def main() -> None:
        async with AIOKafkaProducer(**config()) as producer:
            await producer.send_and_wait("t", b"a value")
        async with AIOKafkaConsumer("t", auto_offset_reset="earliest", **config()) as consumer:
            assert (await consumer.getone()).value == b"a value"
        refused = AIOKafkaProducer(**config("another"))
        with pytest.raises(AsyncKafkaError):
            await refused.start()
        await refused.stop()

    in_loop(main)
