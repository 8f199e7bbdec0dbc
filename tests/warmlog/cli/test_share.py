import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from warmlog import Client
from warmlog.cli.failure import OUTPUT_CLOSED
from warmlog.testing import Broker

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {
        "offsets.topic.num.partitions": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "group.share.min.heartbeat.interval.ms": 100,
        "group.share.heartbeat.interval.ms": 100,
    }
    with Broker(settings=settings) as running:
        yield running


@pytest.fixture
def topic(run: Run, request: pytest.FixtureRequest) -> str:
    """A new topic with five records."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name).strip("-")
    run("topic", "create", name)
    run("produce", name, stdin=b"0\n1\n2\n3\n4\n")
    return name


def test_printed_jobs_are_accepted(run: Run, topic: str) -> None:
    done = run("share", "consume", topic, "--group", topic, "--from", "beginning", "--count", 3)
    assert done.out == b"0\n1\n2\n"
    rest = run("share", "consume", topic, "--group", topic, "--count", 2, "--json").json()
    assert [(one["offset"], one["value"], one["deliveries"]) for one in rest] == [(3, "3", 2), (4, "4", 2)]
    assert run("share", "consume", topic, "--group", topic, "--idle", 1).out == b""


def test_a_program_accepts_rejects_and_releases_by_its_status(run: Run, topic: str) -> None:
    script = 'read job; case "$job" in 1) exit 65;; 2) test "$WARMLOG_DELIVERIES" = 2;; esac'
    options = ("--group", topic, "--from", "beginning", "--exec", script, "--idle", 2, "--workers", 2)
    done = run("share", "consume", topic, *options)
    assert "exit status 1, released" in done.err
    assert run("share", "consume", topic, "--group", topic, "--idle", 1).out == b""


def test_a_program_need_not_read_its_job(run: Run, request: pytest.FixtureRequest) -> None:
    topic = request.node.name.replace("_", "-")
    run("topic", "create", topic)
    run("produce", topic, stdin=b"%s\n" % (b"x" * 500_000))
    options = ("--group", topic, "--from", "beginning", "--count", 1)
    done = run("share", "consume", topic, *options, "--exec", "exec <&-; true")
    assert (done.status, done.err) == (0, "")
    assert run("share", "consume", topic, "--group", topic, "--idle", 1).out == b""


def test_a_program_that_cannot_be_started_ends_the_command(run: Run, topic: str) -> None:
    done = run("share", "consume", topic, "--group", topic, "--from", "beginning", "--exec", "/nonexistent")
    assert done.status == 1
    assert done.err.splitlines()[-1].startswith("warmlog: the command of --exec could not be started (exit status 127)")
    assert len(run("share", "consume", topic, "--group", topic, "--count", 5).out.split()) == 5


def test_a_closed_output_ends_the_command(run: Run, topic: str, start: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = start("share", "consume", topic, "--group", topic, "--from", "beginning")
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (OUTPUT_CLOSED, b"")
    assert len(run("share", "consume", topic, "--group", topic, "--count", 5).out.split()) == 5


def test_a_group_is_reset_and_deleted(run: Run, topic: str) -> None:
    run("share", "consume", topic, "--group", topic, "--from", "beginning", "--count", 5)
    (form,) = run("share", "describe", topic, "--json").json()
    assert (form["type"], form["state"], form["lag"]) == ("share", "Empty", 0)
    (change,) = run("share", "reset", topic, "--to", "3", "--json").json()
    assert (change["after"], change["changed"]) == (3, True)
    assert run("share", "consume", topic, "--group", topic, "--count", 2).out == b"3\n4\n"
    run("share", "delete", topic)
    assert topic.encode() not in run("group", "list").out


def test_a_program_is_not_combined_with_a_format(run: Run, topic: str) -> None:
    assert run("share", "consume", topic, "--group", topic, "--exec", "true", "--json").status == 2


@pytest.fixture
def dead_letters(run: Run, topic: str) -> str:
    """A topic with dead letters of two of the five records."""
    name = f"dlq.{topic}"
    run("topic", "create", name, "--config", "errors.deadletterqueue.group.enable=true")
    return name


@pytest.mark.parametrize("copies", [False, True])
def test_dead_letters_are_shown_and_produced_again(
    run: Run, topic: str, dead_letters: str, broker: Broker, copies: bool
) -> None:
    with Client(broker.native) as client:
        copied = {"errors.deadletterqueue.copy.record.enable": "true"} if copies else {}
        client.alter_group(topic, configs={"errors.deadletterqueue.topic.name": dead_letters, **copied})
    script = 'read job; case "$job" in 1|3) exit 65;; esac'
    run("share", "consume", topic, "--group", topic, "--from", "beginning", "--exec", script, "--count", 5)
    letters: list[Any] = []
    while len(letters) < 2:
        letters = run("share", "dead-letters", dead_letters, "--json").json()
    assert [(one["topic"], one["offset"], one["group"], one["deliveries"]) for one in letters] == [
        (topic, 1, topic, 1),
        (topic, 3, topic, 1),
    ]
    assert [one["value"] for one in letters] == (["1", "3"] if copies else [None, None])
    assert f"{topic}-0@1" in run("share", "dead-letters", dead_letters).out.decode()
    assert run("share", "dead-letters", dead_letters, "--group", "other", "--json").json() == []
    dry = run("share", "redrive", dead_letters, "--dry-run", "--json").json()
    assert [(one["offset"], one["produced"]) for one in dry] == [(1, False), (3, False)]
    done = run("share", "redrive", dead_letters, "--json").json()
    assert [(one["offset"], one["target"], one["produced"]) for one in done] == [(1, topic, True), (3, topic, True)]
    assert run("share", "redrive", dead_letters, "--json").json() == []
    assert run("share", "consume", topic, "--group", topic, "--count", 2).out == b"1\n3\n"


def test_a_record_that_is_gone_is_reported(run: Run, topic: str, dead_letters: str) -> None:
    headers = {"topic": "gone", "partition": "0", "offset": "7", "group": "g", "delivery.count": "5"}
    fields = {"value": None, "headers": {f"__dlq.errors.{name}": value for name, value in headers.items()}}
    run("produce", dead_letters, "--json", stdin=json.dumps(fields).encode())
    done = run("share", "redrive", dead_letters)
    assert (done.status, done.out) == (1, b"gone-0@7: lost: no longer in its topic\n")
    assert "1 record cannot be produced again" in done.err


def test_a_topic_that_does_not_exist_is_an_error(run: Run) -> None:
    done = run("share", "consume", "missing", "--group", "g")
    assert (done.status, "missing" in done.err) == (1, True)
