"""Connections to peers by TLS: certificates and names of hosts are checked, large responses arrive."""

import ssl
from pathlib import Path

import pytest
import trio
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.cluster.certificates import Authority
from warmlog.broker.net.transport.certificates import load_client_context
from warmlog.broker.replication.peers.connection import PeerConnection, PeerSettings
from warmlog.broker.replication.peers.errors import PeerUnavailableError
from warmlog.broker.settings.loading import load_settings
from warmlog.broker.settings.tls import tls_settings
from warmlog.protocol.kafka.messages.topics.metadata import KafkaMetadataRequest
from warmlog.protocol.kafka.peer_apis import METADATA
from warmlog.testing import Broker

TOPICS, LENGTH = 300, 200
LIMIT_S = 60


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca") / "ca")


def options(authority: Authority, store: Path, host: str = "127.0.0.1") -> dict[str, object]:
    found = authority.issue(store.stem, host=host)
    store.write_text(found.key.read_text() + found.certificate.read_text())
    return {
        "listener.security.protocol.map": "kafka:SSL",
        "ssl.keystore.location": store,
        "ssl.truststore.location": authority.ca,
        "ssl.client.auth": "required",
    }


def context_of(given: dict[str, object]) -> ssl.SSLContext:
    settings = load_settings(assignments=[f"{name}={value}" for name, value in given.items()])
    return load_client_context(tls_settings(settings, "kafka"))


async def topics_of(broker: Broker, tls: ssl.SSLContext | None) -> int:
    """Ask as a peer does."""
    host, port = broker.kafka.rsplit(":", 1)
    settings = PeerSettings(tls=None if tls is None else lambda: tls)
    async with trio.open_nursery() as nursery:
        connection = await PeerConnection.connect(host, int(port), settings, nursery)
        found = await connection.ask(METADATA, KafkaMetadataRequest())
        connection.close()
    return len(found.topics)


async def test_a_broker_shows_its_certificate_and_gets_large_responses(authority: Authority, tmp_path: Path) -> None:
    given = options(authority, tmp_path / "broker.pem")
    pair = str(given["ssl.keystore.location"])
    with Broker(settings=given) as broker:
        secure = {"bootstrap.servers": broker.kafka, "security.protocol": "SSL", "ssl.ca.location": str(authority.ca)}
        admin = AdminClient(secure | {"ssl.certificate.location": pair, "ssl.key.location": pair})
        created = admin.create_topics([NewTopic(f"{number:03}" + "x" * LENGTH, 1, 1) for number in range(TOPICS)])
        await trio.to_thread.run_sync(lambda: [each.result(LIMIT_S) for each in created.values()])
        assert await topics_of(broker, context_of(given)) == TOPICS


@pytest.mark.parametrize("mistake", ["another authority", "another host", "no TLS"])
async def test_a_peer_that_is_not_who_it_should_be_is_refused(
    authority: Authority, tmp_path: Path, mistake: str
) -> None:
    own: ssl.SSLContext | None = context_of(options(authority, tmp_path / "own.pem"))
    host = "127.0.0.1"
    if mistake == "another authority":
        own = context_of(options(Authority(tmp_path / "stranger"), tmp_path / "stranger.pem"))
    elif mistake == "another host":
        host = "192.0.2.1"
    else:
        own = None
    with Broker(settings=options(authority, tmp_path / "broker.pem", host)) as broker:
        with pytest.raises(ExceptionGroup) as caught:
            await topics_of(broker, own)
        assert caught.group_contains(PeerUnavailableError)
