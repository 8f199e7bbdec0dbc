import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from warmlog import Client
from warmlog.testing import Broker

Run = Callable[..., Any]
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1}) as running:
        yield running


@pytest.fixture
def topic(run: Run, request: pytest.FixtureRequest) -> str:
    """A new topic with two partitions of five and three records; its group has the same name."""
    name = request.node.name.replace("_", "-")
    run("topic", "create", name, "--partitions", 2)
    run("produce", name, "--partition", 0, stdin=b"0\n1\n2\n3\n4\n")
    run("produce", name, "--partition", 1, stdin=b"5\n6\n7\n")
    return name


def positions(run: Run, group: str) -> dict[int, tuple[int | None, int | None]]:
    """Return committed offset and lag by partition."""
    (form,) = run("group", "describe", group, "--json").json()
    return {one["partition"]: (one["offset"], one["lag"]) for one in form["positions"]}


def test_printed_records_are_committed(run: Run, topic: str) -> None:
    done = run("consume", topic, "--group", topic, "--until-end")
    assert sorted(done.out.split()) == [b"%d" % number for number in range(8)]
    assert positions(run, topic) == {0: (5, 0), 1: (3, 0)}
    assert run("consume", topic, "--group", topic, "--until-end").out == b""
    run("produce", topic, "--partition", 1, stdin=b"more\n")
    assert positions(run, topic) == {0: (5, 0), 1: (3, 1)}
    assert run("consume", topic, "--group", topic, "--until-end").out == b"more\n"


def test_an_empty_group_takes_members_of_either_protocol(run: Run, topic: str) -> None:
    for protocol in ("consumer", "classic", "auto"):
        run("produce", topic, "--partition", 1, stdin=protocol.encode())
        done = run("consume", topic, "--group", topic, "--until-end", "--group-protocol", protocol)
        assert done.out.split()[-1] == protocol.encode()
        (form,) = run("group", "describe", topic, "--json").json()
        assert (form["type"], form["lag"]) == ("classic" if protocol == "classic" else "consumer", 0)


def test_after_a_count_the_group_continues_with_the_next_record(run: Run, topic: str) -> None:
    run("group", "reset", topic, "--to", "beginning", "--topic", topic, "--partition", 1)
    first = run("consume", topic, "--group", topic, "--from", "end", "--count", 2, "--json").json()
    assert [(one["partition"], one["value"]) for one in first] == [(1, "5"), (1, "6")]
    assert positions(run, topic) == {0: (5, 0), 1: (2, 1)}
    assert run("consume", topic, "--group", topic, "--from", "end", "--count", 1).out == b"7\n"


def test_ctrl_c_commits_everything_printed(run: Run, start: Start, topic: str) -> None:
    reader = start("consume", topic, "--group", topic, "--from", "beginning")
    assert reader.stdout is not None
    assert sorted(reader.stdout.readline() for _ in range(8)) == [b"%d\n" % number for number in range(8)]
    (form,) = run("group", "describe", topic, "--json").json()
    assert (form["state"], len(form["members"])) == ("Stable", 1)
    assert [one["client_id"] for one in form["members"]] == ["warmlog command line"]
    reader.send_signal(signal.SIGINT)
    assert reader.wait(20) == 130
    assert positions(run, topic) == {0: (5, 0), 1: (3, 0)}
    assert run("group", "describe", topic, "--json").json()[0]["state"] == "Empty"


def test_groups_are_listed(run: Run, topic: str) -> None:
    run("group", "reset", topic, "--to", 1, "--topic", topic)
    rows = [line.split() for line in run("group", "list").out.splitlines()]
    assert rows[0] == [b"group", b"state", b"type", b"protocol-type"]
    assert [topic.encode(), b"Empty"] in [row[:2] for row in rows]
    listed = {form["group"]: form for form in run("group", "list", "--json").json()}
    assert listed[topic] == {"group": topic, "state": "Empty", "protocol_type": "", "type": "classic"}
    assert topic not in [form["group"] for form in run("group", "list", "--state", "stable", "--json").json()]


def test_describe_shows_members_offsets_and_lag(run: Run, broker: Broker, topic: str) -> None:
    run("group", "reset", topic, "--to", 2, "--topic", topic, "--partition", 0)
    with Client(broker.native, client="reader") as client, client.consume(topic, group=topic, auto_commit=False):
        lines = run("group", "describe", topic).out.decode().splitlines()
    assert lines[0] == f"{topic}: Stable, consumer, 1 member, 2 partitions, lag 3, assignor uniform"
    member = lines[lines.index("") + 2].split()
    assert member[1:] == ["reader", "/127.0.0.1", f"{topic}-0", f"{topic}-1"]
    titles = next(line for line in lines if line.startswith("topic"))
    first, second = (line.split() for line in lines[lines.index(titles) + 1 :])
    assert first == [topic, "0", "2", "0", "5", "3", member[0]]
    assert second == [topic, "1", "0", "3", member[0]]


def test_several_groups_are_described_one_after_the_other(run: Run, topic: str) -> None:
    for group in ("several-a", "several-b"):
        run("group", "reset", group, "--to", "end", "--topic", topic)
    told = run("group", "describe", "several-a", "several-b").out.decode()
    assert [line.split(":")[0] for line in told.splitlines() if ": " in line] == ["several-a", "several-b"]


