"""`warmlog audit-log --topic` on a secured broker."""

import json
import subprocess
import sys
from pathlib import Path
from threading import Timer

import anyio

from tests.warmlog.cli.test_secure import served
from tests.warmlog.cli.test_tls import run
from warmlog.cli.security.audit_topic import MAX_KNOWN, _merged, _Seen
from warmlog.client import ConsumedRecord

LIMIT_S = 60


def test_the_topic_is_shown_and_followed(tmp_path: Path) -> None:
    secrets = tmp_path / "data-secrets"
    login = ("--tls-ca", secrets / "ca.pem", "--user", "admin", "--password-file", secrets / "admin.password")
    with served(tmp_path, "--set", "warmlog.audit.topic=true") as (_, addresses):
        native = ("--native", addresses["native"])
        assert run(*login, "topic", "create", "orders", *native)[0] == 0
        command = [sys.executable, "-m", "warmlog", *login, "audit-log", "--topic", "--follow", "--json", *native]
        with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as followed:
            overdue = Timer(LIMIT_S, followed.kill)
            overdue.start()
            assert followed.stdout is not None
            events = []
            for line in followed.stdout:
                events.append(json.loads(line))
                about = [each["name"] for each in events[-1].get("resources", ())]
                if about == ["orders"]:
                    assert run(*login, "topic", "create", "later", *native)[0] == 0
                elif about == ["later"]:
                    break
            followed.terminate()
            overdue.cancel()
        assert about == ["later"]
        assert len({event["metadata"]["uid"] for event in events}) == len(events)
        status, shown = run(*login, "audit-log", "--topic", "--resource", "later", *native)
        assert (status, len(shown.splitlines())) == (0, 1)
        assert "User:admin 127.0.0.1 create_topics topic later" in shown
        in_file = run("audit-log", secrets / "audit.jsonl", "--resource", "later")[1]
        assert shown == in_file
        assert run(*login, "audit-log", "--topic", "--since", "2999-01-01", *native) == (0, "")


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    for words, expected in (
        ((), "Name the FILE of an audit log, or use --topic."),
        (("--topic", tmp_path / "audit.jsonl"), "Name the FILE of an audit log, or use --topic."),
        (("--follow", tmp_path / "audit.jsonl"), "--follow needs --topic"),
    ):
        status, shown = run("audit-log", *words)
        assert (status, expected in shown) == (2, True), shown
    secrets = tmp_path / "data-secrets"
    login = ("--tls-ca", secrets / "ca.pem", "--user", "admin", "--password-file", secrets / "admin.password")
    with served(tmp_path) as (_, addresses):
        status, shown = run(*login, "audit-log", "--topic", "--native", addresses["native"])
        assert (status, "no topic __warmlog_audit: no broker has warmlog.audit.topic=true" in shown) == (1, True), shown


class Stream:
    """Lists of records of a partition."""

    def __init__(self, partition: int, *lists: list[int]) -> None:
        self._lists = iter([[record(partition, time) for time in each] for each in lists])

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> list[ConsumedRecord]:
        found = next(self._lists, None)
        if found is None:
            raise StopAsyncIteration
        return found


def record(partition: int, time_ms: int) -> ConsumedRecord:
    value = b"%d-%d" % (partition, time_ms)
    return ConsumedRecord(TOPIC, partition, 0, time_ms, b"", value)


TOPIC = "__warmlog_audit"


def test_partitions_are_merged_by_time() -> None:
    async def merge() -> list[tuple[int, int]]:
        streams = [Stream(0, [1, 4], [6]), Stream(1), Stream(2, [2], [3, 5, 9])]
        return [(each.timestamp, each.partition) async for each in _merged(streams)]  # type: ignore[arg-type]

    found = anyio.run(merge, backend="trio")
    assert found == [(1, 0), (2, 2), (3, 2), (4, 0), (5, 2), (6, 0), (9, 2)]


def test_repeated_values_are_left_out_and_few_are_kept() -> None:
    seen = _Seen()
    assert [seen.is_new(record(0, each)) for each in (1, 2, 1, 2, 3)] == [True, True, False, False, True]
    for number in range(2 * MAX_KNOWN):
        seen.is_new(record(1, number))
    assert len(seen._known) == MAX_KNOWN
