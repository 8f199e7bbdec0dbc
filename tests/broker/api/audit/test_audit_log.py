"""The audit log: what real brokers write, and what happens when the file cannot be written or fills."""

import json
import time
from pathlib import Path
from stat import S_IMODE
from typing import Any

import pytest
import trio
import trio.lowlevel
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.broker.api.authorization.rig import Certificates, secured
from tests.broker.api.authorization.test_walk import GROUP, ID, TOPIC, api_of, ask, asked, walked
from tests.broker.clients import running
from tests.broker.kafka_client import kafka_client
from tests.broker.net.sasl import upsertion
from tests.warmlog.cli.test_secure import properties, served
from tests.warmlog.cli.test_tls import run
from warmlog.broker.api.audit.audit_log import (
    MAX_KEPT,
    MAX_OF_SENDER,
    MAX_SENDERS,
    MAX_WAITING_BYTES,
    REPEAT_S,
    AuditLog,
)
from warmlog.broker.api.audit.changes import CHANGES
from warmlog.broker.api.audit.events import EVENT_BYTES
from warmlog.broker.api.authorization.table import ROWS
from warmlog.broker.api.context import Session
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.start_errors import StartError
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.response import ProducedPartition, ProduceResponse
from warmlog.protocol.scram import SCRAM_SHA_256

SESSION = Session(listener="kafka", peer=("127.0.0.1", 1), local=("127.0.0.1", 2))
#: These change nothing that an administrator is responsible for, or read.
OTHERS = {
    "produce", "fetch", "list_offsets", "offset_for_leader_epoch", "explain", "metadata", "describe_topic_partitions",
    "describe_topics", "describe_log_dirs", "list_partition_reassignments", "describe_mirror", "find_coordinator",
    "join_group", "sync_group", "heartbeat", "leave_group", "join_consumer_group", "offset_commit", "offset_fetch",
    "list_groups", "describe_groups", "describe_consumer_groups", "heartbeat_consumer_group",
    "consumer_group_heartbeat",
    "share_group_heartbeat", "share_group_describe", "describe_share_group_offsets",
    "heartbeat_share_group", "fetch_share_group", "acknowledge_share_group", "share_fetch", "share_acknowledge",
    "initialize_share_group_state", "read_share_group_state", "write_share_group_state", "delete_share_group_state",
    "read_share_group_state_summary", "streams_group_heartbeat", "streams_group_describe",
    "streams_group_topology_description_update",
    "consumer_group_describe", "init_producer_id", "add_partitions_to_txn", "add_offsets_to_txn", "txn_offset_commit",
    "end_txn", "write_txn_markers", "describe_transactions", "list_transactions", "describe_producers",
    "describe_producer", "describe_configs", "list_config_resources", "describe_cluster", "describe_quorum",
    "describe_acls", "describe_client_quotas", "describe_user_scram_credentials", "describe_delegation_token",
    "hello", "api_versions", "sasl_handshake", "sasl_authenticate", "authenticate",
}  # fmt: skip
#: Answered alike by every broker that does not have them.
NOT_SERVED = {"add_raft_voter", "remove_raft_voter"}


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_api_changes_something_or_not() -> None:
    assert CHANGES.keys() | OTHERS | NOT_SERVED == ROWS.keys()
    assert not CHANGES.keys() & OTHERS


