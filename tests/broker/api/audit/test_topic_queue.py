"""The queue of the audit log's topic on appends that fail, are late, or take only small batches."""

import json
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from tests.broker.api.audit.test_audit_log import SESSION, events, refused, until_written
from warmlog.broker.api.audit.audit_log import AuditLog
from warmlog.broker.api.audit.events import MAX_LINE_BYTES, Line, as_line, change
from warmlog.broker.api.audit.topic import MAX_QUEUED_BYTES, PATIENCE_S, AuditTopic
from warmlog.broker.api.audit.topic_appends import Failure
from warmlog.broker.metrics.registry import Metrics
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.reader import decoded_batches
from warmlog.protocol.request import DeleteTopicsRequest
from warmlog.protocol.response import DeleteTopicsResponse

LEADERLESS = Failure(ErrorCode.LEADER_NOT_AVAILABLE, "no leader")


class Appends:
    """A topic in memory. `failing`: the partitions that refuse; `max_bytes`: of a batch."""

    def __init__(self, partitions: int = 1) -> None:
        self.partition_count = 0
        self.partitions = partitions
        self.logs: dict[int, list[bytes]] = {}
        self.failing: set[int] = set()
        self.is_hanging = False
        self.cannot_create: Failure | None = None
        self.max_bytes = 1 << 20
        self.calls = 0

    async def create(self) -> Failure | None:
        self.calls += 1
        if self.cannot_create is None:
            self.partition_count = self.partitions
        return self.cannot_create

    async def append(self, index: int, batch: bytes) -> Failure | None:
        self.calls += 1
        if self.is_hanging:
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        if index in self.failing or index >= self.partition_count:
            return LEADERLESS
        if len(batch) > self.max_bytes:
            return Failure(ErrorCode.MESSAGE_TOO_LARGE, "too large")
        log = self.logs.setdefault(index, [])
        log += [record.value or b"" for _, records in decoded_batches(memoryview(batch)) for record in records]
        return None

    @property
    def values(self) -> list[bytes]:
        return [value for index in sorted(self.logs) for value in self.logs[index]]


def lines(count: int, size: int = 10, key: bytes | None = b"User:alice") -> list[Line]:
    return [Line(b"", b"%0*d" % (size, number), key, number) for number in range(count)]


def sample(metrics: Metrics, name: str) -> float:
    text = metrics.scrape()[1].decode()
    return float(next(line for line in text.splitlines() if line.startswith(f"{name} ")).rsplit(" ", 1)[1])


LOST, APPENDED = (f'warmlog_audit_topic_events_total{{result="{result}"}}' for result in ("lost", "appended"))


@pytest.fixture
def appends() -> Appends:
    return Appends()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def topic(appends: Appends, metrics: Metrics) -> AuditTopic:
    return AuditTopic(appends, metrics, Random(1))


async def test_events_are_appended_in_order_and_in_few_batches(
    topic: AuditTopic, appends: Appends, metrics: Metrics, nursery: trio.Nursery
) -> None:
    nursery.start_soon(topic.run)
    topic.put(lines(5000))
    await topic.drain(60)
    assert appends.values == [line.value for line in lines(5000)]
    assert appends.calls == 1 + 5
    assert (sample(metrics, APPENDED), sample(metrics, "warmlog_audit_topic_queued_bytes")) == (5000, 0)


