"""Retries of the sink, its limits on requests in flight, and its report."""

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.sink.attempt import patience, some_identity
from warmlog.pipeline.broker import Retry, RetryingBroker, reply_error
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.sink.options import WriteOptions
from warmlog.pipeline.sink.sender import MAX_IN_FLIGHT, MAX_REQUEST_BYTES, BatchSender, SinkBatch
from warmlog.pipeline.sink.task import TaskReport
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.layout import Codec
from warmlog.protocol.request import MetadataRequest, ProduceRequest
from warmlog.protocol.response import MetadataResponse, ProducedPartition, ProduceResponse
from warmlog.testing import Broker


def refusing(refusals: int) -> tuple[list[int], Callable[[MetadataResponse], None]]:
    """A check that finds that a reply cannot count yet, so many times; and how often it was asked."""
    asked: list[int] = []

    def check(reply: MetadataResponse) -> None:
        asked.append(len(reply.topics))
        if len(asked) <= refusals:
            raise reply_error(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is away", about="t-0")

    return asked, check


def test_an_error_that_may_pass_is_waited_for(broker: Broker) -> None:
    asked, check = refusing(3)
    with RetryingBroker(broker.native, patience()) as patient:
        connection = patient.connection()
        patient.ask(MetadataRequest(), MetadataResponse, check)
        assert patient.connection() is connection  # a reply came, so nothing was wrong with it
    assert len(asked) == 4


def test_an_error_that_does_not_pass_is_given_up_whatever_the_broker_replies(broker: Broker) -> None:
    clock = count(0, 10)
    asked, check = refusing(1000)
    with (
        RetryingBroker(broker.native, patience(lambda: next(clock))) as patient,
        pytest.raises(PipelineError, match=r"t-0: the disk is away; gave up after 30 s \(deliveryTimeoutMs\)"),
    ):
        patient.ask(MetadataRequest(), MetadataResponse, check)
    assert len(asked) == 4


class SlowBroker:
    """In place of a RetryingBroker: answers only when it is asked for a reply, and counts what is not answered."""

    def __init__(self) -> None:
        self.retry = Retry()
        self.unanswered: list[ProduceRequest] = []
        self.most_requests = 0
        self.most_bytes = 0

    def connection(self) -> "SlowBroker":
        return self

    def send(self, request: ProduceRequest) -> None:
        self.unanswered.append(request)
        self.most_requests = max(self.most_requests, len(self.unanswered))
        sizes = [len(part.records) for each in self.unanswered for part in each.partitions]
        self.most_bytes = max(self.most_bytes, sum(sizes))

    def receive(self, _: Any) -> ProduceResponse:
        parts = self.unanswered.pop(0).partitions
        return ProduceResponse(
            partitions=tuple(ProducedPartition(topic=part.topic, partition=part.partition) for part in parts)
        )


@pytest.mark.parametrize(
    ("partitions", "buffer_bytes", "most"),
    [(50, 100 << 20, MAX_IN_FLIGHT), (50, 6 << 20, 3), (50, 1, 1), (2, 100 << 20, 2), (1, 100 << 20, 1)],
)
def test_what_is_in_flight_is_bounded_and_of_a_partition_it_is_one(
    partitions: int, buffer_bytes: int, most: int
) -> None:
    slow: Any = SlowBroker()
    sender = BatchSender(slow, some_identity(), Codec.NONE, buffer_bytes)
    for at in range(50):
        batch = SinkBatch(
            topic="t", partition=at % partitions, base_sequence=at, count=1, encoded=bytes(MAX_REQUEST_BYTES)
        )
        sender.send(batch)
    sender.flush()
    assert (slow.most_requests, slow.most_bytes) == (most, most * MAX_REQUEST_BYTES)
    assert (sender.tally.rows, sender.tally.batches) == (50, 50)


def test_a_report_is_a_line_of_json(tmp_path: Path) -> None:
    from warmlog.pipeline.sink.writer import TaskMessage, report

    asked = WriteOptions(bootstrap="h", topic="t", report=str(tmp_path / "report"))
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
