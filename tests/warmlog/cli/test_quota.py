"""`warmlog quota`."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from warmlog.cli.root import root
from warmlog.testing import Broker


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Broker(data_dir=Path(tmp_path_factory.mktemp("data"))) as broker:
        yield broker.kafka


def run(kafka: str, *arguments: str) -> Result:
    return CliRunner().invoke(root, ["quota", *arguments, "--kafka", kafka])


def test_quotas_are_set_listed_and_removed(kafka: str) -> None:
    done = run(kafka, "set", "producer_byte_rate=1048576", "request_percentage=12.5", "--user", "alice")
    assert (done.exit_code, done.stdout) == (0, "user alice: 2 quotas set\n")
    done = run(kafka, "set", "consumer_byte_rate=1000", "--default-user", "--client", "app")
    assert done.stdout == "user (default), client-id app: 1 quota set\n"
    assert [line.split() for line in run(kafka, "list").stdout.splitlines()] == [
        ["user", "client", "address", "quota", "value"],
        ["(default)", "app", "-", "consumer_byte_rate", "1000"],
        ["alice", "-", "-", "producer_byte_rate", "1048576"],
        ["alice", "-", "-", "request_percentage", "12.5"],
    ]
    listed = run(kafka, "list", "--client", "app", "--json")
    assert json.loads(listed.stdout) == {"user": None, "client_id": "app", "quotas": {"consumer_byte_rate": 1000.0}}
    assert run(kafka, "remove", "request_percentage", "--user", "alice").stdout == "user alice: 1 quota removed\n"
    assert run(kafka, "remove", "--default-user", "--client", "app").exit_code == 0
    assert run(kafka, "remove", "--user", "alice").stdout == "user alice: 1 quota removed\n"
    assert run(kafka, "list", "--json").stdout == ""


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("set", "producer_byte_rate=fast", "--user", "a"), 2, "'fast' is not a number"),
        (("set", "producer_byte_rate", "--user", "a"), 2, "expected QUOTA=VALUE"),
        (("set", "producer_byte_rate=1"), 2, "name who has the quota"),
        (("set", "producer_byte_rate=1", "--user", "a", "--default-user"), 2, "exclude each other"),
        (("set", "speed=1", "--user", "a"), 1, "unknown quota speed"),
        (("set", "producer_byte_rate=1", "--user", "a", "--ip", "10.0.0.1"), 1, "cannot be combined"),
        (("remove", "producer_byte_rate", "--user", "nobody"), 1, "user nobody has no quota"),
    ],
)
def test_what_cannot_be_done_is_named(kafka: str, arguments: tuple[str, ...], code: int, expected: str) -> None:
    result = run(kafka, *arguments)
    assert result.exit_code == code
    assert expected in result.output