async def test_events_wait_for_a_topic_that_cannot_be_created_yet(
    topic: AuditTopic, appends: Appends, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    appends.cannot_create = Failure(ErrorCode.INVALID_REPLICATION_FACTOR, "too few brokers")
    nursery.start_soon(topic.run)
    topic.put(lines(3))
    await trio.sleep(600)
    assert 100 < appends.calls < 200  # pauses of 5 s
    appends.cannot_create = None
    await topic.drain(60)
    assert appends.values == [line.value for line in lines(3)]


async def test_no_more_than_the_bound_is_queued_and_what_is_lost_is_counted(
    topic: AuditTopic, appends: Appends, metrics: Metrics, nursery: trio.Nursery
) -> None:
    appends.is_hanging = True
    nursery.start_soon(topic.run)
    for _ in range(40):
        topic.put(lines(1000, size=1000))
        await trio.testing.wait_all_tasks_blocked()
    queued = sample(metrics, "warmlog_audit_topic_queued_bytes")
    assert MAX_QUEUED_BYTES - 2000 < queued <= MAX_QUEUED_BYTES
    lost = sample(metrics, LOST)
    assert lost == 40_000 - queued // 1300
    assert topic.take_lost() is None, "there is no room for an event about it"
    rest = topic.take_rest()
    assert rest is not None
    assert rest.events == 40_000
    assert sample(metrics, "warmlog_audit_topic_queued_bytes") == 0


async def test_what_was_lost_is_told_in_the_topic_and_in_the_file_when_there_is_room(
    topic: AuditTopic, appends: Appends, metrics: Metrics, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    appends.failing = {0}
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, max_bytes=1 << 30, files=2, metrics=Metrics(), broker=7, topic=topic)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        topic.put(lines(1))
        await trio.testing.wait_all_tasks_blocked(0.01)  # so that the reason is known
        topic.put(lines(20_000, size=1000))
        log.refused("produce", None, refused("t"), SESSION)
        await until_written(path, 1)
        await trio.testing.wait_all_tasks_blocked(0.01)
        lost = sample(metrics, LOST)
        assert lost > 0
        appends.failing = set()
        for _ in range(3000):
            written = path.read_bytes().splitlines()
            if len(written) == 2 and written[1] in appends.values:  # else it would be lost, too, by the end
                break
            mock_clock.jump(1)
            await trio.to_thread.run_sync(time.sleep, 0.005)
        await topic.drain(60)
        nursery.cancel_scope.cancel()
    found = events(path)
    assert [each["class_uid"] for each in found] == [6003, 1008]
    assert found[1]["count"] == lost
    assert (found[1]["log_name"], found[1]["status_detail"]) == ("__warmlog_audit", "no leader")
    assert found[1]["start_time"] < found[1]["end_time"]
    assert json.loads(appends.values[-1]) == found[1]
    assert sample(metrics, LOST) == lost


async def test_what_a_stopping_broker_cannot_append_is_told_in_the_file(
    topic: AuditTopic, appends: Appends, tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    appends.is_hanging = True
    path = tmp_path / "audit.jsonl"
    log = AuditLog(path, max_bytes=1 << 20, files=2, metrics=Metrics(), topic=topic)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        for number in range(3):
            log.refused("produce", None, refused(str(number)), SESSION)
        mock_clock.rate = 1000
        await log.finish()
        nursery.cancel_scope.cancel()
    assert [(each["class_uid"], each.get("count")) for each in events(path)] == [(6003, None)] * 3 + [(1008, 3)]


async def test_too_large_a_batch_is_split_and_a_too_large_event_is_lost(
    topic: AuditTopic, appends: Appends, metrics: Metrics, nursery: trio.Nursery
) -> None:
    appends.max_bytes = 5000
    nursery.start_soon(topic.run)
    given = [*lines(100, size=100), Line(b"", b"x" * 6000, b"User:alice", 1), *lines(100, size=99)]
    topic.put(given)
    await topic.drain(60)
    assert appends.values == [line.value for line in given if len(line.value) < 6000]
    lost = topic.take_lost()
    assert lost is not None
    assert (lost.events, lost.why, sample(metrics, LOST)) == (1, "too large", 1)


async def test_a_partition_that_fails_for_long_gives_its_events_to_another(
    topic: AuditTopic, appends: Appends, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    appends.partitions, appends.failing = 3, {0}
    nursery.start_soon(topic.run)
    keys = [b"User:ANONYMOUS", b"User:admin", b"User:stranger", b"User:half"]  # partitions 0, 0, 1, 2
    given = [line for key in keys for line in lines(10, key=key)]
    topic.put(given)
    began = trio.current_time()
    await topic.drain(PATIENCE_S / 2)
    assert len(appends.values) == 20
    await topic.drain(60)
    assert trio.current_time() - began >= PATIENCE_S
    assert [len(appends.logs.get(index, ())) for index in range(3)] == [0, 30, 10]
    assert appends.logs[1][10:] == [line.value for line in given[:20]]
    appends.failing = set()
    topic.put(lines(5, key=b"User:admin"))
    await topic.drain(60)
    assert len(appends.logs[0]) == 5, "it is tried first again"


async def test_a_topic_that_was_deleted_is_created_again(
    topic: AuditTopic, appends: Appends, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    nursery.start_soon(topic.run)
    topic.put(lines(3))
    await topic.drain(60)
    appends.partition_count, appends.partitions = 0, 2
    topic.put(lines(3))
    await topic.drain(60)
    assert appends.partition_count == 2
    assert len(appends.values) == 6


async def test_a_defect_stops_nothing(
    topic: AuditTopic, appends: Appends, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    append, defects = appends.append, iter([ValueError("a defect")])

    async def fails_once(index: int, batch: bytes) -> Failure | None:
        for defect in defects:
            raise defect
        return await append(index, batch)

    appends.append = fails_once  # type: ignore[method-assign]
    nursery.start_soon(topic.run)
    topic.put(lines(3))
    await topic.drain(60)
    assert len(appends.values) == 3


def about(*topics: str, api: str = "delete_topics") -> dict[str, Any]:
    request, response = DeleteTopicsRequest(topics=topics), DeleteTopicsResponse(topics=())
    return change(api, request, response, SESSION, time_ms=1)


def test_refused_writes_to_the_topic_are_in_the_file_only(topic: AuditTopic, metrics: Metrics) -> None:
    event = about("__warmlog_audit-3")
    own = as_line(event | {"api": {"operation": "produce"}}, "1", 1)
    assert own.key is None
    topic.put([own])
    assert sample(metrics, "warmlog_audit_topic_queued_bytes") == 0
    assert as_line(event, "1", 1).key == b"User:ANONYMOUS"


def test_a_line_of_the_topic_fits_into_a_batch() -> None:
    event = about(*["\N{SNOWMAN}" * 300 for _ in range(1000)])
    line = as_line(event, "7-1", 7)
    assert len(line.text) > MAX_LINE_BYTES >= len(line.value)
    whole, part = json.loads(line.text), json.loads(line.value)
    kept = len(part["resources"])
    assert kept > 200
    assert part == whole | {"resources": whole["resources"][:kept], "resources_omitted": 1000 - kept}
