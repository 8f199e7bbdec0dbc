"""`warmlog serve --secure` on etcd: brokers that share their secrets."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from interop.ports import free_ports
from tests.broker.cluster.etcd_process import etcd
from tests.warmlog.cli.test_tls import run

LIMIT_S = 60


class Served:
    """A running broker, its address for Kafka's clients, and its log."""

    def __init__(self, process: subprocess.Popen[str], kafka: str, log: Path) -> None:
        self.process = process
        self.kafka = kafka
        self.log = log


@contextmanager
def served(directory: Path, number: int, etcd_url: str, kafka: str) -> Iterator[Served]:
    """Run a broker with its own copy of the secrets."""
    settings = {
        "warmlog.cluster.etcd": etcd_url,
        "warmlog.cluster.id": directory.name,
        "node.id": number,
        "default.replication.factor": 3,
        "min.insync.replicas": 3,
        "warmlog.audit.topic": "true",
    }
    command = [sys.executable, "-m", "warmlog", "serve", "--secure", "--secrets-dir", f"secrets-{number}",
               "--data-dir", f"data-{number}", "--kafka", kafka, "--native", "127.0.0.1:0", "--http", "none",
               *(f"--set={name}={value}" for name, value in settings.items())]  # fmt: skip
    log = directory / f"{number}.log"
    with (
        log.open("a") as err,
        subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, stderr=err, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            assert any(line.startswith("ready ") for line in process.stdout), log.read_text()
            yield Served(process, kafka, log)
        finally:
            process.terminate()
            process.wait(LIMIT_S)


@pytest.mark.interop  # takes many seconds
def test_brokers_with_copies_of_the_secrets_form_a_cluster(tmp_path: Path) -> None:
    shared = tmp_path / "secrets"
    for _ in range(2):
        assert run("cluster", "secrets", shared)[0] == 0
    password = (shared / "admin.password").read_text().strip()
    login = {
        "security.protocol": "SASL_SSL", "ssl.ca.location": str(shared / "ca.pem"), "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "admin", "sasl.password": password, "log_level": 0,
    }  # fmt: skip
    for number in (1, 2, 3):
        shutil.copytree(shared, tmp_path / f"secrets-{number}")
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    bootstrap = {"bootstrap.servers": ",".join(addresses), **login}
    with etcd(tmp_path / "etcd") as (member,), ExitStack() as stack:
        brokers = [
            stack.enter_context(served(tmp_path, number, member.url, kafka))
            for number, kafka in enumerate(addresses, 1)
        ]
        admin = AdminClient(bootstrap)
        admin.create_topics([NewTopic("t", 3, 3)])["t"].result(LIMIT_S)
        produce(bootstrap)
        with pytest.raises(KafkaException):
            AdminClient({"bootstrap.servers": addresses[0], "log_level": 0}).list_topics(timeout=2)

        # a machine is replaced: its data are gone, its secrets are another copy of the same
        brokers[2].process.kill()
        brokers[2].process.wait(LIMIT_S)
        shutil.rmtree(tmp_path / "data-3")
        with served(tmp_path, 3, member.url, addresses[2]) as again:
            produce(bootstrap)
            assert AdminClient({**bootstrap, "bootstrap.servers": again.kafka}).list_topics(timeout=LIMIT_S).topics
            assert password not in again.log.read_text()
            assert "does not fit" not in again.log.read_text()
            expect_recorded(bootstrap, {(3, "User:admin"), *((number, "User:broker") for number in (1, 2, 3))})

        # a broker that forgets --secure is refused, until it says that it is meant so; then the others warn
        forgetful = [
            "serve", "--data-dir", tmp_path / "data-4", "--kafka", "127.0.0.1:0", "--native", "none", "--http", "none",
            "--set", f"warmlog.cluster.etcd={member.url}", "--set", f"warmlog.cluster.id={tmp_path.name}",
            "--set", "node.id=4",
        ]  # fmt: skip
        status, printed = run(*forgetful)
        assert status == 2
        assert "brokers of this cluster check rights, and this one would not: 1, 2, 3" in printed
        meant = [sys.executable, "-m", "warmlog", *map(str, forgetful), "--set", "warmlog.cluster.mixed.security=true"]
        with subprocess.Popen(
            meant, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as open_:
            assert open_.stdout is not None
            assert any(line.startswith("ready ") for line in open_.stdout)
            brokers[0].process.terminate()
            brokers[0].process.wait(LIMIT_S)
            with served(tmp_path, 1, member.url, addresses[0]) as first:
                assert "brokers without an authorizer: 4" in first.log.read_text()
            open_.terminate()
    assert (tmp_path / "data-1" / "audit.jsonl").stat().st_size
    assert {path.name for path in (tmp_path / "secrets-2").iterdir()} == {
        "admin.password", "admin.properties", "broker-2.pem", "broker.password", "ca-key.pem", "ca.pem",
    }  # fmt: skip


def expect_recorded(bootstrap: dict[str, str], expected: set[tuple[int, str]]) -> None:
    """Read the audit log's topic until these brokers have recorded these users."""
    consumer = Consumer({**bootstrap, "group.id": "audit", "enable.auto.commit": False})
    consumer.assign([TopicPartition("__warmlog_audit", index, 0) for index in range(3)])
    missing = set(expected)
    while missing:
        message = consumer.poll(LIMIT_S)
        assert message is not None, missing
        if message.error() is None:
            event = json.loads(message.value())
            missing.discard((event["unmapped"]["broker"], event["actor"]["user"]["name"]))
    consumer.close()


@pytest.mark.interop  # takes many seconds
def test_a_broker_with_another_password_of_the_cluster_is_refused(tmp_path: Path) -> None:
    for name in ("secrets-1", "other"):
        assert run("cluster", "secrets", tmp_path / name)[0] == 0
    shutil.copytree(tmp_path / "secrets-1", tmp_path / "secrets-2")
    password = tmp_path / "secrets-2" / "broker.password"
    password.write_text("wrong\n")
    (kafka,) = free_ports(1)
    with etcd(tmp_path / "etcd") as (member,), served(tmp_path, 1, member.url, f"127.0.0.1:{kafka}"):

        def refused(number: int, secrets: str) -> str:
            status, printed = run(
                "serve", "--secure", "--secrets-dir", tmp_path / secrets, "--data-dir", tmp_path / f"data-{number}",
                "--kafka", "127.0.0.1:0", "--native", "none", "--http", "none",
                "--set", f"warmlog.cluster.etcd={member.url}", "--set", f"warmlog.cluster.id={tmp_path.name}",
                "--set", f"node.id={number}",
            )  # fmt: skip
            assert status == 2
            return printed.splitlines()[-1]

        reason = "does not have the password that user broker has in this cluster: copy the file from another broker"
        assert f"{password} {reason}" in refused(2, "secrets-2")
        assert reason in refused(3, "other")
        shutil.copy(tmp_path / "secrets-1" / "broker.password", password)
        with served(tmp_path, 2, member.url, "127.0.0.1:0"):
            pass


def produce(bootstrap: dict[str, str]) -> None:
    """Write records that all three brokers have to acknowledge."""
    producer = Producer({**bootstrap, "acks": "all"})
    for number in range(30):
        producer.produce("t", str(number))
    assert producer.flush(LIMIT_S) == 0


def test_one_certificate_may_be_for_all_brokers(tmp_path: Path) -> None:
    shared = tmp_path / "secrets"
    assert run("cluster", "secrets", shared, "--host", "*.brokers.example.org", "--host", "127.0.0.1")[0] == 0
    shown = subprocess.run(
        ["openssl", "x509", "-in", shared / "broker.pem", "-noout", "-ext", "subjectAltName"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "DNS:*.brokers.example.org" in shown
    assert "IP Address:127.0.0.1" in shown


def test_a_broker_without_the_secrets_says_how_to_make_them(tmp_path: Path) -> None:
    status, printed = run(
        "serve", "--secure", "--data-dir", tmp_path / "data", "--set", "warmlog.cluster.etcd=http://127.0.0.1:1",
        "--set", "node.id=1",
    )  # fmt: skip
    assert status == 2
    assert "has no ca.pem: the brokers of a cluster share their secrets" in printed
    assert f"`warmlog cluster secrets {tmp_path}" in printed
