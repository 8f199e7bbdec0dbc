"""Connections above a rate wait, or are closed after a pause if they are too many of one address."""

import select
from pathlib import Path

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.broker.clients import Running, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.broker.net.test_quotas import set_quota


async def connected(broker: Running) -> KafkaClient:
    return KafkaClient(await broker.open_stream(broker.addresses.kafka))


def is_readable(client: KafkaClient) -> bool:
    return bool(select.select([client.stream.socket], [], [], 0)[0])


async def test_connections_above_the_rate_of_their_listener_wait(tmp_path: Path, mock_clock: MockClock) -> None:
    settings = {"listener.name.kafka.max.connection.creation.rate": "1"}
    async with running(tmp_path, settings) as broker:
        clients = [await connected(broker) for _ in range(11)]
        for client in clients[:10]:
            await client.ask("ApiVersions", 0)
        await clients[10].send("ApiVersions", 0)
        native = await broker.connect()
        await native.hello()
        await wait_all_tasks_blocked()
        assert not is_readable(clients[10])
        mock_clock.jump(1.1)
        await clients[10].reply()
        waiting = await connected(broker)
        await waiting.send("ApiVersions", 0)
        await wait_all_tasks_blocked()
        mock_clock.rate = 1.0  # the broker stops although a connection waits


async def test_connections_above_the_rate_of_their_address_are_closed(tmp_path: Path, mock_clock: MockClock) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka, "admin") as admin:
        await set_quota(admin, "connection_creation_rate", 1.0, ("ip", "127.0.0.1"))
        clients = [await connected(broker) for _ in range(14)]
        for client in clients[:10]:
            await client.ask("ApiVersions", 0)
        host, port = broker.addresses.kafka.rsplit(":", 1)
        async with await trio.open_tcp_stream(host, int(port), local_address="127.0.0.2") as stream:
            await KafkaClient(stream).ask("ApiVersions", 0)
        assert not any(map(is_readable, clients[10:]))
        mock_clock.jump(1.1)
        for client in clients[10:]:
            assert await client.stream.receive_some() == b""
        mock_clock.jump(11.0)
        again = await connected(broker)
        await again.ask("ApiVersions", 0)
        mock_clock.rate = 1.0


async def test_a_broker_stops_although_it_holds_sockets(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka, "admin") as admin:
        await set_quota(admin, "connection_creation_rate", 1.0, ("ip", None))
        clients = [await connected(broker) for _ in range(12)]
        await clients[0].ask("ApiVersions", 0)
        broker.stop.set()
        for client in clients:
            assert await client.stream.receive_some() == b""
        await broker.ended.wait()


async def test_the_rate_changes_while_the_broker_runs(tmp_path: Path, mock_clock: MockClock) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await set_rate(client, "1")
        clients = [await connected(broker) for _ in range(11)]
        await clients[9].ask("ApiVersions", 0)
        await clients[10].send("ApiVersions", 0)
        await wait_all_tasks_blocked()
        assert not is_readable(clients[10])
        mock_clock.jump(1.1)
        await clients[10].reply()
        await set_rate(client, "1000")
        more = [await connected(broker) for _ in range(20)]
        await more[-1].ask("ApiVersions", 0)
        mock_clock.rate = 1.0


async def set_rate(client: KafkaClient, rate: str) -> None:
    config = {"name": "max.connection.creation.rate", "config_operation": 0, "value": rate}
    resource = {"resource_type": 4, "resource_name": "", "configs": [config]}
    reply = await client.ask("IncrementalAlterConfigs", resources=[resource], validate_only=False)
    assert reply["responses"][0]["error_code"] == 0, reply