async def test_what_a_stranger_asks_of_any_api_is_recorded(certificates: Certificates, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with secured(certificates, tmp_path / "data", warmlog_audit_file=path) as broker:
        await broker.prepare(TOPIC, GROUP, ID)
        stranger = await broker.client("stranger")
        expected = set()
        for api, version in walked():
            await ask(stranger, api, version, asked(api, version, TOPIC, GROUP, ID, bytes(16)))
            if ROWS[api_of(api)].missing not in {"", "left out"}:
                expected.add(api_of(api))
    found = [each for each in events(path) if each["actor"]["user"]["name"] == "User:stranger"]
    assert {each["api"]["operation"] for each in found} == expected
    for each in found:
        assert (each["class_uid"], each["status_id"], each["src_endpoint"]["ip"]) == (6003, 2, "127.0.0.1")
        assert each["action"] == "Denied", each
        assert each["resources"], each


async def test_changes_are_recorded_before_they_are_answered_and_hold_no_secrets(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    settings = {"warmlog.audit.file": path}
    async with running(tmp_path / "data", settings) as broker, kafka_client(broker.addresses.kafka) as client:
        topic = {"name": "t", "num_partitions": 3, "replication_factor": 1, "configs": []}
        await client.ask("CreateTopics", topics=[topic, {**topic, "name": "no/name"}], timeout_ms=30_000)
        (created,) = events(path)
        change = {"name": "retention.ms", "config_operation": 0, "value": "123456"}
        await client.ask(
            "IncrementalAlterConfigs",
            resources=[{"resource_type": 2, "resource_name": "t", "configs": [change]}],
            validate_only=False,
        )
        user = upsertion("alice", SCRAM_SHA_256)
        await client.ask("AlterUserScramCredentials", deletions=[], upsertions=[user])
        await client.ask("DeleteTopics", topics=[{"name": "t", "topic_id": bytes(16)}], timeout_ms=30_000)
        names = [each["api"]["operation"] for each in events(path)]
    assert names == ["create_topics", "alter_configs", "alter_user_scram_credentials", "delete_topics"]
    assert created["resources"][0] == {
        "type": "topic", "name": "t", "data": {"partitions": 3, "replication_factor": 1}
    }  # fmt: skip
    assert created["resources"][1]["error"] == "INVALID_TOPIC_EXCEPTION"
    assert (created["activity_id"], created["type_uid"], created["status"]) == (1, 600301, "Failure")
    text = path.read_text()
    assert "123456" not in text
    assert user["salted_password"].hex() not in text
    assert "retention.ms" in text
    assert S_IMODE(path.stat().st_mode) == 0o600


def test_logins_of_a_secured_broker_are_recorded_and_shown(tmp_path: Path) -> None:
    with served(tmp_path) as (_, addresses):
        secrets = tmp_path / "data-secrets"
        login = ("--tls-ca", secrets / "ca.pem", "--user", "admin", "--password-file", secrets / "admin.password")
        assert run(*login, "topic", "create", "orders", "--native", addresses["native"])[0] == 0
        assert "admin" in properties(secrets)["sasl.jaas.config"]
        wrong = AdminClient({
            "bootstrap.servers": addresses["kafka"], "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(secrets / "ca.pem"), "sasl.mechanism": "SCRAM-SHA-512", "log_level": 0,
            "sasl.username": "admin", "sasl.password": "WRONG-PASSWORD",
        })  # fmt: skip
        with pytest.raises(KafkaException):
            wrong.list_topics(timeout=3)
    path = secrets / "audit.jsonl"
    status, shown = run("audit-log", path)
    assert status == 0, shown
    lines = shown.splitlines()
    assert any(line.endswith("User:admin 127.0.0.1 login with SCRAM-SHA-512: ok") for line in lines)
    assert any("User:admin 127.0.0.1 create_topics topic orders" in line and line.endswith(": ok") for line in lines)
    status, failed = run("audit-log", path, "--failed")
    assert "login with SCRAM-SHA-512: failed: invalid credentials" in failed
    assert "create_topics" not in failed
    assert "WRONG-PASSWORD" not in path.read_text()
    assert len(run("audit-log", path, "--resource", "orders", "--json")[1].splitlines()) == 1
    assert run("audit-log", path, "--since", "2999-01-01")[1] == ""
    status, problem = run("audit-log", path, "--since", "yesterday")
    assert (status, "is not a time" in problem) == (2, True)
    status, problem = run("audit-log", path, "--user", "admin")
    assert (status, "User:admin" in problem) == (2, True)
    whole = path.read_bytes()
    path.write_bytes(b"no event\n\xff\xfe\n[]\n\n" + b'{"actor":5}\n' + whole + b'{"time": 1')
    status, shown = run("audit-log", path)
    assert (status, "skipped 5 lines without an event: 1, 2, 3 and others" in shown) == (0, True)
    assert [line for line in shown.splitlines() if "skipped" not in line] == lines
    assert run("audit-log", tmp_path / "none")[0] == 1


# -- the file ----------------------------------------------------------------------------------------------------------


def refused(topic: str) -> ProduceResponse:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ProduceResponse(partitions=(ProducedPartition(topic=topic, partition=0, error=code),))


async def written(log: AuditLog) -> None:
    """Run a log until what was added is in the file."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def until_written(path: Path, count: int) -> None:
    """Return when a file has so many lines, whatever clock trio has."""
    for _ in range(3000):
        if path.exists() and path.read_text().count("\n") >= count:
            return
        await trio.to_thread.run_sync(time.sleep, 0.01)
    raise AssertionError(path.read_text())


def named(event: dict[str, Any]) -> str:
    name: str = event["resources"][0]["name"]
    return name


def sample(metrics: Metrics, result: str) -> float:
    name = f'warmlog_audit_events_total{{result="{result}"}} '
    text = metrics.scrape()[1].decode()
    return float(next(line for line in text.splitlines() if line.startswith(name)).rsplit(" ", 1)[1])


async def test_a_full_disk_stops_nothing_and_is_counted(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").symlink_to("/dev/full")
    settings = {"warmlog.audit.file": tmp_path / "audit.jsonl"}
    async with running(tmp_path / "data", settings) as broker, kafka_client(broker.addresses.kafka) as client:
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 1, "configs": []}
        reply = await client.ask("CreateTopics", topics=[topic], timeout_ms=30_000)
        assert reply["topics"][0]["error_code"] == 0


async def test_repeated_refusals_are_counted(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    metrics, path = Metrics(), tmp_path / "audit.jsonl"
    log = AuditLog(path, max_bytes=1 << 20, files=2, metrics=metrics)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        for _ in range(100):
            log.refused("produce", None, refused("t"), SESSION)
        log.refused("produce", None, refused("u"), SESSION)
        await until_written(path, 2)
        mock_clock.jump(2 * REPEAT_S)
        await until_written(path, 3)
        log.refused("produce", None, refused("t"), SESSION)
        log.refused("produce", None, refused("t"), SESSION)
        nursery.cancel_scope.cancel()
    counts = [(named(each), each.get("count")) for each in events(path)]
    assert counts == [("t-0", None), ("u-0", None), ("t-0", 99), ("t-0", None), ("t-0", 1)]
    assert (sample(metrics, "repeated"), sample(metrics, "written")) == (100, 5)


async def test_who_is_refused_cannot_fill_the_file(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, max_bytes=1 << 20, files=2, metrics=Metrics())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        for number in range(10_000):
            log.refused("produce", None, refused(f"t{number}"), SESSION)
        mock_clock.jump(2 * REPEAT_S)
        await until_written(path, MAX_OF_SENDER + 1)
        nursery.cancel_scope.cancel()
    found = events(path)
    assert len(found) == MAX_OF_SENDER + 1
    assert (found[-1]["count"], found[-1]["message"]) == (10_000 - MAX_OF_SENDER, "further refusals")
    assert len(log._recent) == len(log._senders) == 0


async def test_who_logs_in_again_and_again_cannot_fill_the_file(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, max_bytes=1 << 20, files=2, metrics=Metrics())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        for _ in range(10_000):
            log.login(SESSION, "User:bob", "PLAIN", is_ok=True)
        log.refused("produce", None, refused("t"), SESSION)
        mock_clock.jump(2 * REPEAT_S)
        await until_written(path, MAX_OF_SENDER + 2)
        nursery.cancel_scope.cancel()
    found = events(path)
    assert named(found[MAX_OF_SENDER]) == "t-0", "logins hide no refusal"
    assert (found[-1]["count"], found[-1]["message"]) == (10_000 - MAX_OF_SENDER, "further logins")


async def test_senders_beyond_the_bound_are_counted_together(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, max_bytes=16 << 20, files=2, metrics=Metrics())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        for number in range(MAX_SENDERS + 1000):
            session = Session(
                listener="kafka", peer=(f"10.0.{number // 256}.{number % 256}", 1), local=("127.0.0.1", 2)
            )
            log.login(session, "User:bob", "PLAIN", is_ok=True)
        mock_clock.jump(2 * REPEAT_S)
        await until_written(path, MAX_SENDERS + MAX_OF_SENDER + 1)
        nursery.cancel_scope.cancel()
    assert events(path)[-1]["count"] == 1000 - MAX_OF_SENDER


async def test_a_file_that_is_moved_or_removed_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, max_bytes=1 << 20, files=2, metrics=Metrics())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        for number in range(3):
            log.refused("produce", None, refused(str(number)), SESSION)
            await until_written(path, 1)
            assert [named(each) for each in events(path)] == [f"{number}-0"]
            path.rename(tmp_path / f"moved-{number}")
        nursery.cancel_scope.cancel()


async def test_memory_is_bounded_while_nothing_is_written(tmp_path: Path) -> None:
    metrics = Metrics()
    log = AuditLog(tmp_path / "audit.jsonl", max_bytes=1 << 20, files=2, metrics=metrics)
    for number in range(2 * MAX_KEPT):
        peer = f"10.0.{number // 256}.{number % 256}", 1
        sender = Session(listener="kafka", peer=peer, local=("127.0.0.1", 2))
        for topic in range(10):
            log.refused("produce", None, refused(str(topic)), sender)
    assert len(log._waiting) <= MAX_WAITING_BYTES // EVENT_BYTES
    assert (len(log._recent), len(log._senders)) == (MAX_KEPT, MAX_SENDERS + 1)
    await written(log)


async def test_a_full_file_is_followed_by_another_and_few_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, max_bytes=10_000, files=2, metrics=Metrics())
    for number in range(200):
        sender = Session(listener="kafka", peer=(f"10.0.0.{number // 50}", 1), local=("127.0.0.1", 2))
        log.refused("produce", None, refused(f"topic-{number:04d}"), sender)
    await written(log)
    files = sorted(each.name for each in tmp_path.iterdir())
    assert files == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert all(each.stat().st_size <= 10_000 and S_IMODE(each.stat().st_mode) == 0o600 for each in tmp_path.iterdir())
    shown = run("audit-log", path)[1].splitlines()
    numbers = [int(line.split("topic-")[1][:4]) for line in shown]
    assert numbers == list(range(numbers[0], 200))
    assert len(numbers) == sum(len(events(tmp_path / name)) for name in files)


async def test_a_file_that_cannot_be_written_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BaseException) as raised:  # noqa: PT011
        async with running(tmp_path / "data", {"warmlog.audit.file": tmp_path / "file" / "audit.jsonl"}):
            pass
    problems = raised.group_contains(StartError, match="warmlog.audit.file: ") or "warmlog.audit.file" in str(raised)
    assert problems
