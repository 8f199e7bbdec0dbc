"""Requests about topics that go meanwhile, are asked for too often, or have names that no topic can have."""

import logging
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest
import trio
from msgspec import UNSET

from tests.broker.clients import Running, batch, fetch_request, produce_request
from warmlog.broker.log.reads.log_reads import LogReads
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import (
    DeleteTopicsRequest,
    DescribeTopicsRequest,
    HelloRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetQuery,
    Request,
)

OFFSET_BY_TIME = ListOffsetsRequest(partitions=(OffsetQuery(topic="orders", partition=0, timestamp=0),))


async def test_a_topic_is_told_once_however_often_it_is_asked_for(broker: Running) -> None:
    """A reply of a hundred thousand times the same thousand partitions would take all memory."""
    client = await broker.connect()
    await client.create("a")
    await client.create("b")
    for kind in (MetadataRequest, DescribeTopicsRequest):
        reply = await client.ask(kind(topics=("b", "a", "none", "b", "none")))
        assert [topic.name for topic in reply.topics] == ["b", "a", "none"]


async def test_racks_and_eligible_replicas_are_told_from_version_9_on(broker: Running) -> None:
    for version, rack, eligible in ((8, UNSET, UNSET), (9, None, ())):
        client = await broker.connect(hello=False)
        await client.ask(HelloRequest(versions=(version,)))
        if version == 8:
            await client.create("a")
        reply = await client.ask(MetadataRequest(topics=("a",)))
        assert (reply.brokers[0].rack, reply.topics[0].partitions[0].eligible) == (rack, eligible)


@pytest.mark.parametrize(
    ("method", "request_", "outcome"),
    [
        ("describe", DescribeTopicsRequest(topics=("orders",)), lambda reply: reply.topics[0].partitions[0]),
        ("offset_for_time", OFFSET_BY_TIME, lambda reply: reply.partitions[0]),
    ],
)
async def test_a_partition_that_is_deleted_under_a_worker_is_unknown_then(
    broker: Running, monkeypatch: pytest.MonkeyPatch, method: str, request_: Request, outcome: Callable[[Any], Any]
) -> None:
    """The worker finds no files where the log was: neither the disk's failure nor ours."""
    inside, go_on = Event(), Event()
    work = getattr(LogReads, method)

    def held_up(log: LogReads, *arguments: object) -> object:
        inside.set()
        go_on.wait(60)
        return work(log, *arguments)

    monkeypatch.setattr(LogReads, method, held_up)
    client, other = await broker.connect(), await broker.connect()
    await client.create("orders")
    await client.produce("orders", batch(b"x"))
    try:
        await client.send(request_)
        await trio.to_thread.run_sync(inside.wait, 60)
        deleted = await other.ask(DeleteTopicsRequest(topics=("orders",)))
    finally:
        go_on.set()
    assert deleted.topics[0].error is ErrorCode.NONE
    found = outcome(await client.reply())
    assert found.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert found.message == "no partition orders-0"


async def test_a_defect_in_a_fetch_is_answered_and_the_connection_goes_on(
    broker: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = await broker.connect()

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(Partitions, "missing", broken)
        assert (await client.ask(fetch_request("orders", 0))).error is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "a request failed: fetch" in caplog.text
    assert (await client.ask(MetadataRequest())).topics == ()


async def test_endless_names_do_not_fill_the_log(broker: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = await broker.connect()
    await client.ask(HelloRequest(versions=(1,), client="c" * 1_000_000))
    reply = await client.ask(produce_request("t" * 1_000_000, batch(b"x")))
    assert reply.partitions[0].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await client.fetch("t" * 1_000_000, 0)
    assert len(caplog.text) < 10_000
