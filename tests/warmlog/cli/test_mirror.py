"""`warmlog mirror`: a broker that mirrors another, its status, and promotion."""

import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.waiting import until
from warmlog import Client
from warmlog.broker.start_errors import StartError
from warmlog.testing import Broker

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def source() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="module")
def broker(source: Broker) -> Iterator[Broker]:
    """The mirror, which `run` asks."""
    settings = {
        "warmlog.mirror.from": source.kafka,
        "warmlog.mirror.topics": "copied.*|taken",
        "warmlog.mirror.interval.ms": 20,
    }
    with Broker(settings=settings) as running:
        yield running


def copied(run: Run, topic: str, end: int) -> dict[str, Any]:
    """Wait until a topic's only partition has all records; return its status."""
    found: list[dict[str, Any]] = []

    def is_there() -> bool:
        (described,) = run("mirror", "status", "--json").json()
        found[:] = [one for one in described["topics"] if one["name"] == topic and one["partitions"]]
        return bool(found) and found[0]["partitions"][0]["source_end"] == end == found[0]["partitions"][0]["end"]

    until(is_there, lambda: None, f"{end} records of {topic}")
    return found[0]


def test_copies_are_shown_with_their_lag_and_promoted(run: Run, source: Broker, broker: Broker) -> None:
    with Client(source.native) as client, Client(broker.native) as here:
        client.create_topic("copied", partitions=1)
        client.produce_many("copied", [b"one", b"two", b"three"], partition=0)
        status = copied(run, "copied", 3)
        assert (status["state"], status["problem"]) == ("following", None)
        assert status["cluster_id"] == client.metadata().cluster_id
        (partition,) = status["partitions"]
        assert (partition["lag_records"], partition["lag_bytes"]) == (0, 0)
        assert partition["promoted_at"] == -1
        shown = run("mirror", "status", "copied")
        assert shown.status == 0
        assert f"source: {source.kafka}".encode() in shown.out
        assert b"following" in shown.out
        with urllib.request.urlopen(f"http://{broker.http}/metrics") as reply:
            metrics = reply.read().decode()
        assert "warmlog_mirror_in_step 1.0" in metrics
        assert 'warmlog_mirror_lag_records{partition="0",topic="copied"} 0.0' in metrics
        assert 'warmlog_mirror_lag_seconds{partition="0",topic="copied"}' in metrics
        refused = run("produce", "copied", stdin=b"four\n")
        assert refused.status == 1
        assert "read-only until it is promoted" in refused.err
        assert run("mirror", "promote", "copied").out == b"copied promoted at offsets 3\n"
        assert here.produce("copied", value=b"own").offset == 3
        client.produce("copied", value=b"not copied")
        (again,) = run("mirror", "status", "copied", "--json").json()
        assert again["topics"][0]["state"] == "promoted"
        assert again["topics"][0]["partitions"][0]["promoted_at"] == 3
        failed = run("mirror", "promote", "copied")
        assert failed.status == 1
        assert "topic 'copied' is not a mirror any more" in failed.err


def test_a_promotion_aborts_what_is_open(run: Run, source: Broker, broker: Broker) -> None:
    with Client(source.native) as client, Client(broker.native) as here:
        client.create_topic("copied-open", partitions=1)
        with client.transaction("mover") as transaction:
            transaction.produce("copied-open", value=b"open", partition=0)
            copied(run, "copied-open", 1)
            (promoted,) = run("mirror", "promote", "copied-open", "--json").json()
        assert promoted == {"topic": "copied-open", "offsets": [1]}
        here.produce("copied-open", value=b"own")
        committed = [one.value for one in here.consume("copied-open", until_end=True, isolation="read_committed")]
        assert committed == [b"own"]
        assert here.find_hanging_transactions(max_timeout_s=0) == ()


def test_a_topic_that_cannot_be_mirrored_is_shown_with_the_reason(run: Run, source: Broker, broker: Broker) -> None:
    with Client(source.native) as client, Client(broker.native) as here:
        here.create_topic("taken", partitions=1)
        client.create_topic("taken", partitions=1)
        until(lambda: any(one.name == "taken" for one in here.describe_mirror().topics), lambda: None, "a refusal")
        shown = run("mirror", "status")
        assert shown.status == 1
        assert b"refused" in shown.out
        assert b"is not a mirror: delete or exclude it" in shown.out
        assert here.produce("taken", value=b"ours").offset == 0
        failed = run("mirror", "promote", "taken")
        assert "topic 'taken' is not a mirror" in failed.err
        assert run("mirror", "status", "none").err == "warmlog: topic 'none' is not mirrored\n"


def test_every_copy_is_promoted_at_once(run: Run, source: Broker) -> None:
    with Client(source.native) as client:
        for name in ("copied-a", "copied-b"):
            client.create_topic(name, partitions=1)
            client.produce(name, value=b"one")
            copied(run, name, 1)
    promoted = run("mirror", "promote", "--all", "--json").json()
    assert {"topic": "copied-a", "offsets": [1]} in promoted
    assert {"topic": "copied-b", "offsets": [1]} in promoted
    assert run("mirror", "promote", "--all").out == b""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Name the cluster to mirror with --from HOST:PORT, or a command."),
        (["--from", "h:1", "status"], "`status` takes its options after its name."),
        (["--from", "nowhere"], "warmlog.mirror.from: expected HOST:PORT, separated by commas, not 'nowhere'"),
        (["--from", "h:1", "--topics", "("], "warmlog.mirror.topics: expected a regular expression (RE2)"),
        (["promote"], "Give either TOPIC... or --all."),
        (["promote", "--all", "words"], "Give either TOPIC... or --all."),
    ],
)
def test_what_is_wrong_is_told(run: Run, arguments: list[str], message: str) -> None:
    failed = run("mirror", *arguments)
    assert failed.status == 2
    assert message in failed.err


def test_the_command_runs_a_broker_that_mirrors(source: Broker, start: Callable[..., Any], tmp_path: Any) -> None:
    with Client(source.native) as client:
        client.create_topic("copied-by-command", partitions=1)
        client.produce("copied-by-command", value=b"one")
    process = start(
        "mirror", "--from", source.kafka, "--topics", "copied-by.*", "--groups", "--data-dir", tmp_path / "data",
        "--kafka", "none", "--native", "127.0.0.1:0", "--http", "none",
    )  # fmt: skip
    process.stdout.readline()
    native = process.stdout.readline().decode().split("native=")[1].split()[0]
    with Client(native) as here:

        def is_there() -> bool:
            topics = {topic.name: topic for topic in here.describe_mirror().topics}
            return "copied-by-command" in topics and topics["copied-by-command"].partitions[0].end == 1

        until(is_there, lambda: None, "the copy")
        assert [record.value for record in here.consume("copied-by-command", until_end=True)] == [b"one"]
    process.terminate()
    assert process.wait() == 0


@pytest.mark.parametrize("file", ["password", "ca"])
def test_a_file_that_is_missing_is_named_at_the_start(file: str, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret\n")
    password.chmod(0o600)
    settings = {
        "warmlog.mirror.from": "127.0.0.1:1",
        "warmlog.mirror.security.protocol": "SASL_SSL",
        "warmlog.mirror.user": "me",
        "warmlog.mirror.password.file": password,
        f"warmlog.mirror.{file}.file": tmp_path / "none",
    }
    with pytest.raises(StartError, match=rf"warmlog\.mirror\.{file}\.file: .*: No such file"):  # noqa: SIM117
        with Broker(settings=settings):
            pass
