"""Retries of the sink, its limits on requests in flight, and its report."""

import json
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.sink.attempt import patience, some_identity
from warmlog.pipeline.brokers import Brokers
from warmlog.pipeline.cluster import reply_error
from warmlog.pipeline.errors import PipelineError, UnavailableError
from warmlog.pipeline.retry import Retry
from warmlog.pipeline.sink.options import WriteOptions
from warmlog.pipeline.sink.sender import MAX_IN_FLIGHT, MAX_REQUEST_BYTES, BatchSender, SinkBatch
from warmlog.pipeline.sink.task import TaskReport
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.layout import Codec
from warmlog.protocol.request import ProduceRequest
from warmlog.protocol.response import ProducedPartition, ProduceResponse


def refusing(refusals: int) -> tuple[list[int], Callable[[], None]]:
    """An act that fails so many times as it may for a while; and how often it was tried."""
    tried: list[int] = []

    def act() -> None:
        tried.append(len(tried))
        if len(tried) <= refusals:
            raise reply_error(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is away", about="t-0")

    return tried, act


def test_an_error_that_may_pass_is_waited_for() -> None:
    tried, act = refusing(3)
    patience().call(act)
    assert len(tried) == 4


def test_an_error_that_does_not_pass_is_given_up_whatever_the_broker_replies() -> None:
    clock = count(0, 10)
    tried, act = refusing(1000)
    with pytest.raises(PipelineError, match=r"t-0: the disk is away; gave up after 30 s \(deliveryTimeoutMs\)"):
        patience(lambda: next(clock)).call(act)
    assert len(tried) == 4


def test_another_broker_is_asked_at_once() -> None:
    pauses: list[float] = []
    retry = Retry(sleep=pauses.append)
    for code in (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_LEADER_OR_FOLLOWER):
        error = reply_error(code, None)
        assert isinstance(error, UnavailableError)
        retry.wait(error)
    assert len(pauses) == 2


LEADERS = 3


class SlowCluster:
    """In place of a ClusterConnection: answers only when a reply is awaited, and counts what is not answered."""

    def __init__(self) -> None:
        self.retry = Retry()
        self.moved = 0
        self.unanswered: list[tuple[int, ProduceRequest]] = []
        self.most_requests = 0
        self.most_bytes = 0
        self.stored: dict[int, list[int]] = {}

    def leader(self, _: str, partition: int) -> int:
        return (partition + self.moved) % LEADERS

    def submit(self, leader: int, request: ProduceRequest, _: Any) -> tuple[int, ProduceRequest]:
        sent = leader, request
        self.unanswered.append(sent)
        self.most_requests = max(self.most_requests, *Counter(at for at, _ in self.unanswered).values())
        sizes = [len(part.records) for _, each in self.unanswered for part in each.partitions]
        self.most_bytes = max(self.most_bytes, sum(sizes))
        assert len(sizes) == len({part.partition for _, each in self.unanswered for part in each.partitions})
        return sent

    def wait(self, sent: tuple[int, ProduceRequest]) -> ProduceResponse:
        self.unanswered.remove(sent)
        for part in sent[1].partitions:
            self.stored.setdefault(part.partition, []).append(bytes(part.records[:1])[0])
        return ProduceResponse(
            partitions=tuple(
                ProducedPartition(topic=part.topic, partition=part.partition) for part in sent[1].partitions
            )
        )


@pytest.mark.parametrize(
    ("partitions", "buffer_bytes", "requests", "in_all"),
    [
        (50, 100 << 20, MAX_IN_FLIGHT, 15),
        (50, 6 << 20, 1, 3),
        (50, 1, 1, 1),
        (2, 100 << 20, 1, 2),
        (1, 100 << 20, 1, 1),
    ],
)
def test_what_is_in_flight_is_bounded_and_of_a_partition_it_is_one(
    partitions: int, buffer_bytes: int, requests: int, in_all: int
) -> None:
    slow: Any = SlowCluster()
    sender = BatchSender(slow, some_identity(), Codec.NONE, buffer_bytes)
    for at in range(50):
        batch = SinkBatch(
            topic="t", partition=at % partitions, base_sequence=at, count=1, encoded=bytes(MAX_REQUEST_BYTES)
        )
        sender.send(batch)
    sender.flush()
    assert (slow.most_requests, slow.most_bytes) == (requests, in_all * MAX_REQUEST_BYTES)
    assert (sender.tally.rows, sender.tally.batches) == (50, 50)


def test_batches_of_a_partition_keep_their_order_where_its_leader_changes() -> None:
    slow: Any = SlowCluster()
    sender = BatchSender(slow, some_identity(), Codec.NONE, 1 << 20)
    for at in range(60):
        slow.moved = at // 7
        sender.send(SinkBatch(topic="t", partition=at % 2, base_sequence=at, count=1, encoded=bytes([at])))
    sender.flush()
    assert slow.stored == {0: list(range(0, 60, 2)), 1: list(range(1, 60, 2))}


def test_a_report_is_a_line_of_json(tmp_path: Path) -> None:
    from warmlog.pipeline.sink.writer import TaskMessage, report

    asked = WriteOptions(brokers=Brokers(addresses="h"), topic="t", report=str(tmp_path / "report"))
    report(asked, [TaskMessage(TaskReport(rows=2, bytes=70)), TaskMessage(TaskReport(rows=3, bytes=80))], "done", 4)
    report(asked, [None], "failed")
    first, second = map(json.loads, (tmp_path / "report").read_text().splitlines())
    assert (first["rows"], first["bytes"], first["tasks"], first["batch_id"], first["outcome"]) == (
        5,
        150,
        2,
        4,
        "done",
    )
    assert (second["rows"], second["outcome"]) == (0, "failed")
