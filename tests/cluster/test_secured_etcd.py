"""Brokers with an etcd that requires TLS, a client certificate and a user, with real processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from interop.warmlog_nodes import WarmlogNode
from tests.broker.cluster.certificates import Authority, Issued
from tests.broker.cluster.etcd_process import EtcdProcess, etcd
from tests.broker.cluster.etcd_users import PASSWORD, QUICK_HASHES, USER, Users
from tests.cluster.load import read_all

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]  # takes many seconds
LIMIT_S = 30.0
REFUSED = 2  # the exit status
PREFIX = "warmlog.cluster.etcd"


class Secured:
    """An etcd, its users, and the settings with which a broker is accepted."""

    def __init__(self, member: EtcdProcess, authority: Authority, directory: Path) -> None:
        self.member = member
        admin, client = authority.issue("admin"), authority.issue("client")
        self.users = Users(member, ("--cacert", authority.ca, "--cert", admin.certificate, "--key", admin.key))
        self.users.add()
        self.users.enable()
        self.password = directory / "password"
        self.password.write_text(PASSWORD)
        self.settings: dict[str, object] = {
            "warmlog.cluster.lease.ms": 2000,
            "warmlog.stop.timeout.ms": 1000,
            PREFIX: member.url,
            f"{PREFIX}.ca.file": authority.ca,
            f"{PREFIX}.certificate.file": client.certificate,
            f"{PREFIX}.key.file": client.key,
            f"{PREFIX}.user": USER,
            f"{PREFIX}.password.file": self.password,
        }


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates") / "authority")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    server = authority.issue("server")
    tls = ("--cert-file", server.certificate, "--key-file", server.key, "--trusted-ca-file", authority.ca)
    with etcd(directory / "etcd", options=(*QUICK_HASHES, *tls, "--client-cert-auth"), scheme="https") as (member,):
        yield Secured(member, authority, directory)


@contextmanager
def broker(directory: Path, settings: dict[str, object]) -> Iterator[WarmlogNode]:
    """Broker 1, not started yet; killed at the end."""
    cluster = {"warmlog.cluster.id": directory.name}
    node = WarmlogNode(1, directory, {name: value for name, value in (settings | cluster).items() if value is not None})
    try:
        yield node
    finally:
        node.kill()


def create_topic(node: WarmlogNode, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(LIMIT_S)


def produce(node: WarmlogNode, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap})
    producer.produce(topic, value)
    assert producer.flush(LIMIT_S) == 0


def values(node: WarmlogNode, topic: str) -> list[bytes | None]:
    (reads,) = read_all(node.bootstrap, topic, 1).values()
    return [read.value for read in reads]


def test_a_broker_serves_with_a_secured_etcd_and_survives_its_restart(secured: Secured, tmp_path: Path) -> None:
    with broker(tmp_path, secured.settings) as node:
        node.start()
        create_topic(node, "t")
        produce(node, "t", b"a")
        secured.member.kill()
        secured.member.start()
        create_topic(node, "later")
        produce(node, "later", b"b")
        assert node.stop() == 0
        node.start()
        assert (values(node, "t"), values(node, "later")) == ([b"a"], [b"b"])
        assert node.stop() == 0
        assert "Traceback" not in node.logged
        assert PASSWORD not in node.log.read_text()


def test_clients_see_the_settings_but_not_the_password(secured: Secured, tmp_path: Path) -> None:
    with broker(tmp_path, secured.settings) as node:
        node.start()
        resource = ConfigResource(ConfigResource.Type.BROKER, "1")
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        configs = admin.describe_configs([resource])[resource].result(LIMIT_S)
    assert configs[f"{PREFIX}.user"].value == USER
    assert configs[f"{PREFIX}.password.file"].value == str(secured.password)
    assert PASSWORD not in {config.value for config in configs.values()}


def test_a_running_broker_waits_until_its_password_is_corrected(secured: Secured, tmp_path: Path) -> None:
    with broker(tmp_path, secured.settings) as node:
        node.start()
        create_topic(node, "t")
        secured.users.change_password("battery-staple")
        try:
            node.wait_until_logged("invalid user ID or password (user broker)")
            produce(node, "t", b"a")
            secured.password.write_text("battery-staple")
            create_topic(node, "later")
            assert values(node, "t") == [b"a"]
        finally:
            secured.users.change_password(PASSWORD)
            secured.password.write_text(PASSWORD)
        assert node.stop() == 0


def test_a_running_broker_waits_until_its_certificate_is_renewed(
    secured: Secured, authority: Authority, tmp_path: Path
) -> None:
    used = {name: tmp_path / name for name in ("certificate", "key")}

    def install(issued: Issued) -> None:
        used["certificate"].write_bytes(issued.certificate.read_bytes())
        used["key"].write_bytes(issued.key.read_bytes())

    install(authority.issue("used"))
    files = {f"{PREFIX}.{name}.file": path for name, path in used.items()}
    with broker(tmp_path, secured.settings | files) as node:
        node.start()
        create_topic(node, "t")
        install(authority.issue("outdated", expired=True))
        secured.member.kill()
        secured.member.start()
        node.wait_until_logged("it refuses the TLS connection: ")
        produce(node, "t", b"a")
        install(authority.issue("renewed"))
        create_topic(node, "later")
        assert values(node, "t") == [b"a"]
        assert node.stop() == 0


def test_a_start_whose_user_may_only_read_ends_with_one_line(secured: Secured, tmp_path: Path) -> None:
    with broker(tmp_path, secured.settings) as node:
        node.start()
        assert node.stop() == 0
        secured.users.grant("read")
        try:
            node.begin()
            assert node.wait_until_ended() == REFUSED
        finally:
            secured.users.grant("readwrite")
        last = node.logged.splitlines()[-1]
        assert last.startswith(f"warmlog: {secured.member.url}: etcdserver: permission denied (user {USER}): ")
        assert "Traceback" not in node.logged


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"password.file": "{wrong}"}, "{url}: etcdserver: authentication failed, invalid user ID or password"),
        ({"password.file": "{missing}"}, f"{PREFIX}.password.file: {{missing}}: No such file or directory"),
        ({"user": None, "password.file": None}, f"{{url}}: etcdserver: user name is empty: set {PREFIX}.user"),
        ({"user": "nobody"}, "{url}: etcdserver: authentication failed, invalid user ID or password (user nobody)"),
        ({"password.file": None}, f"{PREFIX}.user: needs {PREFIX}.password.file as well"),
        ({"ca.file": None}, "{url}: its certificate is not valid: "),
        ({"ca.file": "{other}.pem"}, "{url}: its certificate is not valid: "),
        ({"certificate.file": None, "key.file": None}, "{url}: it refuses the TLS connection: "),
        ({"certificate.file": "{expired}.pem", "key.file": "{expired}.key"}, "{url}: it refuses the TLS connection: "),
        ({"certificate.file": "{named}.pem", "key.file": "{named}.key"}, "{url}: it refuses certificates with a comm"),
        ({"key.file": None}, f"{PREFIX}.certificate.file: needs {PREFIX}.key.file as well"),
        ({"key.file": "{other}.key"}, f"{PREFIX}.key.file: {{other}}.key does not belong to "),
        ({"": "http://a"}, f"{PREFIX}.ca.file: needs https:// endpoints in {PREFIX}"),
        ({"": "https://a,http://b"}, f"{PREFIX}: write https:// for all endpoints or for none: "),
    ],
)
def test_a_start_that_cannot_succeed_ends_with_one_line(
    changed: dict[str, str | None], line: str, secured: Secured, authority: Authority, tmp_path: Path
) -> None:
    (tmp_path / "wrong").write_text("wrong-horse")
    paths = {
        "url": secured.member.url,
        "wrong": tmp_path / "wrong",
        "missing": tmp_path / "missing",
        "other": authority.issue("other").key.with_suffix(""),
        "expired": authority.issue("expired", expired=True).key.with_suffix(""),
        "named": authority.issue("named", subject=f"/CN={USER}").key.with_suffix(""),
    }
    replaced = {
        f"{PREFIX}.{name}" if name else PREFIX: value and value.format_map(paths) for name, value in changed.items()
    }
    with broker(tmp_path, secured.settings | replaced) as node:
        node.begin()
        assert node.wait_until_ended() == REFUSED
        assert node.logged.splitlines()[-1].startswith(f"warmlog: {line.format_map(paths)}")
        assert "Traceback" not in node.logged
        assert "-horse" not in node.logged
