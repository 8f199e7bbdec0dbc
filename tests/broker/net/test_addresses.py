"""What clients are told to come back to, wherever they are: on the host, in the container, in its neighbour."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.broker.net.namespaces import CONTAINER, Namespaces, bridged, run
from warmlog.broker.api.addresses import Advertised, default_gateway
from warmlog.broker.api.context import Session
from warmlog.broker.settings.settings import Settings

ROUND_TRIP = """
import sys
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

producer = Producer({"bootstrap.servers": sys.argv[1]})
producer.produce("here", sys.argv[2])
assert producer.flush(20) == 0
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "g"})
consumer.assign([TopicPartition("here", 0, OFFSET_BEGINNING)])
while True:
    message = consumer.poll(20)
    assert message is not None and message.error() is None
    if message.value() == sys.argv[2].encode():
        break
print(*[f"{b.host}:{b.port}" for b in producer.list_topics(timeout=20).brokers.values()])
consumer.close()
"""
PORT = 9092


@pytest.fixture(scope="module")
def names() -> Iterator[Namespaces]:
    with bridged() as names:
        yield names


@contextmanager
def serving(names: Namespaces, directory: Path, *settings: str) -> Iterator[list[str]]:
    """A broker in the container; gives the lines of its log once it has ended."""
    command = [sys.executable, "-m", "warmlog", "serve", "--data-dir", str(directory), "--kafka", f"0.0.0.0:{PORT}"]
    command += ["--native", "none", "--http", "none", "--set", "warmlog.container=yes"]
    command += [word for setting in settings for word in ("--set", setting)]
    log: list[str] = []
    with subprocess.Popen(
        names.command(names.container, *command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as broker:
        try:
            assert broker.stdout is not None
            assert any(line.startswith("ready ") for line in broker.stdout)
            yield log
        finally:
            broker.terminate()
            log += broker.communicate()[1].splitlines()


def round_trip(names: Namespaces, namespace: str, bootstrap: str) -> str:
    """A client produces and consumes; the address that it was told."""
    return run(names.command(namespace, sys.executable, "-c", ROUND_TRIP, bootstrap, namespace)).strip()


def test_every_client_of_a_container_is_told_what_it_can_reach(names: Namespaces, tmp_path: Path) -> None:
    with serving(names, tmp_path) as log, names.mapped_port(PORT):
        assert round_trip(names, names.host, f"localhost:{PORT}") == f"localhost:{PORT}"
        assert round_trip(names, names.host, f"127.0.0.1:{PORT}") == f"localhost:{PORT}"
        assert round_trip(names, names.neighbour, f"{CONTAINER}:{PORT}") == f"{CONTAINER}:{PORT}"
        assert round_trip(names, names.container, f"127.0.0.1:{PORT}") == f"127.0.0.1:{PORT}"
    told = [line for line in log if "advertised.listeners=kafka://HOST:PORT" in line]
    assert len(told) == 1, log
    assert re.search(r"default gateway 172\.30\.77\.1", told[0])


def test_an_explicit_setting_wins(names: Namespaces, tmp_path: Path) -> None:
    with serving(names, tmp_path, f"advertised.listeners=PLAINTEXT://{CONTAINER}:{PORT}"), names.mapped_port(PORT):
        assert round_trip(names, names.host, f"localhost:{PORT}") == f"{CONTAINER}:{PORT}"


def session(peer: str, local: str) -> Session:
    return Session(listener="kafka", peer=(peer, 40_000), local=(local, PORT))


def test_outside_of_a_container_the_gateway_is_a_client_like_others() -> None:
    assert Advertised(Settings, gateway=None).of(session("10.0.0.1", "10.0.0.2")) == ("10.0.0.2", PORT)


def test_an_address_loses_what_only_its_socket_understands() -> None:
    advertised = Advertised(Settings, gateway="10.0.0.1")
    assert advertised.of(session("::ffff:10.0.0.9", "::ffff:10.0.0.2")) == ("10.0.0.2", PORT)
    assert advertised.of(session("::ffff:10.0.0.1", "::ffff:10.0.0.2")) == ("localhost", PORT)
    assert advertised.of(session("fe80::1", "fe80::2%eth0")) == ("fe80::2", PORT)


def test_the_default_gateway_is_found_among_routes(tmp_path: Path) -> None:
    routes = tmp_path / "route"
    head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
    local = "eth0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\n"
    routes.write_text(head + local + "eth0\t00000000\t010011AC\t0003\t0\t0\t0\t00000000\n")
    little_endian = sys.byteorder == "little"
    assert default_gateway(routes) == ("172.17.0.1" if little_endian else "1.0.17.172")
    routes.write_text(head + local)
    assert default_gateway(routes) is None
    assert default_gateway(tmp_path / "none") is None
