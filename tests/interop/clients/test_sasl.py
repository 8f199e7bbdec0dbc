"""Kafka's tools and kcat log in with SCRAM and PLAIN, and change passwords."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from interop.java_tools import Call, run
from interop.kafka_node import MissingToolError
from tests.interop.clients import programs
from tests.requires import lacks
from warmlog.cli.root import root
from warmlog.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"]
PASSWORD = "open=sesame,s3cret"
SETTINGS = {
    "listener.security.protocol.map": "kafka:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": ",".join(MECHANISMS),
    "warmlog.sasl.plain.without.tls": "true",
    "group.initial.rebalance.delay.ms": 0,
}


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[str]:
    """The address of a broker with a user `admin`."""
    arguments = ["user", "create", "admin", "--new-password-file", "-", "--data-dir", str(tmp_path / "data")]
    assert CliRunner().invoke(root, arguments, input=f"{PASSWORD}\n").exit_code == 0
    with Broker(data_dir=tmp_path / "data", settings=SETTINGS) as broker:
        yield broker.kafka


def client_file(path: Path, user: str, password: str, mechanism: str) -> str:
    """Write the properties of a Java client."""
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    path.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.{module} required "
        f'username="{user}" password="{password}";\n'
        "default.api.timeout.ms=20000\nrequest.timeout.ms=10000\n"
    )
    return str(path)


def test_kafkas_tools_set_passwords_and_log_in(java_tools: None, secured: str, tmp_path: Path) -> None:
    admin = client_file(tmp_path / "admin", "admin", PASSWORD, "SCRAM-SHA-512")
    user = ("--entity-type", "users", "--entity-name", "bob", "--command-config", admin)
    alter = ("--alter", "--add-config")
    calls = {
        "set": Call(tool="kafka-configs", arguments=(*alter, "SCRAM-SHA-256=[iterations=8192,password=one]", *user)),
        "set again": Call(tool="kafka-configs", arguments=(*alter, "SCRAM-SHA-512=[password=one]", *user)),
        "describe": Call(tool="kafka-configs", arguments=("--describe", *user)),
    }
    for mechanism in MECHANISMS:
        bob = client_file(tmp_path / mechanism, "bob", "one", mechanism)
        calls |= {
            f"produce {mechanism}": Call(
                tool="kafka-console-producer",
                arguments=("--topic", mechanism, "--command-config", bob),
                text=f"by {mechanism}\n",
            ),
            f"consume {mechanism}": Call(
                tool="kafka-console-consumer",
                arguments=(
                    *("--topic", mechanism, "--from-beginning", "--max-messages", "1", "--group", mechanism),
                    *("--command-config", bob),
                ),
            ),
        }
    wrong = client_file(tmp_path / "wrong", "bob", "two", "SCRAM-SHA-256")
    calls["wrong"] = Call(tool="kafka-topics", arguments=("--list", "--command-config", wrong))
    calls["delete"] = Call(tool="kafka-configs", arguments=("--alter", "--delete-config", "SCRAM-SHA-256", *user))
    calls["describe after"] = Call(tool="kafka-configs", arguments=("--describe", *user))
    found = run(secured, calls)
    assert "SCRAM-SHA-256=iterations=8192" in found["describe"].output, found
    assert "SCRAM-SHA-512=iterations=4096" in found["describe"].output
    for mechanism in MECHANISMS:
        assert found[f"produce {mechanism}"].status == 0, found[f"produce {mechanism}"]
        assert f"by {mechanism}\n" in found[f"consume {mechanism}"].output
    assert found["wrong"].status != 0
    assert "invalid credentials" in found["wrong"].output + found["wrong"].complaints
    assert "SCRAM-SHA-256" not in found["describe after"].output
    assert "SCRAM-SHA-512=iterations=4096" in found["describe after"].output


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kcat_logs_in(secured: str, mechanism: str) -> None:
    try:
        path = programs.program("kcat", "kcat")
    except MissingToolError as error:
        lacks(error)
    options = ["-X", "security.protocol=SASL_PLAINTEXT", "-X", f"sasl.mechanisms={mechanism}"]
    login = ["-X", "sasl.username=admin", "-X", f"sasl.password={PASSWORD}"]
    command = [path, "-b", secured, *options, *login]
    programs.run([*command, "-P", "-t", "t", "-p", "0"], text="a value\n")
    assert programs.run([*command, "-C", "-t", "t", "-e", "-q", "-o", "beginning"], text=None) == "a value\n"
    assert [each["topic"] for each in json.loads(programs.run([*command, "-L", "-J"], text=None))["topics"]] == ["t"]
