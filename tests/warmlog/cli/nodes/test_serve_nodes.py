"""`warmlog serve --nodes`: real processes, used by Kafka's and warmlog's clients, killed and stopped."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from trio.testing import wait_all_tasks_blocked

from interop.ports import free_ports
from tests.broker.cluster.certificates import Authority
from tests.clients.waiting import until, until_ended
from tests.interop.storage.mirroring import Served
from tests.warmlog.cli.nodes.running import FREE, LIMIT_S, RECORDS, Running, consumed, nodes, produce, refused
from warmlog import Client
from warmlog.broker.cluster.local import STORE
from warmlog.broker.settings.settings import Settings
from warmlog.cli.nodes.node import Node
from warmlog.cli.nodes.plan import NODES, Plan
from warmlog.cli.nodes.shared_listeners import SharedListeners
from warmlog.cli.root import root


@pytest.mark.interop  # takes many seconds
def test_nodes_are_one_cluster_that_survives_a_kill_and_a_restart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with nodes(data, 3) as running:
        assert len(set(running.kafka)) == 3
        assert running.lines[0].startswith("power cut: ")
        assert running.shared.keys() == {"kafka", "native", "http"}
        assert running.shared["kafka"] not in running.kafka
        admin = AdminClient({"bootstrap.servers": running.kafka[1]})
        admin.create_topics([NewTopic("t", 6, 3)])["t"].result(LIMIT_S)
        produce(running.kafka[2], "t", 0)
        killed = running.node(2)
        os.kill(killed, signal.SIGKILL)
        produce(running.kafka[0], "t", RECORDS)
        assert consumed(running.kafka[2], "t", 2 * RECORDS) == list(range(2 * RECORDS))
        while set(admin.list_topics(timeout=LIMIT_S).brokers) != {1, 2, 3}:
            pass  # the killed node comes back
        assert running.node(2) != killed
        assert running.stop() == 0
    assert "node 2: was ended by SIGKILL; restarting it in" in running.log.read_text()
    with nodes(data, 4) as running:  # a node more
        assert consumed(running.kafka[1], "t", 2 * RECORDS) == list(range(2 * RECORDS))
        assert running.stop() == 0


@pytest.mark.interop  # takes many seconds
def test_nodes_mirror_another_broker_and_are_promoted(tmp_path: Path) -> None:
    with Served(tmp_path / "source", "serve") as source:
        admin = AdminClient({"bootstrap.servers": source.kafka})
        admin.create_topics([NewTopic("t", 6, 1)])["t"].result(LIMIT_S)
        produce(source.kafka, "t", 0)
        settings = {"warmlog.mirror.from": source.kafka, "warmlog.mirror.interval.ms": 200}
        settings["default.replication.factor"] = 3
        options = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        with nodes(tmp_path / "data", 3, *options) as running, Client(running.native[2]) as client:

            def lags() -> list[int]:
                topics = client.describe_mirror().topics
                return [partition.lag_records for topic in topics for partition in topic.partitions]

            until(lambda: lags() == [0] * 6, lambda: None, "the copies", limit_s=LIMIT_S)
            os.kill(running.node(2), signal.SIGKILL)
            produce(source.kafka, "t", RECORDS)
            assert consumed(running.kafka[0], "t", 2 * RECORDS) == list(range(2 * RECORDS))
            until(lambda: has_all_nodes(running), lambda: None, "the killed node", limit_s=LIMIT_S)
            until(lambda: lags() == [0] * 6, lambda: None, "the copies", limit_s=LIMIT_S)
            assert sum(client.promote_topic("t").values()) == 2 * RECORDS
            produce(running.kafka[0], "t", 2 * RECORDS)
            assert consumed(running.kafka[2], "t", 3 * RECORDS) == list(range(3 * RECORDS))
            assert running.stop() == 0


def has_all_nodes(running: Running) -> bool:
    return set(AdminClient({"bootstrap.servers": running.kafka[0]}).list_topics(timeout=LIMIT_S).brokers) == {1, 2, 3}


def test_only_the_user_of_the_nodes_reaches_their_store(tmp_path: Path) -> None:
    with nodes(tmp_path / "data", 2) as running:
        command = Path(f"/proc/{running.node(1)}/cmdline").read_text()
        found = re.search(r"warmlog\.cluster\.etcd=unix://([^\0]+)", command)
        assert found is not None
        path = Path(found[1])
        assert [stat.filemode(each.stat().st_mode) for each in (path, path.parent)] == ["srw-------", "drwx------"]
        assert running.stop() == 0
        assert not path.parent.exists()


@pytest.mark.interop  # takes many seconds
def test_nodes_stop_when_their_parent_is_killed(tmp_path: Path) -> None:
    with nodes(tmp_path / "data", 2) as running:
        children = [running.node(number) for number in (1, 2)]
        running.process.kill()
        until_ended(*children, limit_s=LIMIT_S)


def test_a_stop_after_a_kill_leaves_no_node_behind(tmp_path: Path) -> None:
    with nodes(tmp_path / "data", 2) as running:
        killed = running.node(2)
        os.kill(killed, signal.SIGKILL)
        until_ended(killed, limit_s=LIMIT_S)  # its next start is due
        assert running.stop() == 0
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path) in read(path)]


def test_a_stop_while_nodes_start_is_clean(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "warmlog", "serve", "--nodes", "2", "--data-dir", str(tmp_path / "data"), *FREE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "data" / NODES).exists() and process.poll() is None:
            pass
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert "Traceback" not in errors


def test_lines_of_the_log_name_the_node(tmp_path: Path) -> None:
    with nodes(tmp_path / "data", 2, "--log-json") as running:
        running.stop()
    written = [json.loads(line) for line in running.log.read_text().splitlines()]
    assert {line["node"] for line in written} == {1, 2}


def test_ports_count_up_from_those_of_all_nodes(tmp_path: Path) -> None:
    first = free_ports(21)[0]
    addresses = ("--kafka", f"127.0.0.1:{first}", "--native", "none", "--http", "none")
    advertised = ("--set", f"advertised.listeners=kafka://localhost:{first}")
    with nodes(tmp_path / "data", 2, *advertised, "--set", "node.id=7", addresses=addresses) as running:
        assert running.lines[1:3] == [
            f"node 7 kafka=127.0.0.1:{first + 10} native=none http=none\n",
            f"node 8 kafka=127.0.0.1:{first + 20} native=none http=none\n",
        ]
        assert running.lines[3] == f"ready kafka=127.0.0.1:{first} native=none http=none\n"
        brokers = AdminClient({"bootstrap.servers": running.kafka[0]}).list_topics(timeout=LIMIT_S).brokers
        found = {number: f"{broker.host}:{broker.port}" for number, broker in brokers.items()}
        assert found == {7: f"localhost:{first + 10}", 8: f"localhost:{first + 20}"}


def test_nodes_have_all_named_listeners_and_fetch_over_the_one_for_brokers(tmp_path: Path) -> None:
    first = free_ports(21)[0]
    options = [
        f"listeners=OUTSIDE://127.0.0.1:{first},INTERNAL://127.0.0.1:0,NATIVE://127.0.0.1:0",
        "listener.security.protocol.map=OUTSIDE:PLAINTEXT,INTERNAL:PLAINTEXT",
        f"advertised.listeners=OUTSIDE://localhost:{first}",
        "inter.broker.listener.name=INTERNAL",
    ]
    assigned = [word for option in options for word in ("--set", option)]
    with nodes(tmp_path / "data", 2, *assigned, addresses=("--http", "none")) as running:
        lines = [dict(word.split("=") for word in line.split() if "=" in word) for line in running.lines[1:3]]
        inside = [line["internal"] for line in lines]
        admin = AdminClient({"bootstrap.servers": inside[0]})
        brokers = admin.list_topics(timeout=LIMIT_S).brokers.values()
        assert sorted(f"{broker.host}:{broker.port}" for broker in brokers) == sorted(inside)
        brokers = AdminClient({"bootstrap.servers": lines[1]["outside"]}).list_topics(timeout=LIMIT_S).brokers.values()
        assert sorted(broker.port for broker in brokers) == [first + 10, first + 20]
        assert {broker.host for broker in brokers} == {"localhost"}
        assert running.shared["outside"] == running.shared["kafka"] == f"127.0.0.1:{first}"
        admin = AdminClient({"bootstrap.servers": running.shared["internal"]})
        brokers = admin.list_topics(timeout=LIMIT_S).brokers.values()
        assert sorted(f"{broker.host}:{broker.port}" for broker in brokers) == sorted(inside)
        admin.create_topics([NewTopic("t", 2, 2, config={"min.insync.replicas": "2"})])["t"].result(LIMIT_S)
        produce(inside[0], "t", 0)
        assert running.stop() == 0


@pytest.mark.interop  # takes many seconds
def test_nodes_fetch_from_each_other_by_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    issued, store = authority.issue("nodes"), tmp_path / "store.pem"
    store.write_text(issued.key.read_text() + issued.certificate.read_text())
    options = [
        "listeners=SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "inter.broker.listener.name=SSL",
        f"ssl.keystore.location={store}",
        f"ssl.truststore.location={authority.ca}",
        "ssl.client.auth=required",
    ]
    assigned = [word for option in options for word in ("--set", option)]
    with nodes(tmp_path / "data", 3, *assigned, addresses=("--http", "none")) as running:
        lines = [dict(word.split("=") for word in line.split() if "=" in word) for line in running.lines[1:4]]
        plain = lines[0]["plaintext"]
        admin = AdminClient({"bootstrap.servers": plain})
        admin.create_topics([NewTopic("t", 3, 3, config={"min.insync.replicas": "3"})])["t"].result(LIMIT_S)
        produce(plain, "t", 0)
        assert consumed(plain, "t", RECORDS) == list(range(RECORDS))
        keys = {"ssl.key.location": str(issued.key), "ssl.certificate.location": str(issued.certificate)}
        own = {"security.protocol": "SSL", "ssl.ca.location": str(authority.ca), **keys}
        brokers = AdminClient({"bootstrap.servers": running.shared["ssl"], **own}).list_topics(timeout=LIMIT_S).brokers
        assert {f"{broker.host}:{broker.port}" for broker in brokers.values()} == {line["ssl"] for line in lines}
        assert running.stop() == 0
    assert "refused: TLS" not in running.log.read_text()


@pytest.mark.interop  # takes many seconds
def test_nodes_log_in_to_each_other(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("s3cret\n")
    password.chmod(0o600)
    created = CliRunner().invoke(
        root,
        [
            "user",
            "create",
            "broker",
            "--new-password-file",
            str(password),
            "--data-dir",
            str(tmp_path / "data" / NODES / "1"),
            "--cluster-id",
            Settings().warmlog_cluster_id,
        ],
    )
    assert created.exit_code == 0, created.output
    options = [
        "listeners=SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "inter.broker.listener.name=SASL_PLAINTEXT",
        "warmlog.inter.broker.user=broker",
        f"warmlog.inter.broker.password.file={password}",
    ]
    assigned = [word for option in options for word in ("--set", option)]
    with nodes(tmp_path / "data", 3, *assigned, addresses=("--http", "none")) as running:
        lines = [dict(word.split("=") for word in line.split() if "=" in word) for line in running.lines[1:4]]
        plain = lines[0]["plaintext"]
        admin = AdminClient({"bootstrap.servers": plain})
        admin.create_topics([NewTopic("t", 3, 3, config={"min.insync.replicas": "3"})])["t"].result(LIMIT_S)
        produce(plain, "t", 0)
        assert consumed(plain, "t", RECORDS) == list(range(RECORDS))
        for line in lines:  # each node knows the user
            login = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "broker", "sasl.password": "s3cret"}
            address = {"bootstrap.servers": line["sasl_plaintext"], "security.protocol": "SASL_PLAINTEXT"}
            assert AdminClient({**address, **login}).list_topics(timeout=LIMIT_S).brokers
        assert running.stop() == 0
    assert "s3cret" not in running.log.read_text()


@pytest.mark.interop  # takes many seconds
def test_nodes_are_secured(tmp_path: Path) -> None:
    secrets = tmp_path / "data-secrets"
    addresses = ("--kafka", "127.0.0.1:0", "--native", "127.0.0.1:0", "--http", "none")
    for start in range(2):
        with nodes(tmp_path / "data", 3, "--secure", addresses=addresses) as running:
            found = [dict(word.split("=") for word in line.split() if "=" in word) for line in running.lines]
            lines = [line for line in found if "kafka" in line]
            password = (secrets / "admin.password").read_text().strip()
            login = {
                "security.protocol": "SASL_SSL", "ssl.ca.location": str(secrets / "ca.pem"),
                "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "admin", "sasl.password": password,
            }  # fmt: skip
            assert lines[-1]["kafka"] == running.shared["kafka"]
            for line in lines:
                client = AdminClient({"bootstrap.servers": line["kafka"], **login})
                brokers = client.list_topics(timeout=LIMIT_S).brokers.values()
                assert sorted(f"{broker.host}:{broker.port}" for broker in brokers) == sorted(running.kafka)
            if start == 0:
                topic = NewTopic("t", 3, 3, config={"min.insync.replicas": "3"})
                client.create_topics([topic])["t"].result(LIMIT_S)
            producer = Producer({"bootstrap.servers": lines[0]["kafka"], "acks": "all", **login})
            for number in range(100):
                producer.produce("t", str(number))
            assert producer.flush(LIMIT_S) == 0
            with pytest.raises(KafkaException):
                AdminClient({"bootstrap.servers": lines[0]["kafka"], "log_level": 0}).list_topics(timeout=2)
            assert running.stop() == 0
    names = {path.name for path in secrets.iterdir()}
    assert {"audit-1.jsonl", "audit-2.jsonl", "audit-3.jsonl", "broker.password"} <= names
    assert (secrets / "broker.password").read_text().strip() not in running.log.read_text()


@pytest.mark.interop  # takes many seconds
def test_passwords_of_secured_nodes_change_between_two_starts(tmp_path: Path) -> None:
    secrets = tmp_path / "data-secrets"
    addresses = ("--kafka", "127.0.0.1:0", "--native", "127.0.0.1:0", "--http", "none")

    def log_in(address: str, user: str, password: str) -> AdminClient:
        client = AdminClient({
            "bootstrap.servers": address, "security.protocol": "SASL_SSL", "ssl.ca.location": str(secrets / "ca.pem"),
            "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": user, "sasl.password": password, "log_level": 0,
        })  # fmt: skip
        assert len(client.list_topics(timeout=LIMIT_S).brokers) == 2
        return client

    def secured_addresses(running: Running) -> list[str]:
        words = [dict(word.split("=") for word in line.split() if "=" in word) for line in running.lines]
        return [found["kafka"] for found in words[:-1] if "kafka" in found]

    def acknowledged(error: KafkaError | None, _: Message) -> None:
        assert error is None

    with nodes(tmp_path / "data", 2, "--secure", addresses=addresses) as running:
        assert running.stop() == 0
    old = {user: (secrets / f"{user}.password").read_text().strip() for user in ("admin", "broker")}
    for user in old:
        (secrets / f"{user}.password").write_text(f"another-{user}\n")
    (secrets / "admin.properties").unlink()
    for start in range(2):
        with nodes(tmp_path / "data", 2, "--secure", addresses=addresses) as running:
            found = secured_addresses(running)
            assert len(found) == 2
            for address in found:
                admin = log_in(address, "admin", "another-admin")
                log_in(address, "broker", "another-broker")
                errors: list[KafkaError] = []
                refused = AdminClient({
                    "bootstrap.servers": address, "security.protocol": "SASL_SSL", "log_level": 0,
                    "ssl.ca.location": str(secrets / "ca.pem"), "sasl.mechanism": "SCRAM-SHA-512",
                    "sasl.username": "admin", "sasl.password": old["admin"], "error_cb": errors.append,
                })  # fmt: skip
                while not errors:
                    refused.poll(LIMIT_S)
                assert errors[0].code() == KafkaError._AUTHENTICATION
            # all replicas are needed: the nodes log in to each other
            topic = NewTopic(f"t{start}", 2, 2, config={"min.insync.replicas": "2"})
            admin.create_topics([topic])[topic.topic].result(LIMIT_S)
            producer = Producer({
                "bootstrap.servers": found[0], "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512",
                "ssl.ca.location": str(secrets / "ca.pem"), "sasl.username": "admin", "acks": "all",
                "sasl.password": "another-admin",
            })  # fmt: skip
            producer.produce(topic.topic, b"a", on_delivery=acknowledged)
            assert producer.flush(LIMIT_S) == 0
            assert running.stop() == 0


@pytest.mark.interop  # takes many seconds
def test_a_user_is_created_in_the_store_of_nodes_that_do_not_run(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("builder\n")
    password.chmod(0o600)
    create = ["user", "create", "bob", "--new-password-file", str(password), "--data-dir", str(tmp_path / "data")]
    with nodes(tmp_path / "data", 2) as running:
        in_use = CliRunner().invoke(root, create)
        assert (in_use.exit_code, "is another process using it?" in in_use.output) == (1, True)
        assert running.stop() == 0
    assert CliRunner().invoke(root, create).exit_code == 0
    before = running.log.read_text()
    assert "every client may do everything" not in before
    with nodes(tmp_path / "data", 2) as running:
        listed = CliRunner().invoke(root, ["user", "list", "--kafka", running.kafka[1]])
        assert listed.output.splitlines()[1].split() == ["bob", "SCRAM-SHA-256", "SCRAM-SHA-512"]
        assert running.stop() == 0
    assert running.log.read_text().count("every client may do everything") == 2


@pytest.mark.interop  # takes many seconds
def test_secured_nodes_are_served_open_only_if_that_is_meant(tmp_path: Path) -> None:
    addresses = ("--kafka", "127.0.0.1:0", "--native", "127.0.0.1:0", "--http", "none")
    elsewhere = ("--secrets-dir", str(tmp_path / "elsewhere"))
    with nodes(tmp_path / "data", 2, "--secure", *elsewhere, addresses=addresses) as running:
        assert running.stop() == 0
    with nodes(tmp_path / "data", 2) as running:
        assert running.process.wait(LIMIT_S) == 2
    assert "brokers of this cluster check rights, and this one would not: " in running.log.read_text()
    with nodes(tmp_path / "data", 2, "--set", "warmlog.cluster.mixed.security=true") as running:
        assert running.stop() == 0
    assert running.log.read_text().count("every client may do everything") == 2


def test_default_ports_of_nodes_do_not_collide(tmp_path: Path) -> None:
    settings = Settings(log_dirs=str(tmp_path))
    addresses = {"kafka": "127.0.0.1:9092", "native": "127.0.0.1:9091", "http": "127.0.0.1:9099"}
    plan = Plan(settings=settings, count=64, addresses=addresses, options=(), logs_json=False)
    given = [address for number in range(64) for address in plan.addresses_of(number).values()]
    given += [addresses["kafka"], addresses["native"]]
    assert len(set(given)) == len(given)


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the process has ended
        return ""


async def test_a_process_that_is_being_created_while_its_node_stops_ends_before_the_supervisor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    created: list[trio.Process] = []
    may_create, open_process = trio.Event(), trio.lowlevel.open_process

    async def slow(_: object, **options: Any) -> trio.Process:
        await may_create.wait()
        created.append(await open_process(["sleep", "60"], **options))
        return created[0]

    monkeypatch.setattr(trio.lowlevel, "open_process", slow)
    monkeypatch.setattr(Plan, "command", lambda *_: [])
    plan = Plan(settings=Settings(), count=1, addresses={}, options=(), logs_json=False)
    shared = SharedListeners(sockets={}, kafka="none", native="none", is_named=False)
    node = Node(plan, 0, "", shared, {})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.run, lambda: None)
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as stopping:
            stopping.start_soon(node.stop, LIMIT_S)
            await wait_all_tasks_blocked()
            may_create.set()
        assert [process.poll() for process in created] == [-signal.SIGTERM]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "warmlog.cluster.etcd=http://127.0.0.1:1", "--set", "node.id=2"], "one by one, without --nodes"),
        (["--kafka", "none"], "need a Kafka listener"),
        (["--native", "127.0.0.1:65535"], "at most 65535, and 65545 is not"),
        (["--kafka", "0.0.0.0:0"], "set advertised.listeners=kafka://HOST:PORT"),
        (["--set", "log.segment.bites=1"], "log.segment.bytes"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, options: Sequence[str], message: str) -> None:
    assert message in refused(tmp_path, "--nodes", "2", *options)


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    first = free_ports(21)[0]
    with socket.create_server(("127.0.0.1", first)):
        errors = refused(tmp_path, "--nodes", "2", "--kafka", f"127.0.0.1:{first}")
    assert f"kafka listener: cannot listen on 127.0.0.1:{first}: Address already in use" in errors
    assert "node 1" not in errors
    with socket.create_server(("127.0.0.1", first + 20)):
        errors = refused(tmp_path, "--nodes", "2", "--kafka", f"127.0.0.1:{first}")
    assert f"kafka listener: cannot listen on 127.0.0.1:{first + 20}: Address already in use" in errors
    assert "node 2 did not start: it ended with status 2" in errors


def test_directories_are_not_mixed_up(tmp_path: Path) -> None:
    alone, several = tmp_path / "alone", tmp_path / "several"
    for path in (alone, several / NODES / "3"):
        path.mkdir(parents=True)
    (alone / "meta.properties").touch()
    assert "has the data of a standalone broker" in refused(alone, "--nodes", "2")
    assert "has node 3, which would not run" in refused(several, "--nodes", "2")
    (several / STORE).touch()
    assert "serve it with --nodes" in refused(several)
