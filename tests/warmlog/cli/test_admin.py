"""Moves, elections, settings and deletions by the command line, in a cluster of real brokers."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.clients.waiting import until
from tests.warmlog.cli.nodes.running import Running, nodes
from warmlog.cli.admin.partition import replace_broker, spread
from warmlog.cli.failure import Failure

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A cluster of three brokers."""
    with nodes(tmp_path_factory.mktemp("nodes") / "data", 3) as running:
        yield running


@pytest.fixture
def admin(run: Run, running: Running, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command against the cluster."""
    monkeypatch.setenv("WARMLOG_NATIVE", running.native[0])
    monkeypatch.setenv("WARMLOG_KAFKA", ",".join(running.kafka))
    return run


def partitions(admin: Run, topic: str) -> list[dict[str, Any]]:
    described: list[dict[str, Any]] = admin("cluster", "describe", "--topic", topic, "--json").json()[0]["partitions"]
    return described


def wait_for_moves(admin: Run) -> None:
    until(lambda: not admin("partition", "moves", "--json").json(), lambda: None, "the end of the moves")


def test_partitions_are_moved_and_led_by_their_preferred_replica(admin: Run) -> None:
    admin("topic", "create", "moved", "--partitions", 2, "--replication-factor", 1)
    assert admin("partition", "move", "moved", "--to", "1,2", "--dry-run").status == 0
    for brokers in ("3,1", "2,3"):
        done = admin("partition", "move", "moved", 1, "--to", brokers)
        assert (done.status, done.out.splitlines()[-1]) == (0, b"1 partition being moved")
        wait_for_moves(admin)
        assert partitions(admin, "moved")[1]["replicas"] == [int(broker) for broker in brokers.split(",")]
    admin("partition", "elect", "moved")
    assert partitions(admin, "moved")[1]["leader"] == 2
    assert admin("partition", "elect").out == b"0 leaders elected\n"
    again = admin("partition", "move", "moved", 1, "--to", "2,3", "--json")
    assert (again.status, again.out) == (0, b"")
    assert admin("partition", "move", "moved", "--cancel").out == b"0 partitions cancelled\n"


def test_the_replicas_of_a_broker_are_given_to_another(admin: Run) -> None:
    admin("topic", "create", "replaced", "--partitions", 3, "--replication-factor", 2)
    held = [one["partition"] for one in partitions(admin, "replaced") if 1 in one["replicas"]]
    moved = next(n for n in held if 2 not in partitions(admin, "replaced")[n]["replicas"])
    assert admin("partition", "move", "replaced", moved, "--replace", "1=2").status == 0
    wait_for_moves(admin)
    assert 1 not in partitions(admin, "replaced")[moved]["replicas"]
    refused = admin("broker", "remove", 3)
    assert refused.status == 1
    assert "broker 3 has replicas of" in refused.err
    assert "partition move --replace 3=NEW" in refused.err


def test_settings_are_changed_and_reset(admin: Run) -> None:
    admin("topic", "create", "configured")
    assert admin("config", "set", "topic", "configured", "retention.ms=1000").status == 0
    assert admin("config", "show", "topic", "configured", "--json").json() == [
        {"name": "retention.ms", "value": "1000", "source": "topic", "read_only": False}
    ]
    assert b"segment.bytes" in admin("config", "show", "topic", "configured", "--all").out
    assert admin("config", "unset", "topic", "configured", "retention.ms").status == 0
    assert admin("config", "show", "topic", "configured", "--json").json() == []
    assert b"every setting has its default; --all shows them" in admin("config", "show", "topic", "configured").out
    for broker in ("2", "default"):
        assert admin("config", "set", "broker", broker, "log.retention.ms=86400000").status == 0
        assert b"86400000" in admin("config", "show", "broker", broker).out
        assert admin("config", "unset", "broker", broker, "log.retention.ms").status == 0
        assert b"86400000" not in admin("config", "show", "broker", broker).out


def test_records_are_deleted(admin: Run) -> None:
    admin("topic", "create", "shortened", "--replication-factor", 2)
    admin("produce", "shortened", stdin=b"a\nb\nc\n")
    assert admin("records", "delete", "shortened", 0, "--before", 2).out == b"shortened-0 begins at offset 2\n"
    assert admin("consume", "shortened", "--until-end").out == b"c\n"
    assert admin("records", "delete", "shortened", 0, "--before", "end").out == b"shortened-0 begins at offset 3\n"


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        (("partition", "move", "wrong", "--to", "1", "--cancel"), 2, "Give one of --to, --replace and --cancel"),
        (("partition", "move", "--to", "1"), 2, "--to needs a TOPIC"),
        (("partition", "move", "wrong", "--to", "1,1"), 2, "names a broker twice"),
        (("partition", "move", "wrong", "--to", "a"), 2, "not a list of broker ids"),
        (("partition", "move", "wrong", "--replace", "1"), 2, "expected broker ids like 3=5"),
        (("partition", "move", "wrong", "0", "--to", "77"), 1, "wrong-0: unknown broker 77"),
        (("partition", "move", "wrong", "5", "--to", "1"), 1, "no partition 5 of a topic 'wrong'"),
        (("partition", "move", "absent", "--to", "1"), 1, "no topic 'absent'"),
        (("partition", "elect", "--unclean"), 2, "--unclean needs a TOPIC"),
        (("config", "set", "broker", "77", "a=b"), 1, "broker 77 is not in the cluster, which has 1, 2, 3"),
        (("config", "set", "broker", "x", "a=b"), 1, "neither the id of a broker nor 'default'"),
        (("config", "set", "topic", "wrong", "a=b"), 1, "topic wrong: unknown"),
        (("config", "show", "topic", "absent"), 1, "topic absent: "),
        (("records", "delete", "wrong", "0", "--before", "5"), 1, "wrong-0: OFFSET_OUT_OF_RANGE"),
        (("records", "delete", "wrong", "0", "--before", "-5"), 2, "neither an offset nor"),
        (("records", "delete", "absent", "0", "--before", "5"), 1, "no partition 0 of a topic 'absent'"),
        (("broker", "remove", "77"), 1, "77"),
        (("partition", "moves", "--kafka", "127.0.0.1:1"), 1, "cannot connect to 127.0.0.1:1"),
    ],
)
def test_a_wrong_command_is_refused_in_one_line(
    admin: Run, command: tuple[str, ...], status: int, message: str
) -> None:
    admin("topic", "create", "wrong", "--if-not-exists")
    done = admin(*command)
    assert (done.status, done.out) == (status, b"")
    assert message in done.err
    assert done.err.count("\n") == 1


def test_the_native_listener_is_told_apart(admin: Run, running: Running) -> None:
    done = admin("partition", "moves", "--kafka", running.native[0])
    assert done.status == 1
    assert "no Kafka listener" in done.err


def test_names_of_settings_are_completed(admin: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for words, completed in (
        ("warmlog config set topic t retention.m", b"retention.ms="),
        ("warmlog config unset broker 1 log.retention.h", b"log.retention.hours"),
    ):
        monkeypatch.setenv("_WARMLOG_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", "5")
        assert completed in admin().out


def test_partitions_are_spread_evenly() -> None:
    after = spread({("t", n): (9, 8, 7) for n in range(12)}, (1, 2, 3, 4))
    assert all(len(set(replicas)) == 3 for replicas in after.values())
    for position in range(3):
        brokers = [replicas[position] for replicas in after.values()]
        assert {brokers.count(broker) for broker in (1, 2, 3, 4)} == {3}
    assert spread({("t", 0): (5,)}, (1,)) == {("t", 0): (1,)}
    with pytest.raises(Failure, match="3 replicas of each partition"):
        spread({("t", 0): (1, 2, 3)}, (1, 2))


def test_a_broker_is_replaced_only_where_it_is() -> None:
    before = {("t", 0): (1, 2), ("t", 1): (2, 3)}
    assert replace_broker(before, 1, 4) == {("t", 0): (4, 2)}
    with pytest.raises(Failure, match="t-1: broker 3 has a replica already"):
        replace_broker(before, 2, 3)