def test_a_group_is_reset_backwards_and_forwards(run: Run, topic: str) -> None:
    done = run("group", "reset", topic, "--to", "beginning", "--topic", topic)
    assert [line.split() for line in done.out.decode().splitlines()] == [
        ["topic", "partition", "before", "after"], [topic, "0", "0"], [topic, "1", "0"],
    ]  # fmt: skip
    changes = run("group", "reset", topic, "--to", "end", "--json").json()
    assert changes == [
        {"group": topic, "topic": topic, "partition": 0, "before": 0, "after": 5, "committed": True},
        {"group": topic, "topic": topic, "partition": 1, "before": 0, "after": 3, "committed": True},
    ]
    run("group", "reset", topic, "--to", 2, "--topic", topic, "--partition", 1)
    assert positions(run, topic) == {0: (5, 0), 1: (2, 1)}
    run("group", "reset", topic, "--to", "1970-01-01T00:00:01Z")
    assert positions(run, topic) == {0: (0, 5), 1: (0, 3)}
    run("group", "reset", topic, "--to", "2999-01-01T00:00:00Z")
    assert positions(run, topic) == {0: (5, 0), 1: (3, 0)}


def test_a_dry_run_changes_nothing(run: Run, topic: str) -> None:
    run("group", "reset", topic, "--to", 1, "--topic", topic)
    told = run("group", "reset", topic, "--to", "end", "--dry-run").out.decode()
    assert "dry run" in told
    assert [line.split()[2:] for line in told.splitlines()[1:3]] == [["1", "5"], ["1", "3"]]
    assert {form["committed"] for form in run("group", "reset", topic, "--to", 0, "--dry-run", "--json").json()} == {
        False
    }
    assert positions(run, topic) == {0: (1, 4), 1: (1, 2)}


def test_a_group_with_members_cannot_be_reset(run: Run, broker: Broker, topic: str) -> None:
    with Client(broker.native) as client, client.consume(topic, group=topic):
        for command in (
            ("reset", topic, "--to", "end"),
            ("reset", topic, "--to", "end", "--dry-run"),
            ("delete", topic),
        ):
            refused = run("group", *command)
            assert (refused.status, refused.out) == (1, b"")
            assert "member" in refused.err
            assert refused.err.count("\n") == 1


def test_a_group_is_deleted(run: Run, topic: str) -> None:
    run("group", "reset", topic, "--to", "end", "--topic", topic)
    assert run("group", "delete", topic).out == f"{topic} deleted\n".encode()
    missing = run("group", "delete", topic)
    assert missing.status == 1
    assert topic in missing.err
    assert run("group", "delete", topic, "--if-exists").out == f"{topic} does not exist\n".encode()
    assert run("group", "delete", topic, "--if-exists", "--json").json() == [{"group": topic, "deleted": False}]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("describe", "nobody"), "nobody"),
        (("reset", "nobody", "--to", "end"), "--topic"),
        (("reset", "nobody", "--to", "end", "--topic", "nothing"), "nothing"),
    ],
)
def test_a_missing_object_is_reported_in_one_line(run: Run, command: tuple[str, ...], message: str) -> None:
    done = run("group", *command)
    assert (done.status, done.out) == (1, b"")
    assert message in done.err
    assert done.err.count("\n") == 1


def test_an_unknown_offset_or_partition_is_rejected(run: Run, topic: str) -> None:
    for options in (("--to", 4), ("--to", "end", "--partition", 2)):
        refused = run("group", "reset", topic, "--topic", topic, *options)
        assert refused.status == 1
        assert refused.err.count("\n") == 1
    assert run("group", "describe", topic).status == 1  # nothing was committed


@pytest.mark.parametrize(
    "command",
    [
        ("reset", "g"),
        ("reset", "g", "--to", "soon"),
        ("reset", "g", "--to", "end", "--partition", "0"),
        ("reset", "g", "--to", "end", "--topic", "a", "--topic", "b", "--partition", "0"),
        ("describe",),
        ("delete",),
    ],
)
def test_conflicting_options_are_rejected(run: Run, command: tuple[str, ...]) -> None:
    assert run("group", *command).status == 2


def test_a_shell_completes_the_names_of_groups(run: Run, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run("group", "reset", topic, "--to", "end", "--topic", topic)
    monkeypatch.setenv("_WARMLOG_COMPLETE", "bash_complete")
    for typed in (f"warmlog group describe {topic[:6]}", f"warmlog consume x --group {topic[:6]}"):
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
        assert f"plain,{topic}" in run().out.decode().split()


def test_json_is_one_object_per_group(run: Run, topic: str) -> None:
    run("group", "reset", topic, "--to", 1, "--topic", topic, "--partition", 1)
    (line,) = run("group", "describe", topic, "--json").out.splitlines()
    form = json.loads(line)
    assert form.keys() == {"group", "state", "type", "protocol_type", "protocol", "members", "positions", "lag"}
    assert form["lag"] == 2
    assert form["positions"] == [
        {
            "topic": topic, "partition": 1, "offset": 1, "leader_epoch": None, "metadata": "",
            "log_start_offset": 0, "high_watermark": 3, "member_id": None, "lag": 2,
        }
    ]  # fmt: skip


def test_all_groups_are_described_in_a_line_each(run: Run, topic: str) -> None:
    run("consume", topic, "--group", topic, "--until-end")
    run("produce", topic, "--partition", 1, stdin=b"a\nb\n")
    rows = [line.split() for line in run("group", "describe", "--all").out.splitlines()]
    assert rows[0] == [b"group", b"state", b"type", b"members", b"partitions", b"lag"]
    assert [topic.encode(), b"Empty", b"consumer", b"0", b"2", b"2"] in rows
    lags = {form["group"]: form["lag"] for form in run("group", "describe", "--all", "--json").json()}
    assert lags[topic] == 2
    for arguments in ((), (topic, "--all")):
        assert run("group", "describe", *arguments).status == 2
