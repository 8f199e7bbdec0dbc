"""The addresses on which all nodes accept: clients bootstrap there while any node lives."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from interop.ports import free_ports
from tests.clients.waiting import until, until_ended
from tests.warmlog.cli.nodes.running import LIMIT_S, RECORDS, Running, consumed, nodes, produce, refused
from warmlog import Client

NODE_IDS = (1, 2, 3)
REPLICATED = ("--set", "default.replication.factor=3")


def brokers_at(bootstrap: str) -> dict[int, str]:
    """Return the addresses of the brokers that a new client is told."""
    found = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=LIMIT_S).brokers
    return {number: f"{broker.host}:{broker.port}" for number, broker in found.items()}


def kcat_brokers_at(bootstrap: str) -> set[str]:
    """Return the addresses that kcat is told."""
    command = ["kcat", "-b", bootstrap, "-L", "-J", "-m", str(LIMIT_S)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    return {broker["name"] for broker in json.loads(listed.stdout)["brokers"]}


def kill(running: Running, number: int) -> None:
    pid = running.node(number)
    os.kill(pid, signal.SIGKILL)
    until_ended(pid, limit_s=LIMIT_S)


def stand_still(running: Running, number: int) -> None:
    os.kill(running.node(number), signal.SIGSTOP)


@pytest.mark.interop  # takes many seconds
@pytest.mark.parametrize("harm", [kill, stand_still])
def test_clients_bootstrap_at_one_address_while_each_node_in_turn_is_dead(
    tmp_path: Path, harm: Callable[[Running, int], None]
) -> None:
    with nodes(tmp_path / "data", 3, *REPLICATED) as running:
        address, own = running.shared["kafka"], dict(zip(NODE_IDS, running.kafka, strict=True))
        assert brokers_at(address) == own
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic("t", 3, 3)])["t"].result(LIMIT_S)
        for count, number in enumerate(NODE_IDS):
            harm(running, number)
            known = brokers_at(address)
            assert known.items() <= own.items()
            assert kcat_brokers_at(address) <= set(own.values())
            produce(address, "t", count * RECORDS)
            assert consumed(address, "t", (count + 1) * RECORDS) == list(range((count + 1) * RECORDS))
            with Client(running.shared["native"]) as client:
                records = client.consume("t", start="beginning", until_end=True)
                assert sum(1 for _ in records) == (count + 1) * RECORDS
            if harm is stand_still:
                os.kill(running.node(number), signal.SIGCONT)
            until(lambda: brokers_at(address) == own, lambda: None, "the node", limit_s=LIMIT_S)
        assert running.stop() == 0


def test_a_client_that_comes_while_all_nodes_are_dead_is_served_by_the_first_that_returns(tmp_path: Path) -> None:
    with nodes(tmp_path / "data", 2) as running:
        pids = [running.node(number) for number in (1, 2)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        until_ended(*pids, limit_s=LIMIT_S)
        host, port = running.shared["kafka"].split(":")
        with socket.create_connection((host, int(port))) as sock:  # ApiVersions 0, correlation id 7, no client id
            sock.settimeout(LIMIT_S)
            sock.sendall(bytes.fromhex("0000000a 0012 0000 00000007 ffff"))
            assert sock.recv(8)[4:] == bytes.fromhex("00000007")
        assert running.stop() == 0


def test_every_node_serves_clients_at_the_shared_address(tmp_path: Path) -> None:
    with nodes(tmp_path / "data", 2) as running:
        for other in (1, 2):
            stand_still(running, other)
            assert brokers_at(running.shared["kafka"])
            with Client(running.shared["native"]) as client:
                assert client.list_topics() == ()
            os.kill(running.node(other), signal.SIGCONT)
        assert running.stop() == 0


def test_a_second_cluster_at_the_same_address_is_refused_before_it_writes_anything(tmp_path: Path) -> None:
    first = free_ports(21)[0]
    addresses = ("--kafka", f"127.0.0.1:{first}", "--native", "none", "--http", "none")
    with nodes(tmp_path / "data", 2, addresses=addresses) as running:
        errors = refused(tmp_path / "other", "--nodes", "2", *addresses)
        assert f"kafka listener: cannot listen on 127.0.0.1:{first}: Address already in use" in errors
        assert not (tmp_path / "other").exists()
        assert running.stop() == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("kafka", "expected LISTENER=DESCRIPTOR"),
        ("kafka=1", "kafka listener: descriptor 1 is not a listening socket of the parent process"),
        ("kafka=999", "kafka listener: descriptor 999 is not a listening socket of the parent process"),
        ("kfka=3", "--shared: there is no listener kfka"),
    ],
)
def test_what_is_not_inherited_is_named(tmp_path: Path, given: str, message: str) -> None:
    errors = refused(tmp_path / "data", "--shared", given)
    assert message in errors
    assert "Traceback" not in errors


def test_a_connected_socket_is_not_taken_for_a_listening_one(tmp_path: Path) -> None:
    ours, other = socket.socketpair()
    with ours, other:
        shared, inherited = f"kafka={ours.fileno()}", (ours.fileno(),)
        errors = refused(tmp_path / "data", "--shared", shared, descriptors=inherited)
    assert "is not a listening socket of the parent process" in errors
    assert "Traceback" not in errors
