"""Connections to peers whose listener has SASL."""

from pathlib import Path

import pytest
import trio
from click.testing import CliRunner

from tests.issuer import running_issuer
from warmlog.broker.replication.peers.connection import PeerConnection, PeerSettings
from warmlog.broker.replication.peers.errors import PeerUnavailableError
from warmlog.broker.replication.peers.login import PeerLogin
from warmlog.broker.settings.loading import load_settings
from warmlog.broker.settings.types import SettingError
from warmlog.cli.root import root
from warmlog.protocol.kafka.messages.topics.metadata import KafkaMetadataRequest
from warmlog.protocol.kafka.peer_apis import METADATA
from warmlog.testing import Broker

SECURED = {
    "listener.security.protocol.map": "kafka:SASL_PLAINTEXT",
    "connection.failed.authentication.delay.ms": "0",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
    "warmlog.sasl.plain.without.tls": "true",
}


async def ask(broker: Broker, login: PeerLogin | None) -> None:
    host, port = broker.kafka.rsplit(":", 1)
    async with trio.open_nursery() as nursery:
        try:
            connection = await PeerConnection.connect(host, int(port), PeerSettings(login=login), nursery)
            await connection.ask(METADATA, KafkaMetadataRequest())
        finally:
            nursery.cancel_scope.cancel()


async def test_a_broker_logs_in_with_each_mechanism(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("open sesame\n")
    password.chmod(0o600)
    data_dir = tmp_path / "data"
    created = CliRunner().invoke(
        root, ["user", "create", "broker", "--new-password-file", str(password), "--data-dir", str(data_dir)]
    )
    assert created.exit_code == 0
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong")
    wrong.chmod(0o600)
    shared = tmp_path / "shared"
    shared.write_text("open sesame\n")
    shared.chmod(0o644)
    with Broker(data_dir=data_dir, settings=SECURED) as broker:
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"):
            await ask(broker, PeerLogin("broker", str(password), mechanism, "warmlog.inter.broker.password.file"))
            for login, why in (
                (
                    PeerLogin("broker", str(wrong), mechanism, "warmlog.inter.broker.password.file"),
                    "invalid credentials",
                ),
                (
                    PeerLogin("broker", str(shared), mechanism, "warmlog.inter.broker.password.file"),
                    "every user of this machine may read",
                ),
                (
                    PeerLogin("broker", str(tmp_path / "none"), mechanism, "warmlog.inter.broker.password.file"),
                    "No such file",
                ),
            ):
                with pytest.RaisesGroup(pytest.RaisesExc(PeerUnavailableError, match=why)):
                    await ask(broker, login)
        with pytest.RaisesGroup(PeerUnavailableError):
            await ask(broker, None)
        with pytest.RaisesGroup(pytest.RaisesExc(PeerUnavailableError, match="UNSUPPORTED_SASL_MECHANISM")):
            await ask(broker, PeerLogin("broker", str(password), "GSSAPI", "warmlog.inter.broker.password.file"))


async def test_a_broker_logs_in_with_a_token_from_a_file(tmp_path: Path) -> None:
    token = tmp_path / "token"
    with running_issuer() as issuer:
        settings = {
            "listener.security.protocol.map": "kafka:SASL_PLAINTEXT",
            **issuer.settings(connection_failed_authentication_delay_ms="0"),
        }
        login = PeerLogin("", str(token), "OAUTHBEARER", "warmlog.mirror.token.file")
        with Broker(data_dir=tmp_path / "data", settings=settings) as broker:
            token.write_text(f"{issuer.token()}\n")
            await ask(broker, login)
            for text, why in (
                (issuer.token(iss="https://other"), "invalid_token"),
                ("no token", "a token may contain only letters, digits"),
                ("", r"warmlog\.mirror\.token\.file: .* is empty"),
            ):
                token.write_text(text)
                with pytest.RaisesGroup(pytest.RaisesExc(PeerUnavailableError, match=why)):
                    await ask(broker, login)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([], r"warmlog\.inter\.broker\.user: needed"),
        (["warmlog.inter.broker.user=a"], r"belongs together"),
        (
            [
                "warmlog.inter.broker.user=a",
                "warmlog.inter.broker.password.file=b",
                "sasl.enabled.mechanisms=SCRAM-SHA-256",
            ],
            r"SCRAM-SHA-512 is not enabled for the kafka listener, which has SCRAM-SHA-256",
        ),
    ],
)
def test_a_broker_of_a_cluster_needs_a_user(given: list[str], why: str) -> None:
    always = ["warmlog.cluster.etcd=http://a:1", "node.id=1", "listener.security.protocol.map=kafka:SASL_PLAINTEXT"]
    with pytest.raises(SettingError, match=why):
        load_settings(assignments=always + given)
