"""`warmlog tls create`: its certificates serve and are accepted, and nothing that is there is replaced."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warmlog.cli.test_tls import run
from warmlog.cli.failure import Failure
from warmlog.cli.security.certificates import make
from warmlog.testing import Broker

FILES = ["broker.pem", "ca-key.pem", "ca.pem", "client-alice.pem"]


def create(directory: Path, *options: str) -> tuple[int, str]:
    return run("tls", "create", directory, *options)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def told(certificate: Path, *options: str) -> str:
    """What OpenSSL says of a certificate."""
    return subprocess.run(
        ["openssl", "x509", "-in", certificate, "-noout", *options], capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
def made(tmp_path: Path) -> Path:
    directory = tmp_path / "certificates"
    assert create(directory, "--client", "alice")[0] == 0
    return directory


def test_a_broker_serves_with_them_and_accepts_its_clients(made: Path, tmp_path: Path) -> None:
    settings = {
        "listener.security.protocol.map": "kafka:SSL,native:SSL",
        "ssl.keystore.location": made / "broker.pem",
        "ssl.truststore.location": made / "ca.pem",
        "ssl.client.auth": "required",
    }
    with Broker(settings=settings) as broker:
        shown = ("--tls-ca", made / "ca.pem", "--tls-certificate")
        command = ("topic", "list", "--native", broker.native)
        assert run(*shown, made / "client-alice.pem", *command)[0] == 0
        assert run("--tls-ca", made / "ca.pem", *command)[0] != 0
        other = tmp_path / "other"
        assert create(other, "--client", "alice")[0] == 0
        assert run(*shown, other / "client-alice.pem", *command)[0] != 0
        assert run("--tls-ca", other / "ca.pem", *command)[0] != 0


def test_openssl_finds_nothing_wrong_with_them(made: Path) -> None:
    for name, purpose in (
        ("broker.pem", "sslserver"),
        ("broker.pem", "sslclient"),  # of another broker
        ("client-alice.pem", "sslclient"),
    ):
        subprocess.run(
            ["openssl", "verify", "-x509_strict", "-CAfile", made / "ca.pem", "-purpose", purpose, made / name],
            check=True, capture_output=True,
        )  # fmt: skip
    refused = ["openssl", "verify", "-CAfile", made / "ca.pem", "-purpose", "sslserver", made / "client-alice.pem"]
    assert subprocess.run(refused, check=False, capture_output=True).returncode != 0
    assert "CN = alice" in told(made / "client-alice.pem", "-subject")


def test_only_the_authority_is_readable_by_others(made: Path) -> None:
    assert {path.name: path.stat().st_mode & 0o777 for path in made.iterdir()} == {
        name: 0o644 if name == "ca.pem" else 0o600 for name in FILES
    }


def test_a_second_run_makes_what_is_missing_and_keeps_the_rest(made: Path) -> None:
    before = contents(made)
    status, printed = create(made, "--client", "alice", "--client", "bob", "--json")
    assert status == 0
    assert [line for line in printed.splitlines() if '"new": true' in line or '"new":true' in line] == [
        line for line in printed.splitlines() if "client-bob.pem" in line
    ]
    after = contents(made)
    assert after.keys() - before.keys() == {"client-bob.pem"}
    assert before.items() <= after.items()


def test_each_broker_of_a_cluster_has_hosts_of_its_own(tmp_path: Path) -> None:
    for name, host in (("b1", "b1.example"), ("b2", "10.0.0.2"), ("b3", "*.b3.example")):
        assert create(tmp_path, "--broker", name, "--host", host)[0] == 0
        assert host in told(tmp_path / f"{name}.pem", "-ext", "subjectAltName")
    assert "localhost" not in told(tmp_path / "b1.pem", "-ext", "subjectAltName")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--host", "not a host"), "--host: 'not a host' is neither a host name nor an address"),
        (("--host", ""), "is neither a host name nor an address"),
        (("--host", "a..b"), "is neither a host name nor an address"),
        (("--host", f"{'a' * 64}.example"), "is neither a host name nor an address"),
        (("--client", "../x"), "cannot be the name of a certificate"),
        (("--client", "x" * 65), "cannot be the name of a certificate"),
        (("--broker", "ca"), "cannot be the name of a certificate"),
        (("--days", "0"), "--days"),
    ],
)
def test_bad_names_are_refused_before_anything_is_written(
    tmp_path: Path, options: tuple[str, ...], problem: str
) -> None:
    status, printed = create(tmp_path / "new", *options)
    assert status != 0
    assert problem in printed
    assert len(printed.splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_a_certificate_that_is_there_gets_no_other_hosts(made: Path) -> None:
    before = contents(made)
    status, printed = create(made, "--host", "elsewhere.example")
    assert (status, "broker.pem exists" in printed) == (1, True)
    assert contents(made) == before


@pytest.mark.parametrize("damage", ["no key", "another key", "garbage"])
def test_an_authority_that_cannot_sign_is_named(made: Path, tmp_path: Path, damage: str) -> None:
    key = made / "ca-key.pem"
    if damage == "no key":
        key.unlink()
    elif damage == "garbage":
        key.write_text("garbage")
    else:
        assert create(tmp_path / "other")[0] == 0
        key.write_bytes((tmp_path / "other" / "ca-key.pem").read_bytes())
    before = contents(made)
    status, printed = create(made, "--client", "bob")
    assert (status, "ca-key.pem" in printed, len(printed.splitlines())) == (1, True, 1)
    assert contents(made) == before


def test_a_path_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    status, printed = create(tmp_path / "file" / "below")
    assert (status != 0, "file" in printed, len(printed.splitlines())) == (True, True, 1)


def test_without_the_library_it_says_what_to_install(tmp_path: Path) -> None:
    program = "import sys; sys.modules['cryptography'] = None; from warmlog.cli import main; main()"
    found = subprocess.run(
        [sys.executable, "-c", program, "tls", "create", tmp_path], check=False, capture_output=True, text=True
    )
    assert found.stderr == "warmlog: the package cryptography is missing: pip install 'warmlog[tls]'\n"
    assert found.returncode == 1


def test_nothing_is_signed_without_need(made: Path) -> None:
    (made / "ca-key.pem").unlink()
    before = contents(made)
    assert create(made, "--client", "alice")[0] == 0
    assert contents(made) == before


def test_a_run_that_a_full_disk_ended_is_completed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, left = os.fsync, [0]

    def full(descriptor: int) -> None:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= 1
        sync(descriptor)

    monkeypatch.setattr("os.fsync", full)
    for whole in range(4):
        left[0] = whole
        directory = tmp_path / str(whole)
        with pytest.raises(Failure, match="No space left on device"):
            make(directory, clients=["alice"])
        assert len(contents(directory)) == whole
        left[0] = 4
        assert sum(file.is_new for file in make(directory, clients=["alice"])) == 4 - whole
        assert sorted(contents(directory)) == FILES
        subprocess.run(
            ["openssl", "verify", "-CAfile", directory / "ca.pem", directory / "broker.pem"],
            check=True, capture_output=True,
        )  # fmt: skip
