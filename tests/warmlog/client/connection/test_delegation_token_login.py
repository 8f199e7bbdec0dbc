"""The native client and commands log in with a delegation token."""

import os
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from tests.broker.kafka_client import kafka_client
from tests.broker.net.sasl import PASSWORD, log_in
from warmlog.cli.root import root
from warmlog.client import WarmlogError, connect
from warmlog.testing import Broker

SETTINGS = {
    "listener.security.protocol.map": "native:SASL_PLAINTEXT,kafka:SASL_PLAINTEXT",
    "connection.failed.authentication.delay.ms": "0",
    "delegation.token.secret.key": "a secret",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:alice",
}
VARIABLES = ("USER", "PASSWORD", "PASSWORD_FILE", "SASL_MECHANISM", "DELEGATION_TOKEN")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(f"WARMLOG_{name}", "")


async def token_of(broker: Broker) -> dict[str, Any]:
    """The login of a client with a token of alice."""
    async with kafka_client(broker.kafka) as client:
        assert (await log_in(client))["error_code"] == 0
        token = await client.ask(
            "CreateDelegationToken",
            owner_principal_type=None,
            owner_principal_name=None,
            renewers=[],
            max_lifetime_ms=-1,
        )
    hmac = b64encode(bytes(token["hmac"])).decode()
    return {"username": token["token_id"], "password": hmac, "delegation_token": True}


async def status(*arguments: str) -> int:
    """Run a command, which has an event loop of its own."""
    done = await trio.to_thread.run_sync(lambda: CliRunner().invoke(root, arguments))
    return done.exit_code


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_clients_and_commands_log_in_as_the_owner_of_the_token(tmp_path: Path, mechanism: Any) -> None:
    created = ["user", "create", "alice", "--new-password-file", "-", "--data-dir", str(tmp_path / "data")]
    assert CliRunner().invoke(root, created, input=f"{PASSWORD}\n").exit_code == 0
    with Broker(data_dir=tmp_path / "data", settings=SETTINGS) as broker:
        login = await token_of(broker)
        async with connect(broker.native, **login, mechanism=mechanism) as client:
            await client.create_topic("t")
            await client.produce("t", value=b"1")
        with pytest.raises(WarmlogError, match="invalid credentials"):
            async with connect(broker.native, **{**login, "delegation_token": False}):
                raise AssertionError("connected")

        file = tmp_path / "hmac"
        file.write_text(login["password"])
        file.chmod(0o600)
        given = ("--user", login["username"], "--password-file", str(file), "--mechanism", mechanism)
        for command in (("topic", "list", "--native", broker.native), ("acl", "list", "--kafka", broker.kafka)):
            assert await status(*given, "--delegation-token", *command) == 0
            os.environ["WARMLOG_DELEGATION_TOKEN"] = ""
            assert await status(*given, *command) != 0


@pytest.mark.parametrize(
    ("arguments", "variable", "why"),
    [
        (("--delegation-token",), "", "--delegation-token: needs --user"),
        (("--user", "a", "--mechanism", "PLAIN", "--delegation-token"), "", "--delegation-token: needs one of SCRAM"),
        (("--user", "a"), "perhaps", "WARMLOG_DELEGATION_TOKEN: expected true or false, not 'perhaps'"),
    ],
)
def test_what_a_token_needs_is_named(
    arguments: tuple[str, ...], variable: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARMLOG_PASSWORD", "secret" if "--user" in arguments else "")
    monkeypatch.setenv("WARMLOG_DELEGATION_TOKEN", variable)
    done = CliRunner().invoke(root, [*arguments, "topic", "list", "--native", "127.0.0.1:1"])
    assert done.exit_code == 2
    assert why in done.output


@pytest.mark.parametrize("given", [{}, {"username": "a", "password": "b", "mechanism": "PLAIN"}])
async def test_a_client_needs_the_id_the_hmac_and_scram(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="delegation_token needs a username and a password"):
        async with connect("127.0.0.1:1", delegation_token=True, **given):
            raise AssertionError("connected")
