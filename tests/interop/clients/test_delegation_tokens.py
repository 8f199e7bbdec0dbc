"""Kafka's tool creates, lists, renews and ends delegation tokens, and Java clients log in with one."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from interop.java_tools import Call, run
from tests.interop.clients.test_sasl import PASSWORD, client_file
from warmlog.cli.root import root
from warmlog.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

SETTINGS = {
    "listener.security.protocol.map": "kafka:SASL_PLAINTEXT",
    "delegation.token.secret.key": "a secret",
    "group.initial.rebalance.delay.ms": 0,
}
TOKEN = re.compile(r"^([\w-]{22,36})\s+([\w+/=]{80,})\s", re.MULTILINE)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[str]:
    arguments = ["user", "create", "admin", "--new-password-file", "-", "--data-dir", str(tmp_path / "data")]
    assert CliRunner().invoke(root, arguments, input=f"{PASSWORD}\n").exit_code == 0
    with Broker(data_dir=tmp_path / "data", settings=SETTINGS) as broker:
        yield broker.kafka


def token_file(path: Path, token_id: str, hmac: str) -> str:
    """Write the properties of a Java client that logs in with a token."""
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{token_id}" password="{hmac}" tokenauth="true";\n'
        "default.api.timeout.ms=20000\nrequest.timeout.ms=10000\n"
    )
    return str(path)


def test_kafkas_tool_and_a_client_with_a_token(java_tools: None, secured: str, tmp_path: Path) -> None:
    admin = client_file(tmp_path / "admin", "admin", PASSWORD, "SCRAM-SHA-512")

    def call(*arguments: str, config: str = admin) -> Call:
        return Call(tool="kafka-delegation-tokens", arguments=(*arguments, "--command-config", config))

    made = run(secured, {
        "create": call("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob"),
        "describe": call("--describe", "--owner-principal", "User:admin"),
    })  # fmt: skip
    found = TOKEN.search(made["create"].output)
    assert found is not None, made
    token_id, hmac = found.groups()
    assert hmac in made["describe"].output
    assert "User:bob" in made["describe"].output
    by_token = token_file(tmp_path / "token", token_id, hmac)
    used = run(secured, {
        "produce": Call(
            tool="kafka-console-producer", arguments=("--topic", "t", "--command-config", by_token), text="by token\n"
        ),
        "consume": Call(
            tool="kafka-console-consumer",
            arguments=("--topic", "t", "--from-beginning", "--max-messages", "1", "--command-config", by_token),
        ),
        "create by token": call("--create", "--max-life-time-period", "-1", config=by_token),
        "renew": call("--renew", "--renew-time-period", "3600000", "--hmac", hmac),
        "expire": call("--expire", "--expiry-time-period", "-1", "--hmac", hmac),
        "describe after": call("--describe"),
    })  # fmt: skip
    assert used["produce"].status == 0, used["produce"]
    assert "by token\n" in used["consume"].output, used["consume"]
    assert used["create by token"].status != 0
    assert "DelegationTokenDisabled" not in used["create by token"].output
    assert "Completed renew operation" in used["renew"].output, used["renew"]
    assert "Completed expire operation" in used["expire"].output, used["expire"]
    assert hmac not in used["describe after"].output
    refused = run(secured, {"list": Call(tool="kafka-topics", arguments=("--list", "--command-config", by_token))})
    assert "invalid credentials" in refused["list"].output + refused["list"].complaints
