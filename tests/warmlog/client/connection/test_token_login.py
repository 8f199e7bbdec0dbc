"""The native client and commands on listeners that accept tokens."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.broker.cluster.certificates import Authority
from tests.issuer import CLIENT, SECRET, Issuer, running_issuer
from warmlog.broker.security import sasl
from warmlog.cli.root import root
from warmlog.client import Client, ClientCredentials, ConnectError, TokenFile, WarmlogError, connect
from warmlog.client.connection import connection
from warmlog.testing import Broker

VARIABLES = ("USER", "PASSWORD", "PASSWORD_FILE", "SASL_MECHANISM", "TOKEN", "TOKEN_FILE", "TOKEN_ENDPOINT_URL",
             "TOKEN_SCOPE", "TOKEN_CA", "CLIENT_ID", "CLIENT_SECRET", "CLIENT_SECRET_FILE")  # fmt: skip


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(f"WARMLOG_{name}", "")


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with running_issuer() as issuer:
        yield issuer


@pytest.fixture
def broker(tmp_path: Path, issuer: Issuer) -> Iterator[Broker]:
    settings = {
        "listener.security.protocol.map": "native:SASL_PLAINTEXT,kafka:SASL_PLAINTEXT",
        "connection.failed.authentication.delay.ms": "0",
        **issuer.settings(),
    }
    with Broker(data_dir=tmp_path / "data", settings=settings) as broker:
        yield broker


def credentials(issuer: Issuer, secret: str = SECRET) -> ClientCredentials:
    return ClientCredentials(f"{issuer.url}/token", CLIENT, secret, scope="kafka")


async def test_a_client_logs_in_with_a_token(broker: Broker, issuer: Issuer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{issuer.token()}\n")
    tokens: list[Any] = [issuer.token(), issuer.token, TokenFile(tmp_path / "token"), credentials(issuer)]
    for number, token in enumerate(tokens):
        async with connect(broker.native, token=token) as client:
            await client.produce(f"t{number}", value=b"1")
    with Client(broker.native, token=issuer.token()) as blocking:
        assert len(list(blocking.list_topics())) == len(tokens)
    assert (issuer.grants, issuer.scopes) == (1, ["kafka"])


async def test_a_token_that_is_refused_is_an_error(broker: Broker, issuer: Issuer) -> None:
    with pytest.raises(WarmlogError, match=r"login with OAUTHBEARER failed: .*invalid_token"):
        async with connect(broker.native, token=issuer.token(aud="another")):
            raise AssertionError("connected")
    with pytest.raises(WarmlogError, match="a token may contain only letters"):
        async with connect(broker.native, token="a b"):
            raise AssertionError("connected")


async def test_a_login_is_renewed_with_another_token(
    broker: Broker, issuer: Issuer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sasl, "REAUTHENTICATION_PAUSE_S", 0.0)
    monkeypatch.setattr(connection, "MIN_RENEWAL_S", 0.0)
    issuer.lifetime_s = 4
    async with connect(broker.native, token=credentials(issuer)) as client:
        while issuer.grants < 3:  # the second one is in use when the third is fetched
            await client.produce("t", value=b"1")
    assert "lost" not in caplog.text


def test_credentials_keep_a_token_for_a_part_of_its_life(issuer: Issuer) -> None:
    tokens = credentials(issuer)
    assert tokens() == tokens()
    assert issuer.grants == 1
    issuer.lifetime_s = 0
    tokens = credentials(issuer)
    tokens()
    tokens()
    assert issuer.grants == 3
    assert SECRET not in repr(tokens)


def test_without_a_token_the_reason_is_an_error(issuer: Issuer, tmp_path: Path) -> None:
    with pytest.raises(ConnectError, match="401") as error:
        credentials(issuer, "wrong")()
    assert "wrong" not in str(error.value)
    url = issuer.url
    with pytest.raises(ConnectError, match="401"):
        ClientCredentials(f"{url}/token", "another", SECRET)()
    with pytest.raises(ValueError, match="must be https"):
        ClientCredentials("file:///etc/passwd", CLIENT, SECRET)
    with pytest.raises(ValueError, match="without a user") as refused:
        ClientCredentials("https://me:secret@host/", CLIENT, SECRET)
    assert "secret" not in str(refused.value)
    with pytest.raises(ConnectError, match="No such file"):
        TokenFile(tmp_path / "none")()
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConnectError, match="is empty"):
        TokenFile(tmp_path / "empty")()
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(ConnectError, match="not UTF-8"):
        TokenFile(tmp_path / "binary")()


def test_a_provider_that_goes_away_is_an_error() -> None:
    with running_issuer() as issuer:
        tokens = credentials(issuer)
    with pytest.raises(ConnectError, match="Connection refused"):
        tokens()


def test_an_encrypted_provider_is_checked(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    issued = authority.issue("issuer")
    (tmp_path / "issuer.pem").write_text(issued.key.read_text() + issued.certificate.read_text())
    with running_issuer(tmp_path / "issuer.pem") as issuer:
        assert ClientCredentials(f"{issuer.url}/token", CLIENT, SECRET, ca_file=authority.ca)()
        with pytest.raises(ConnectError, match="certificate"):
            credentials(issuer)()


def test_a_password_and_a_token_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="or with a token"):
        Client("127.0.0.1:1", username="alice", password="secret", token="abc")


def run(*arguments: str, code: int = 0) -> str:
    found = CliRunner().invoke(root, arguments)
    assert found.exit_code == code, found.output
    return found.output


def test_commands_log_in_with_tokens(
    broker: Broker, issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text(issuer.token())
    run("--token-file", str(file), "topic", "create", "t", "--native", broker.native)
    assert "t" in run("--token-file", str(file), "config", "show", "topic", "t", "--kafka", broker.kafka, "--all")
    os.environ["WARMLOG_TOKEN_FILE"] = ""
    monkeypatch.setenv("WARMLOG_TOKEN", issuer.token())
    assert "t" in run("topic", "list", "--native", broker.native)
    assert "conflicts with a token" in run("--user", "alice", "topic", "list", "--native", broker.native, code=2)
    os.environ["WARMLOG_USER"] = ""
    monkeypatch.setenv("WARMLOG_TOKEN", issuer.token(aud="another"))
    assert "invalid_token" in run("topic", "list", "--native", broker.native, code=1)
    assert "invalid_token" in run("config", "show", "topic", "t", "--kafka", broker.kafka, code=1)
    monkeypatch.setenv("WARMLOG_TOKEN", "")
    assert "OAUTHBEARER needs" in run("--mechanism", "OAUTHBEARER", "topic", "list", "--native", broker.native, code=2)


def test_a_profile_has_credentials(
    broker: Broker, issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("WARMLOG_NATIVE", "WARMLOG_KAFKA"):
        monkeypatch.setenv(name, "")
    (tmp_path / "warmlog").mkdir()
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    secret.chmod(0o600)
    profile = (
        f'[p]\nnative = "{broker.native}"\nkafka = "{broker.kafka}"\ntoken_endpoint_url = "{issuer.url}/token"\n'
        f'client_id = "{CLIENT}"\nclient_secret_file = "{secret}"\ntoken_scope = "kafka"\n'
    )
    (tmp_path / "warmlog" / "profiles.toml").write_text(profile)
    run("--profile", "p", "topic", "create", "t")
    run("--profile", "p", "config", "show", "topic", "t")
    assert set(issuer.scopes) == {"kafka"}
    secret.write_text("wrong\n")
    assert "401" in run("--profile", "p", "topic", "list", code=1)
    assert "401" in run("--profile", "p", "config", "show", "topic", "t", code=1)
    monkeypatch.setenv("WARMLOG_CLIENT_ID", "x")
    (tmp_path / "warmlog" / "profiles.toml").write_text('[p]\nclient_id = "x"\ntoken_endpoint_url = "ftp://x"\n')
    monkeypatch.setenv("WARMLOG_CLIENT_SECRET", "s")
    monkeypatch.setenv("WARMLOG_CLIENT_SECRET_FILE", "")
    assert "must be https" in run("--profile", "p", "topic", "list", "--native", broker.native, code=2)
