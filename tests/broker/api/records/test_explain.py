"""Explain on the native listener: the broker tells the way through the log that it has open."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.broker.clients import RawClient, Running, batch, running
from tests.broker.log.io.eviction import evict_files, needs_cachestat
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.explanation import Explanation
from warmlog.protocol.native.explain import ExplainRequest

START_MS = 1_700_000_000_000
COUNT = 200
SETTINGS = {"log.retention.ms": -1}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path / "data", SETTINGS, http="127.0.0.1:0") as broker:
        yield broker


@pytest.fixture
async def client(broker: Running) -> RawClient:
    """To a broker with a topic of several segments."""
    client = await broker.connect()
    await fill(client)
    return client


async def fill(client: RawClient) -> None:
    await client.create("orders", segment_bytes=str(64 << 10), index_interval_bytes="512", retention_ms="-1")
    for number in range(COUNT):
        await client.produce("orders", batch(os.urandom(900), timestamp=START_MS + number))


async def explain(client: RawClient, **question: Any) -> Explanation:
    asked = {"topic": "orders", "partition": 0, **question}
    reply = await client.ask(ExplainRequest(**asked))
    assert isinstance(reply, Explanation), reply
    return reply


async def test_an_offset_in_a_sealed_segment_and_one_that_is_known_by_heart(client: RawClient) -> None:
    sealed, active = await explain(client, offset=10, plain=True), await explain(client, offset=COUNT - 1)
    assert [(lookup.index, lookup.search) for lookup in sealed.lookups] == [("offset", "warm"), ("offset", "plain")]
    assert (sealed.segment.base_offset, sealed.segment.active, sealed.index_fault) == (0, False, None)
    assert sealed.batch is not None
    assert sealed.batch.base_offset == sealed.batch.last_offset == sealed.offset == 10
    assert sealed.log_end_offset == COUNT
    assert active.segment.active
    assert active.known_by_heart
    assert (await explain(client, offset=COUNT)).batch is None


async def test_a_time_goes_by_both_indexes(client: RawClient) -> None:
    found = await explain(client, timestamp=START_MS + 77)
    assert (found.offset, found.timestamp) == (77, START_MS + 77)
    assert [lookup.index for lookup in found.lookups] == ["time", "offset"]


async def test_what_is_not_in_memory_is_told_and_stays_out_of_it(tmp_path: Path) -> None:
    """A broker that has just started has nothing mapped; after a fetch has gone the way, it is in memory."""
    needs_cachestat(tmp_path)
    async with running(tmp_path / "data", SETTINGS) as broker:
        await fill(await broker.connect())
    async with running(tmp_path / "data", SETTINGS, http="127.0.0.1:0") as broker:
        client = await broker.connect()
        evict_files(tmp_path / "data" / "orders-0")
        for _ in range(2):
            found = await explain(client, offset=30)
            assert found.lookups[0].missing == found.lookups[0].pages == (0,)
            assert found.scan is not None
            assert found.scan.missing_pages == sum(run.count for run in found.scan.pages)
        samples = await broker.scrape()
        assert samples['warmlog_cold_pages_total{where="index"}'] == 0
        assert (await client.fetch("orders", 30, max_bytes=2000)).error is ErrorCode.NONE
        after = await explain(client, offset=30)
        assert after.lookups[0].missing == ()
        assert after.scan is not None
        assert after.scan.missing_pages < found.scan.missing_pages


async def test_a_damaged_index_is_told_and_not_mended(tmp_path: Path) -> None:
    """The first fetch after the start rebuilds it."""
    index = tmp_path / "data" / "orders-0" / f"{0:020}.index"
    async with running(tmp_path / "data", SETTINGS) as broker:
        await fill(await broker.connect())
    index.write_bytes(b"\x7f" * index.stat().st_size)
    async with running(tmp_path / "data", SETTINGS) as broker:
        client = await broker.connect()
        found = await explain(client, offset=20)
        assert found.index_fault
        assert (found.offset, found.lookups) == (20, ())
        assert index.read_bytes()[:1] == b"\x7f"
        assert (await client.fetch("orders", 20, max_wait_ms=5000)).records
        assert (await explain(client, offset=20)).index_fault is None


@pytest.mark.parametrize(
    ("question", "code", "told"),
    [
        ({"offset": COUNT + 1}, ErrorCode.OFFSET_OUT_OF_RANGE, "offset 201 is outside the log, which holds 0 to 200"),
        ({"offset": -5}, ErrorCode.OFFSET_OUT_OF_RANGE, "which holds 0 to 200"),
        ({"timestamp": START_MS + 500}, ErrorCode.OFFSET_OUT_OF_RANGE, "to 2023-11-14T22:13:20.199Z"),
        ({"timestamp": -1}, ErrorCode.INVALID_REQUEST, "must not be negative"),
        ({}, ErrorCode.INVALID_REQUEST, "either an offset or a timestamp"),
        ({"offset": 1, "timestamp": 1}, ErrorCode.INVALID_REQUEST, "either an offset or a timestamp"),
        ({"offset": 1, "topic": "nothing"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "nothing-0"),
        ({"offset": 1, "partition": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "orders-7"),
    ],
)
async def test_what_cannot_be_explained_is_refused(
    client: RawClient, question: dict[str, Any], code: ErrorCode, told: str
) -> None:
    refused = await client.ask(ExplainRequest(**{"topic": "orders", "partition": 0, **question}))
    assert refused.error is code
    assert told in refused.message


async def test_a_log_that_rolls_meanwhile_is_looked_at_again(broker: Running, client: RawClient) -> None:
    other = await broker.connect()

    async def produce() -> None:
        for number in range(200):
            await client.produce("orders", batch(os.urandom(900), timestamp=START_MS + COUNT + number))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        for number in range(20):
            assert (await explain(other, offset=number * 9)).offset == number * 9
