"""`warmlog serve --secure`, as a process: what a first start makes, and who gets in."""

import os
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.warmlog.cli.test_tls import run
from warmlog.broker.settings.loading import load_settings
from warmlog.cli.failure import CannotStart
from warmlog.cli.security.certificates import is_issued, make
from warmlog.cli.security.secure import Secured, secure, warn_of_replaced
from warmlog.cli.serve import read_settings, warn_if_open, warn_of_replaced_directory

LIMIT_S = 60


@contextmanager
def served(directory: Path, *options: str) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The lines before `ready`, and the addresses, of a broker that runs meanwhile."""
    command = [sys.executable, "-m", "warmlog", "serve", "--data-dir", "data", "--secure"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WARMLOG_")}
    free = ["--kafka", "127.0.0.1:0", "--native", "127.0.0.1:0", "--http", "none"]
    with subprocess.Popen(
        [*command, *free, *options], cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean
    ) as process:
        assert process.stdout is not None
        try:
            lines = []
            for line in process.stdout:
                if line.startswith("ready "):
                    break
                lines.append(line.rstrip("\n"))
            else:
                raise AssertionError(f"no ready line: {process.communicate()[1]}")
            yield lines, dict(pair.split("=", 1) for pair in line.split()[1:])
        finally:
            process.terminate()
            process.communicate(timeout=LIMIT_S)


def properties(secrets: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (secrets / "admin.properties").read_text().splitlines())


def metadata(address: str, secrets: Path, user: str, password: str) -> list[str]:
    """The topics that a client of librdkafka sees."""
    client = AdminClient({
        "bootstrap.servers": address, "security.protocol": "SASL_SSL", "ssl.ca.location": str(secrets / "ca.pem"),
        "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": user, "sasl.password": password, "log_level": 0,
    })  # fmt: skip
    return sorted(client.list_topics(timeout=LIMIT_S).topics)


def test_a_first_start_makes_what_clients_need_and_the_next_keeps_it(tmp_path: Path) -> None:
    secrets = tmp_path / "data-secrets"
    with served(tmp_path) as (lines, addresses):
        assert [line.partition(":")[0] for line in lines] == ["secured", "secured", "power cut"]
        password = (secrets / "admin.password").read_text().strip()
        assert password not in "\n".join(lines)
        assert f'password="{password}"' in properties(secrets)["sasl.jaas.config"]
        assert {path.name: path.stat().st_mode & 0o077 for path in secrets.iterdir()} == {
            "admin.password": 0, "admin.properties": 0, "audit.jsonl": 0, "broker.pem": 0, "ca-key.pem": 0,
            "ca.pem": 0o044,
        }  # fmt: skip
        login = ("--tls-ca", secrets / "ca.pem", "--user", "admin", "--password-file", secrets / "admin.password")
        assert run(*login, "topic", "create", "t", "--native", addresses["native"])[0] == 0
        assert metadata(addresses["kafka"], secrets, "admin", password) == ["t"]
        (tmp_path / "bob").write_text("builder\n")
        (tmp_path / "bob").chmod(0o600)
        created = run(*login, "user", "create", "bob", "--new-password-file", tmp_path / "bob",
                      "--kafka", addresses["kafka"])  # fmt: skip
        assert created[0] == 0
        assert metadata(addresses["kafka"], secrets, "bob", "builder") == []
        assert run("topic", "list", "--native", addresses["native"])[0] != 0
        assert run("--tls-ca", secrets / "ca.pem", "topic", "list", "--native", addresses["native"])[0] != 0
    before = {path: path.read_bytes() for path in secrets.iterdir() if path.name != "audit.jsonl"}
    with served(tmp_path) as (lines, addresses):
        assert [line.partition(":")[0] for line in lines] == ["power cut"]
        assert metadata(addresses["kafka"], secrets, "admin", password) == ["t"]
    assert {path: path.read_bytes() for path in before} == before


def test_secrets_and_names_may_be_given(tmp_path: Path) -> None:
    secrets = tmp_path / "volume"
    secrets.mkdir(mode=0o755)  # as it is mounted
    with served(tmp_path, "--secrets-dir", "volume", "--certificate-host", "broker.example.org") as (_, addresses):
        assert "broker.pem" in {path.name for path in secrets.iterdir()}
        password = (secrets / "admin.password").read_text().strip()
        assert metadata(addresses["kafka"], secrets, "admin", password) == []
    assert not (tmp_path / "data-secrets").exists()
    shown = subprocess.run(
        ["openssl", "x509", "-in", secrets / "broker.pem", "-noout", "-ext", "subjectAltName"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "DNS:broker.example.org" in shown
    assert "DNS:localhost" in shown


@pytest.mark.parametrize("missing", ["admin.properties", "broker.pem"])
def test_what_is_missing_is_made_again(tmp_path: Path, missing: str) -> None:
    secrets = tmp_path / "data-secrets"
    with served(tmp_path):
        pass
    password = (secrets / "admin.password").read_text().strip()
    (secrets / missing).unlink()
    with served(tmp_path) as (_, addresses):
        assert (secrets / missing).exists()
        assert metadata(addresses["kafka"], secrets, "admin", password) == []


def test_a_broker_with_two_data_directories_that_was_open_becomes_secure(tmp_path: Path) -> None:
    dirs = ("--set", "log.dirs=data,more")
    command = [sys.executable, "-m", "warmlog", "serve", *dirs, "--kafka", "127.0.0.1:0", "--native", "127.0.0.1:0"]
    with subprocess.Popen([*command, "--http", "none"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        native = dict(pair.split("=", 1) for pair in lines[1].split()[1:])["native"]
        assert run("topic", "create", "t", "--partitions", "4", "--native", native)[0] == 0
        process.terminate()
        process.communicate(timeout=LIMIT_S)
    with served(tmp_path, *dirs) as (_, addresses):
        secrets = tmp_path / "data-secrets"
        password = (secrets / "admin.password").read_text().strip()
        assert metadata(addresses["kafka"], secrets, "admin", password) == ["t"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--set", "listeners=SSL://127.0.0.1:0"), "--secure: cannot be combined with the setting listeners"),
        (("--kafka", "nonsense"), "nonsense: expected HOST:PORT"),
        (("--certificate-host", "no name"), "'no name' is neither a host name nor an address"),
    ],
)
def test_what_it_cannot_secure_is_named(tmp_path: Path, options: tuple[str, ...], problem: str) -> None:
    status, printed = run("serve", "--secure", "--data-dir", tmp_path / "data", *options)
    assert (status, len(printed.splitlines())) == (2, 1)
    assert problem in printed
    assert not (tmp_path / "data-secrets").exists()


def test_what_does_not_fit_any_more_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with served(tmp_path):
        pass
    secrets = tmp_path / "data-secrets"
    settings = load_settings(data_dir=tmp_path / "data")

    def warnings() -> str:
        caplog.clear()
        secure(settings, kafka="127.0.0.1:0", native="none", http="none")
        return "\n".join(caplog.messages)

    assert warnings() == ""
    (secrets / "admin.password").write_text("another\n")
    assert "admin.properties does not fit admin.password" in warnings()
    (secrets / "admin.password").unlink()
    assert "admin.properties does not fit admin.password" in warnings()
    (secrets / "ca-key.pem").chmod(0o644)
    assert f"chmod 600 {secrets / 'ca-key.pem'}" in warnings()
    (secrets / "ca.pem").unlink()
    assert "ca.pem is missing" in warnings()


def test_a_broker_of_a_cluster_names_what_does_not_fit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made, secrets = tmp_path / "made", tmp_path / "copied"
    assert run("cluster", "secrets", made)[0] == 0
    shutil.copytree(made, secrets)
    member = ("warmlog.cluster.etcd=http://127.0.0.1:1", "node.id=1")
    settings = load_settings(None, {}, member, data_dir=tmp_path / "data")

    def start() -> Secured:
        return secure(settings, kafka="127.0.0.1:0", native="none", http="none", directory=secrets)

    supers = [each for each in start().assignments if each.startswith("super.users=")]
    assert supers == ["super.users=User:admin;User:broker"]
    start()
    assert caplog.messages == []
    (secrets / "admin.password").write_text("another\n")
    start()
    assert "admin.properties does not fit admin.password" in caplog.messages[0]
    (secrets / "broker.password").unlink()
    with pytest.raises(CannotStart, match=r"has no broker.password: .* copy broker.password from another broker"):
        start()


def test_settings_that_are_replaced_and_a_later_open_start_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "warmlog.toml"
    everyone = '"allow.everyone.if.no.acl.found" = true\n'
    file.write_text(f'"super.users" = "User:root"\n"warmlog.audit.file" = "audit.jsonl"\n{everyone}')
    settings = load_settings(file, {}, (), data_dir=tmp_path / "data")
    found = secure(settings, kafka="127.0.0.1:0", native="none", http="none")
    warn_of_replaced(settings, found.assignments, kept=("warmlog.audit.file = audit.jsonl",))
    assert caplog.messages == [
        "--secure replaces super.users=User:root by User:admin; --set keeps it",
        "--secure replaces allow.everyone.if.no.acl.found=True by false; --set keeps it",
    ]
    caplog.clear()
    warn_if_open(load_settings(data_dir=tmp_path / "data"))
    assert "data was served with --secure before; now everyone may do everything" in caplog.messages[0]
    warn_if_open(load_settings(None, {}, found.assignments, data_dir=tmp_path / "data"))
    warn_if_open(load_settings(data_dir=tmp_path / "other"))
    assert len(caplog.messages) == 1


def test_a_data_directory_that_the_option_replaces_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def warnings(data_dir: str, *assignments: str, config: Path | None = None) -> list[str]:
        caplog.clear()
        warn_of_replaced_directory(
            read_settings(config, data_dir, assignments), read_settings(config, None, assignments)
        )
        return caplog.messages

    assert warnings("da") == warnings("da", "log.dirs=da,db") == warnings("./da", "log.dirs=da") == []
    assert warnings("da", "log.dirs=db,da,dc") == [
        "--data-dir replaces db, the first of log.dirs=db,da,dc: the data directories are da,dc"
    ]
    file = tmp_path / "warmlog.toml"
    file.write_text('"log.dirs" = "/var/lib/a"\n')
    assert "--data-dir replaces /var/lib/a" in warnings("da", config=file)[0]


def test_brokers_of_a_cluster_need_a_certificate_that_the_others_trust(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert run("cluster", "secrets", tmp_path / "secrets")[0] == 0
    secrets, key = tmp_path / "secrets", tmp_path / "secrets" / "ca-key.pem"
    member = load_settings(None, {}, ("warmlog.cluster.etcd=http://127.0.0.1:1", "node.id=3"), data_dir=tmp_path / "d")

    def start(kept: tuple[str, ...] = ()) -> None:
        secure(member, kafka="127.0.0.1:0", native="none", http="none", directory=secrets, kept=kept)

    key.rename(tmp_path / "ca-key.pem")
    with pytest.raises(CannotStart, match=r"ca-key.pem is needed to make broker-3.pem: copy it from where"):
        start()
    (tmp_path / "ca-key.pem").rename(key)
    start()
    make(tmp_path / "other")
    own, other = (secrets / "ca.pem").read_bytes(), (tmp_path / "other" / "ca.pem").read_bytes()
    (secrets / "ca.pem").write_bytes(other + own)  # while the authority is being replaced
    start()
    assert caplog.messages == []
    (secrets / "ca.pem").write_bytes(other)
    with pytest.raises(CannotStart, match=r"broker-3.pem was not issued by .*ca.pem"):
        start()
    start(("ssl.truststore.location",))
    assert "was not issued by" in caplog.messages[-1]


def test_a_certificate_may_be_issued_by_way_of_others(tmp_path: Path) -> None:
    root, middle, leaf = (tmp_path / name for name in ("root", "middle", "leaf"))
    names = {"root": "/CN=root", "middle": "/CN=middle", "leaf": "/CN=broker"}
    issuer = ""
    for name, subject in names.items():
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                   "-keyout", f"{name}.key", "-out", f"{name}", "-subj", subject, "-days", "2"]  # fmt: skip
        command += ["-addext", "basicConstraints=critical,CA:FALSE"] if name == "leaf" else []
        command += ["-CA", issuer, "-CAkey", f"{issuer}.key"] if issuer else []
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        issuer = name
    assert not is_issued(leaf, root)
    leaf.write_bytes(leaf.read_bytes() + middle.read_bytes())
    assert is_issued(leaf, root)
    assert is_issued(leaf, middle)
    make(tmp_path / "other")
    assert not is_issued(leaf, tmp_path / "other" / "ca.pem")


def test_passwords_are_quoted_for_javas_properties(tmp_path: Path) -> None:
    (tmp_path / "data-secrets").mkdir()
    password = tmp_path / "data-secrets" / "admin.password"
    password.write_text('p"a\\ss wörd\n')
    password.chmod(0o600)
    with served(tmp_path):
        pass
    text = (tmp_path / "data-secrets" / "admin.properties").read_text()
    assert 'password="p\\\\"a\\\\\\\\ss w\\u00f6rd";' in text


def test_http_of_a_secured_broker_may_be_changed(tmp_path: Path) -> None:
    with served(tmp_path, "--set", "warmlog.http.authentication=basic"):
        pass
    with served(tmp_path, "--set", "warmlog.http.authentication="):
        pass


def test_secrets_are_kept_apart_from_logs(tmp_path: Path) -> None:
    data = ("--data-dir", tmp_path / "data")
    status, printed = run("serve", "--secure", *data, "--secrets-dir", tmp_path / "data" / "secrets")
    assert (status, "may hold logs only" in printed) == (2, True)
    for option in ("--secrets-dir", "--certificate-host"):
        status, printed = run("serve", *data, option, "x")
        assert (status, f"{option}: needs --secure" in printed) == (2, True)


def test_a_user_admin_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("mine\n")
    (tmp_path / "own").chmod(0o600)
    assert (
        run("user", "create", "admin", "--new-password-file", tmp_path / "own", "--data-dir", tmp_path / "data")[0] == 0
    )
    here = ("--data-dir", tmp_path / "data")
    command = ("serve", "--secure", *here, "--kafka", "127.0.0.1:0", "--http", "none")
    status, printed = run(*command)
    assert (status, "has a user admin already" in printed) == (1, True)
    (tmp_path / "own").rename(tmp_path / "data-secrets" / "admin.password")
    with served(tmp_path) as (_, addresses):
        assert metadata(addresses["kafka"], tmp_path / "data-secrets", "admin", "mine") == []


def test_what_signs_may_be_elsewhere_and_an_unfit_certificate_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secrets = tmp_path / "data-secrets"
    with served(tmp_path):
        pass
    (secrets / "ca-key.pem").rename(tmp_path / "ca-key.pem")
    with served(tmp_path):
        pass
    assert secrets.stat().st_mode & 0o777 == 0o700
    settings = load_settings(data_dir=tmp_path / "data")
    secure(settings, kafka="127.0.0.1:0", native="127.0.0.1:0", http="127.0.0.1:0")
    assert not caplog.messages
    secure(settings, kafka="127.0.0.9:0", native="none", http="none")
    assert caplog.messages == [
        (
            f"{secrets / 'broker.pem'} is not for 127.0.0.9: clients will refuse this broker; restore it, or remove"
            f" {secrets / 'broker.pem'} and start again to replace it"
        )
    ]
    make(tmp_path / "other")
    (secrets / "ca.pem").write_bytes((tmp_path / "other" / "ca.pem").read_bytes())
    secure(settings, kafka="127.0.0.1:0", native="none", http="none")
    assert "was not issued by" in caplog.messages[1]


def test_metrics_need_a_login_and_the_right(tmp_path: Path) -> None:
    secrets = tmp_path / "data-secrets"
    with served(tmp_path, "--http", "127.0.0.1:0") as (_, addresses):
        login = ("--tls-ca", secrets / "ca.pem", "--user", "admin", "--password-file", secrets / "admin.password")
        password = tmp_path / "password"
        password.write_text("scrape\n")
        password.chmod(0o600)
        kafka = ("--kafka", addresses["kafka"])
        assert run(*login, "user", "create", "prometheus", "--new-password-file", password, *kafka)[0] == 0

        def status(path: str, user: str = "", given: str = "") -> int:
            request = urllib.request.Request(f"https://{addresses['http']}{path}")
            if user:
                request.add_header("Authorization", "Basic " + b64encode(f"{user}:{given}".encode()).decode())
            try:
                with urllib.request.urlopen(request, context=tls, timeout=LIMIT_S) as reply:
                    return int(reply.status)
            except urllib.error.HTTPError as error:
                error.close()
                return error.code

        tls = ssl.create_default_context(cafile=secrets / "ca.pem")
        assert [status(path) for path in ("/healthz", "/readyz", "/metrics")] == [200, 200, 401]
        assert status("/metrics", "admin", (secrets / "admin.password").read_text().strip()) == 200
        assert status("/metrics", "prometheus", "scrape") == 403
        right = ("User:prometheus", "--operation", "describe", "--cluster")
        assert run(*login, "acl", "add", "allow", *right, *kafka)[0] == 0
        assert status("/metrics", "prometheus", "scrape") == 200
