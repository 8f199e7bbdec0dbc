"""Data directories by the command line: what they hold, and a partition that is moved to another one."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.waiting import until
from warmlog import Client
from warmlog.testing import Broker

Run = Callable[..., Any]
COUNT = 500


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """The data directories of a broker, which the commands connect to."""
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    with Broker(settings={"log.dirs": f"{first},{second}"}) as broker:
        monkeypatch.setenv("WARMLOG_NATIVE", broker.native)
        monkeypatch.setenv("WARMLOG_KAFKA", broker.kafka)
        with Client(broker.native) as client:
            client.create_topic("orders", partitions=1)
            client.produce_many("orders", [b"%d" % number for number in range(COUNT)])
            yield first, second
            assert len(list(client.consume("orders", until_end=True))) == COUNT


def held(run: Run) -> dict[str, dict[str, Any]]:
    return {one["directory"]: one for one in run("broker", "directories", "--json").json()}


def test_a_partition_is_moved_to_another_directory(run: Run, disks: tuple[str, str]) -> None:
    before = held(run)
    (source,) = [path for path in disks if before[path]["partitions"]]
    (target,) = [path for path in disks if path != source]
    assert before[source]["free_bytes"] > 0
    done = run("partition", "relocate", "orders", 0, "--to", target)
    assert (done.status, done.out.decode()) == (0, f"orders-0: being moved to {target} of broker 1\n")
    until(lambda: not held(run)[source]["partitions"], lambda: None, "the end of the move")
    (found,) = held(run)[target]["partitions"]
    assert found == {"topic": "orders", "partition": 0, "bytes": before[source]["partitions"][0]["bytes"]}
    table = run("broker", "directories", 1).out.decode().splitlines()
    assert [line.split()[:3] for line in table[1:]] == [["1", path, str(int(path == target))] for path in disks]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("partition", "relocate", "orders", "0", "--to", "/none"), "broker 1 has no data directory /none: it has /"),
        (("partition", "relocate", "orders", "7", "--to", "/none"), "no partition 7 of a topic 'orders'"),
        (("partition", "relocate", "orders", "0", "--to", "/none", "--broker", "5"), "orders-0 is not on broker 5"),
        (("broker", "directories", "5"), "broker 5 is not in the cluster, which has 1"),
    ],
)
def test_what_is_not_there_is_named(run: Run, disks: tuple[str, str], command: tuple[str, ...], message: str) -> None:
    done = run(*command)
    assert (done.status, done.out) == (1, b"")
    assert message in done.err
