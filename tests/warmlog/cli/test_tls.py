"""Commands over TLS: against a broker that encrypts, and checks clients."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker.cluster.certificates import Authority
from warmlog.testing import Broker

LIMIT_S = 60


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca") / "ca")


def store(authority: Authority, path: Path, **issued: str) -> Path:
    found = authority.issue(path.stem, **issued)
    path.write_text(found.key.read_text() + found.certificate.read_text())
    return path


def encrypting(authority: Authority, tmp_path: Path, **settings: object) -> Broker:
    return Broker(
        settings={
            "listener.security.protocol.map": "kafka:SSL,native:SSL",
            "ssl.keystore.location": store(authority, tmp_path / "broker.pem"),
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )


def run(*words: str | Path, given: str = "", **environ: str | Path) -> tuple[int, str]:
    """Run a command; return its status, and what it prints."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WARMLOG_")}
    command = [sys.executable, "-m", "warmlog", *map(str, words)]
    found = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env=clean | {name: str(value) for name, value in environ.items()},
    )  # fmt: skip
    return found.returncode, found.stdout + found.stderr


def test_records_and_settings_pass_encrypted(authority: Authority, tmp_path: Path) -> None:
    with encrypting(authority, tmp_path) as broker:
        native = ("--native", broker.native)
        line = "x" * 100_000
        assert run("--tls-ca", authority.ca, "produce", "t", *native, given=f"{line}\n" * 50)[0] == 0
        status, printed = run(
            "consume", "t", "--from", "beginning", "--until-end", *native, WARMLOG_TLS_CA=authority.ca
        )
        assert (status, printed.count(line)) == (0, 50)
        status, printed = run("--tls-ca", authority.ca, "config", "show", "topic", "t", "--kafka", broker.kafka)
        assert (status, printed) == (0, "topic t: every setting has its default; --all shows them\n")


def test_a_client_shows_its_certificate(authority: Authority, tmp_path: Path) -> None:
    own = store(authority, tmp_path / "client.pem")
    with encrypting(authority, tmp_path, ssl_client_auth="required", ssl_truststore_location=authority.ca) as broker:
        words = ("topic", "list", "--native", broker.native)
        assert run("--tls-ca", authority.ca, "--tls-certificate", own, *words)[0] == 0
        assert run("--tls-ca", authority.ca, *words)[0] != 0


def test_what_does_not_fit_is_explained(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger")
    elsewhere = store(authority, tmp_path / "elsewhere.pem", host="192.0.2.1")
    with encrypting(authority, tmp_path) as broker:
        words = ("topic", "list", "--native", broker.native)
        status, printed = run("--tls-ca", stranger.ca, *words)
        assert status
        assert "its certificate is not valid: " in printed
        status, printed = run(*words)
        assert status
        assert "is it the native listener (port 9091 by default), and without encryption (tls, --tls-ca)?" in printed
    with encrypting(authority, tmp_path, **{"ssl.keystore.location": elsewhere}) as broker:
        status, printed = run("--tls-ca", authority.ca, "topic", "list", "--native", broker.native)
        assert status
        assert "IP address mismatch" in printed
    with Broker() as broker:
        status, printed = run("--tls-ca", authority.ca, "topic", "list", "--native", broker.native)
        assert status
        assert "TLS failed: " in printed


def test_a_profile_names_the_files(authority: Authority, tmp_path: Path) -> None:
    profiles = tmp_path / "warmlog" / "profiles.toml"
    profiles.parent.mkdir()
    with encrypting(authority, tmp_path) as broker:
        profiles.write_text(f'[here]\nnative = "{broker.native}"\ntls_ca = "{authority.ca}"\n')
        status, printed = run("--profile", "here", "topic", "list", XDG_CONFIG_HOME=tmp_path)
        assert status == 0, printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tls-ca", "/nowhere"), "--tls-ca: /nowhere: No such file or directory"),
        (("--tls-ca", "{junk}"), "has no certificate in PEM format"),
        (("--tls-certificate", "{junk}"), "--tls-certificate: needs --tls-ca"),
        (("--tls-ca", "{ca}", "--tls-certificate", "/nowhere"), "--tls-certificate: /nowhere: No such file"),
        (("--tls-ca", "{ca}", "--tls-certificate", "{junk}"), "needs a private key and the certificate"),
    ],
)
def test_unusable_files_are_named(authority: Authority, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    junk = tmp_path / "junk"
    junk.write_text("junk")
    given = [word.format(junk=junk, ca=authority.ca) for word in words]
    status, printed = run(*given, "topic", "list", "--native", "127.0.0.1:1")
    assert status == 2
    assert message in printed
