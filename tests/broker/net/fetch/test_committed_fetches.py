"""Fetches of committed records over the network, from a directory with transactions that Kafka wrote."""

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.broker.clients import RawClient, Running, batch, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.broker.net.kafka.fetcher import FOREVER_MS, Fetcher, served
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.committed import AbortedFilter
from warmlog.protocol.records.reader import decode_batch
from warmlog.protocol.response import AbortedTransaction

TOPIC = "transactional"
END = 219
COMMITTED, EVERYTHING = 1, 0
LATEST = -1


async def with_golden_topic(data_dir: Path, golden: Path, *, open_end: bool = False) -> None:
    """Put Kafka's files into a stopped broker's topic; `open_end`: without the last marker."""
    async with running(data_dir) as broker:
        await (await broker.connect()).create(TOPIC)
    target = data_dir / f"{TOPIC}-0"
    for path in target.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for path in golden.iterdir():
        if path.name != "partition.metadata":
            shutil.copy(path, target)
    if open_end:
        (target / f"{END:020}.snapshot").unlink()
        (target / f"{END - 1:020}.log").write_bytes(b"")


@pytest.fixture
def golden(kafka_fixtures: Path) -> Path:
    return kafka_fixtures / "clean" / f"{TOPIC}-0"


@pytest.fixture
async def broker(tmp_path: Path, golden: Path) -> AsyncIterator[Running]:
    await with_golden_topic(tmp_path, golden)
    async with running(tmp_path) as broker:
        yield broker


@pytest.fixture
async def open_broker(tmp_path: Path, golden: Path) -> AsyncIterator[Running]:
    await with_golden_topic(tmp_path, golden, open_end=True)
    async with running(tmp_path) as broker:
        yield broker


def seen(kafka_fixtures: Path) -> list[int]:
    found = json.loads((kafka_fixtures / "seen" / "read_committed" / f"{TOPIC}-0.json").read_text())
    return [record["offset"] for record in found["records"]]


async def fetch(client: KafkaClient, version: int, offset: int, isolation: int, **options: Any) -> dict[str, Any]:
    asked = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 2000, "current_leader_epoch": -1}
    topic = {"topic": TOPIC, "partitions": ({**asked, "last_fetched_epoch": -1, "log_start_offset": -1},)}
    limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "session_id": 0, "session_epoch": -1}
    reply = await client.ask(
        "Fetch", version, **{**limits, **options}, isolation_level=isolation, topics=(topic,), forgotten_topics_data=()
    )
    found: dict[str, Any] = reply["responses"][0]["partitions"][0]
    return found


async def consumed(client: KafkaClient, version: int, isolation: int) -> list[int]:
    """The offsets of what a consumer delivers, from the beginning on."""
    found: list[int] = []
    offset = 0
    while data := (part := await fetch(client, version, offset, isolation))["records"]:
        told = part["aborted_transactions"]
        aborted = AbortedFilter(AbortedTransaction(**one) for one in told or ())
        assert (told is None) == (isolation == EVERYTHING)
        for position, header in headers(data):
            if not aborted.discards(header):
                found += [record.offset for record in decode_batch(data, position, header) if record.offset >= offset]
            offset = header.next_offset
    return found


async def latest(client: KafkaClient, isolation: int, timestamp: int = LATEST) -> int:
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    topic = {"name": TOPIC, "partitions": (asked,)}
    reply = await client.ask(
        "ListOffsets", 7, replica_id=-1, isolation_level=isolation, topics=(topic,), timeout_ms=1000
    )
    found: int = reply["topics"][0]["partitions"][0]["offset"]
    return found


@pytest.mark.parametrize("version", range(4, 13))
async def test_a_reader_of_committed_records_gets_what_kafka_delivers(
    broker: Running, kafka_fixtures: Path, version: int
) -> None:
    async with kafka_client(broker.addresses.kafka) as client:
        committed = await consumed(client, version, COMMITTED)
        assert committed == seen(kafka_fixtures)
        assert (len(committed), len(await consumed(client, version, EVERYTHING))) == (96, 206)


