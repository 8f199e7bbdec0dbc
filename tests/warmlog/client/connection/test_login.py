"""The native client on listeners with SASL."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.broker.clients import RawClient, running
from warmlog.broker.security import sasl
from warmlog.cli.root import root
from warmlog.client import Client, WarmlogError, connect
from warmlog.client.connection import connection
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.native.login import AuthenticateRequest
from warmlog.protocol.request import MetadataRequest
from warmlog.protocol.scram import log_in
from warmlog.testing import Broker

SECURED = {
    "listeners": "NATIVE://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
    "listener.security.protocol.map": "NATIVE:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
    "warmlog.sasl.plain.without.tls": "true",
    "connection.failed.authentication.delay.ms": "0",
}
LOGIN: dict[str, Any] = {"username": "alice", "password": "open sesame"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WARMLOG_USER", "WARMLOG_PASSWORD", "WARMLOG_PASSWORD_FILE", "WARMLOG_SASL_MECHANISM"):
        monkeypatch.setenv(name, "")


def create_user(data_dir: Path) -> None:
    arguments = ["user", "create", "alice", "--new-password-file", "-", "--data-dir", str(data_dir)]
    assert CliRunner().invoke(root, arguments, input="open sesame\n").exit_code == 0


@pytest.fixture
def native(tmp_path: Path) -> Iterator[str]:
    create_user(tmp_path / "data")
    with Broker(data_dir=tmp_path / "data", settings=SECURED) as broker:
        yield broker.native


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
async def test_a_client_with_a_password_produces_and_consumes(native: str, mechanism: Any) -> None:
    async with connect(native, **LOGIN, mechanism=mechanism) as client:
        await client.produce("t", value=b"1")
        assert [topic.name for topic in await client.list_topics()] == ["t"]
    with Client(native, **LOGIN, mechanism=mechanism) as blocking:
        blocking.produce("t", value=b"2")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
async def test_others_are_refused(native: str, mechanism: Any) -> None:
    for user, password in (("alice", "wrong"), ("nobody", "open sesame")):
        with pytest.raises(WarmlogError, match=f"login with {mechanism} failed: invalid credentials"):
            async with connect(native, username=user, password=password, mechanism=mechanism):
                raise AssertionError("connected")
    async with connect(native, request_timeout_s=1) as client:
        with pytest.raises(WarmlogError, match="needs a login"):
            await client.list_topics()


def test_commands_log_in(native: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMLOG_PASSWORD", "open sesame")
    found = CliRunner().invoke(root, ["--user", "alice", "topic", "create", "t", "--native", native])
    assert found.exit_code == 0, found.output
    monkeypatch.setenv("WARMLOG_PASSWORD", "wrong")
    found = CliRunner().invoke(root, ["--user", "alice", "topic", "list", "--native", native])
    assert (found.exit_code, "invalid credentials" in found.stderr) == (1, True)


async def test_a_login_is_renewed_while_records_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sasl, "REAUTHENTICATION_PAUSE_S", 0.0)
    monkeypatch.setattr(connection, "MIN_RENEWAL_S", 0.0)
    create_user(tmp_path / "data")
    given = {**SECURED, "connections.max.reauth.ms": "1000"}
    async with running(tmp_path / "data", given, http="127.0.0.1:0") as broker:
        name = 'warmlog_logins_total{listener="native",mechanism="SCRAM-SHA-512",result="ok"}'
        async with connect(broker.addresses.native, **LOGIN) as client:
            await client.produce("t", value=b"1")
            first = (await broker.scrape())[name]
            while (await broker.scrape())[name] < first + 4:
                await client.produce("t", value=b"1")
        assert 'warmlog_logins_total{listener="native",mechanism="SCRAM-SHA-512",result="failed"}' not in (
            await broker.scrape()
        )
    assert "lost" not in caplog.text


def test_a_user_and_a_password_belong_together() -> None:
    with pytest.raises(ValueError, match="must be set together"):
        Client("127.0.0.1:1", username="alice")
    with pytest.raises(ValueError, match="mechanism must be one of"):
        Client("127.0.0.1:1", **LOGIN, mechanism="GSSAPI")  # type: ignore[arg-type]


async def test_nothing_but_hello_comes_before_authenticate(tmp_path: Path) -> None:
    create_user(tmp_path / "data")
    async with running(tmp_path / "data", SECURED) as broker:

        async def refused(client: RawClient, request: Any, error: ErrorCode) -> None:
            reply = await client.ask(request)
            assert reply.error is error
            assert await client.reply() is None

        await refused(await broker.connect(), MetadataRequest(), ErrorCode.SASL_AUTHENTICATION_FAILED)
        client = await broker.connect(hello=False)
        reply = await client.ask(AuthenticateRequest(mechanism="PLAIN", token=b"\0alice\0open sesame"))
        assert reply.error is ErrorCode.INVALID_REQUEST  # hello comes first
        unknown = AuthenticateRequest(mechanism="GSSAPI", token=b"")
        await refused(await broker.connect(), unknown, ErrorCode.UNSUPPORTED_SASL_MECHANISM)
        client = await broker.connect()
        tokens = log_in("SCRAM-SHA-256", "alice", "open sesame", "nonce")
        await client.ask(AuthenticateRequest(mechanism="SCRAM-SHA-256", token=next(tokens)))
        changed = AuthenticateRequest(mechanism="PLAIN", token=b"\0alice\0open sesame")
        await refused(client, changed, ErrorCode.ILLEGAL_SASL_STATE)
        client = await broker.connect()
        tokens = log_in("SCRAM-SHA-256", "alice", "open sesame", "nonce")
        reply = await client.ask(AuthenticateRequest(mechanism="SCRAM-SHA-256", token=next(tokens)))
        await refused(client, MetadataRequest(), ErrorCode.SASL_AUTHENTICATION_FAILED)