async def test_an_open_transaction_bounds_fetches_and_offsets(open_broker: Running) -> None:
    async with kafka_client(open_broker.addresses.kafka) as client:
        part = await fetch(client, 12, 0, COMMITTED)
        stable = part["last_stable_offset"]
        assert stable < part["high_watermark"] == END - 1
        assert max(await consumed(client, 12, COMMITTED)) < stable <= max(await consumed(client, 12, EVERYTHING))
        assert (await latest(client, COMMITTED), await latest(client, EVERYTHING)) == (stable, END - 1)
        held = await fetch(client, 12, stable, COMMITTED)
        assert (held["records"], held["aborted_transactions"]) == (b"", ())
        assert (await fetch(client, 12, END - 1, COMMITTED))["error_code"] == 0


async def test_a_time_past_the_last_stable_offset_is_not_found_by_readers_of_committed_records(
    open_broker: Running,
) -> None:
    async with kafka_client(open_broker.addresses.kafka) as client:
        stable = await latest(client, COMMITTED)
        (held,) = [
            record.timestamp
            for position, header in headers((await fetch(client, 12, stable, EVERYTHING))["records"])
            for record in decode_batch((await fetch(client, 12, stable, EVERYTHING))["records"], position, header)
            if record.offset == stable
        ]
        found = await latest(client, EVERYTHING, held)
        assert (found >= stable) == (await latest(client, COMMITTED, held) == -1)


async def test_what_is_appended_behind_an_open_transaction_does_not_wake_a_reader_of_committed_records(
    open_broker: Running,
) -> None:
    native: RawClient = await open_broker.connect()
    async with kafka_client(open_broker.addresses.kafka) as client:
        fetcher = await Fetcher.of(client, native, 12)
        stable = await latest(client, COMMITTED)
        first = await fetcher.fetch({(TOPIC, 0): stable}, isolation_level=COMMITTED)
        assert first[TOPIC, 0]["last_stable_offset"] == stable
        await fetcher.send({}, isolation_level=COMMITTED, max_wait_ms=1500)
        await served(open_broker)
        await native.produce(TOPIC, batch(b"plain"))
        told = await fetcher.reply()
        assert told[TOPIC, 0]["high_watermark"] == END  # reported when the time is over
        assert told[TOPIC, 0]["records"] == b""
        assert await fetcher.fetch({}, isolation_level=COMMITTED) == {}


async def test_a_session_that_changes_its_isolation_level_reads_on_at_the_new_one(open_broker: Running) -> None:
    native: RawClient = await open_broker.connect()
    async with kafka_client(open_broker.addresses.kafka) as client:
        fetcher = await Fetcher.of(client, native, 12)
        stable = await latest(client, COMMITTED)
        await fetcher.fetch({(TOPIC, 0): stable}, isolation_level=COMMITTED)
        assert await fetcher.fetch({}, isolation_level=COMMITTED) == {}
        told = await fetcher.fetch({}, isolation_level=EVERYTHING)
        assert len(told[TOPIC, 0]["records"]) > 0
        await fetcher.fetch({(TOPIC, 0): END - 1}, isolation_level=EVERYTHING)
        await fetcher.send({}, isolation_level=EVERYTHING, max_wait_ms=FOREVER_MS)
        await served(open_broker)
        await native.produce(TOPIC, batch(b"plain"))
        assert len((await fetcher.reply())[TOPIC, 0]["records"]) > 0


@pytest.mark.parametrize("isolation", [COMMITTED, EVERYTHING])
async def test_a_connection_that_changes_its_isolation_level_is_answered_by_the_new_one(
    open_broker: Running, isolation: int
) -> None:
    async with kafka_client(open_broker.addresses.kafka) as client:
        stable = await latest(client, COMMITTED)
        before = await fetch(client, 6, stable, isolation)
        after = await fetch(client, 6, stable, 1 - isolation)
        assert (len(before["records"]) > 0, len(after["records"]) > 0) == (
            isolation == EVERYTHING,
            isolation == COMMITTED,
        )
