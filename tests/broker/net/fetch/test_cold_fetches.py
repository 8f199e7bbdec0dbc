"""Fetches of what is not in memory: read beside the loop, the way to it and then itself; and what goes wrong there."""

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.broker.clients import RawClient, Running, batch, fetch_request, running
from tests.broker.log.io.eviction import evict_files, needs_cachestat, needs_eviction
from tests.broker.rig import NO_QUOTAS, Rig, rig
from warmlog.broker.api.context import Context, Session
from warmlog.broker.api.fetch.fetch import Fetch, Fetches
from warmlog.broker.api.fetch.sessions import FetchSessions
from warmlog.broker.api.pacing import Pacer
from warmlog.broker.log.directory.checkpoint import CONTIGUOUS_OFFSET
from warmlog.broker.log.io.page_cache import Cachestat, missing_by_mincore
from warmlog.broker.log.io.residency import Residency
from warmlog.broker.maintenance.retention import Retention
from warmlog.broker.partitions.reads.read_ahead import ReadAhead, ReadLimits
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import ListOffsetsRequest, OffsetQuery
from warmlog.protocol.response import FetchResponse

START_MS = time.time_ns() // 1_000_000 - 3_600_000  # retention is to leave it alone
SIZE = len(batch(bytes(900)))
COLD_LOG = 'warmlog_cold_pages_total{where="log"}'


@asynccontextmanager
async def filled(path: Path, **settings: object) -> AsyncIterator[tuple[Running, RawClient, bytes]]:
    """A broker with a topic of several segments, none of it in memory; and what the topic holds."""
    needs_eviction(path)
    own = {name.replace("_", "."): value for name, value in settings.items()}
    async with running(path / "data", own, http="127.0.0.1:0") as broker:
        client = await broker.connect()
        await client.create("orders", segment_bytes=str(64 << 10), index_interval_bytes="512")
        for number in range(300):
            await client.produce("orders", batch(os.urandom(900), timestamp=START_MS + number))
        whole = await read_all(client)
        evict_files(path / "data" / "orders-0")
        yield broker, client, whole


async def read_all(client: RawClient) -> bytes:
    """What a consumer from the beginning on gets."""
    got, end = b"", (await client.fetch("orders", 0)).high_watermark
    while len(got) < end * SIZE:
        found = await client.fetch("orders", len(got) // SIZE, max_bytes=20 * SIZE)
        assert found.error is ErrorCode.NONE
        assert len(found.records) >= SIZE
        got += bytes(found.records[: len(found.records) // SIZE * SIZE])
    return got


async def test_what_is_not_in_memory_is_served_as_if_it_were(tmp_path: Path) -> None:
    async with filled(tmp_path) as (broker, client, whole):
        assert await read_all(client) == whole
        samples = await broker.scrape()
    assert samples[COLD_LOG] > 0
    assert samples["warmlog_cold_read_bytes_total"] >= len(whole) / 2
    assert samples["warmlog_cold_read_seconds_count"] > 0


@pytest.mark.parametrize("gate", ["nowait", "off"])
async def test_the_other_ways_serve_the_same(gate: str, tmp_path: Path) -> None:
    async with filled(tmp_path, warmlog_gate=gate) as (broker, client, whole):
        assert await read_all(client) == whole
        assert gate == "nowait" or (await broker.scrape())[COLD_LOG] == 0


async def test_any_offset_and_any_time_is_found_in_indexes_that_are_not_in_memory(tmp_path: Path) -> None:
    async with filled(tmp_path) as (_, _, whole):
        pass
    for offset in (299, 0, 150, 64):
        evict_files(tmp_path / "data" / "orders-0")
        async with running(tmp_path / "data", http="127.0.0.1:0") as broker:
            client = await broker.connect()
            query = OffsetQuery(topic="orders", partition=0, timestamp=START_MS + offset)
            reply = await client.ask(ListOffsetsRequest(partitions=(query,)))
            assert reply.partitions[0].offset == offset
            found = await client.fetch("orders", offset, max_bytes=SIZE)
            assert bytes(found.records) == whole[offset * SIZE :][:SIZE]
            samples = await broker.scrape()
    assert samples['warmlog_cold_pages_total{where="index"}'] > 0
    assert samples['warmlog_cold_pages_total{where="time_index"}'] > 0


async def test_what_was_read_for_one_that_lags_is_out_of_memory_again(tmp_path: Path) -> None:
    async with filled(tmp_path) as (_, client, whole):
        assert await read_all(client) == whole
        with trio.fail_after(60):
            while not await cold_pages_now(tmp_path / "data"):  # noqa: ASYNC110  # a worker drops them
                await trio.sleep(0.01)


async def cold_pages_now(data: Path) -> int:
    logs = sorted((data / "orders-0").glob("*.log"))[:-1]
    missing = 0
    for path in logs:
        fd = os.open(path, os.O_RDWR)
        missing += missing_by_mincore(fd, os.fstat(fd).st_size)
        os.close(fd)
    return missing


async def test_a_file_cut_under_a_reader_is_told_and_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with filled(tmp_path) as (broker, client, _):
        first = min((tmp_path / "data" / "orders-0").glob("*.log"))
        os.truncate(first, 10_000)
        found = await client.fetch("orders", 5, max_bytes=20_000)
        assert found.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert "the file was truncated: bytes 10000 to " in found.message
        assert (await client.fetch("orders", 280)).records
        samples = await broker.scrape()
    assert samples["warmlog_log_read_errors_total"] >= 1
    assert samples["warmlog_unreadable_logs"] == 1
    assert "orders-0: cannot read the log" in caplog.text


@pytest.mark.parametrize("gate", ["auto", "off"])
@pytest.mark.parametrize("vanished", ["log", "*"])
async def test_a_segment_that_has_vanished_is_told_and_others_go_on(vanished: str, gate: str, tmp_path: Path) -> None:
    async with filled(tmp_path):
        pass
    async with running(tmp_path / "data", {"warmlog.gate": gate}, http="127.0.0.1:0") as broker:
        for path in (tmp_path / "data" / "orders-0").glob(f"{0:020}.{vanished}"):
            path.unlink()
        client = await broker.connect()
        found = await client.fetch("orders", 5, max_wait_ms=60_000)
        if vanished == "*" and not found.error:  # its indexes are being rebuilt, in vain
            found = await client.fetch("orders", 5, max_wait_ms=60_000)
        assert found.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert (await client.fetch("orders", 280)).records
        samples = await broker.scrape()
    assert samples["warmlog_unreadable_logs"] == 1


async def test_past_the_beginning_of_a_reply_the_connection_closes(tmp_path: Path) -> None:
    """What was announced cannot be taken back, and cannot be sent either."""
    needs_eviction(tmp_path)
    settings = {"warmlog.gate.ahead.bytes": 4096, "warmlog.gate.piece.bytes": 4096, "message.max.bytes": 4 << 20}
    async with running(tmp_path / "data", settings) as broker:
        client, other = await broker.connect(), await broker.connect()
        await client.create("orders", max_message_bytes=str(4 << 20))
        await client.produce("orders", batch(os.urandom(3 << 20)))
        evict_files(tmp_path / "data" / "orders-0", "*.log")
        os.truncate(tmp_path / "data" / "orders-0" / f"{0:020}.log", 2 << 20)
        await client.send(fetch_request("orders", 0))
        assert await client.reply() is None
        assert (await other.fetch("orders", 1)).high_watermark == 1


# -- with a disk that fails or hangs --


@asynccontextmanager
async def gated(path: Path, *assignments: str) -> AsyncIterator[tuple[Rig, Fetches]]:
    needs_cachestat(path)
    async with rig(path / "data", *assignments) as made, trio.open_nursery() as nursery:
        residency: Residency = made.partitions._storage.files.residency
        residency.method = Cachestat()
        limits = ReadLimits(threads=2, piece_bytes=1 << 16, ahead_bytes=1 << 20, drop_passed=True)
        reads = ReadAhead(nursery=nursery, residency=residency, metrics=made.metrics, limits=limits)
        sessions = FetchSessions(slots=1, clock=trio.current_time, random=None)
        yield made, Fetches(made.partitions, sessions, reads, quotas=NO_QUOTAS)


def context() -> Context:
    return Context(Session(listener="native", peer=("127.0.0.1", 1), local=("127.0.0.1", 2)), Pacer())


async def finished(fetches: Fetches, fetch: object) -> FetchResponse:
    """The response to a fetch that need not wait for anything but the disk."""
    assert isinstance(fetch, Fetch)
    response = await fetch.work(context())
    assert isinstance(response, FetchResponse)
    return response


async def test_an_unreadable_sector_is_told_to_who_wants_it_and_others_go_on(tmp_path: Path) -> None:
    async with gated(tmp_path) as (made, fetches):
        broken, sound = await made.create("broken"), await made.create("sound")
        await made.append(broken, 3, size=40_000)
        await made.append(sound, 3)
        evict_files(tmp_path / "data" / "broken-0", "*.log")
        made.disk.is_unreadable = True
        (told,) = (await finished(fetches, fetches.begin(fetch_request("broken", 0), context()))).partitions
        assert told.error is ErrorCode.KAFKA_STORAGE_ERROR
        (served,) = fetches.begin(fetch_request("sound", 0), context()).partitions
        assert len(served.records)
        made.disk.is_unreadable = False
        (again,) = (await finished(fetches, fetches.begin(fetch_request("broken", 0), context()))).partitions
        assert again.error is ErrorCode.NONE
        await made.append(broken, 1)
        assert broken.log.offsets.log_end_offset == 4


async def test_a_segment_that_is_removed_while_it_is_read_is_not_missed(tmp_path: Path) -> None:
    async with gated(tmp_path) as (made, fetches):
        partition = await made.create("orders", segment_bytes="50000")
        await made.append(partition, 4, size=40_000)
        evict_files(tmp_path / "data" / "orders-0")
        fetch = fetches.begin(fetch_request("orders", 0), context())
        partition.reconfigure(replace(partition.log.config, retention_bytes=0))
        await Retention(made.partitions, made.unlinking, made.metrics).check()
        for path in (tmp_path / "data" / "orders-0").glob("*.deleted"):
            path.unlink()
        (found,) = (await finished(fetches, fetch)).partitions
        assert found.error is ErrorCode.OFFSET_OUT_OF_RANGE
        assert not partition.is_unreadable


async def test_a_row_of_segments_that_compaction_emptied_is_passed(tmp_path: Path) -> None:
    directory = tmp_path / "data" / "orders-0"
    async with running(tmp_path / "data") as broker:
        client = await broker.connect()
        await client.create("orders", segment_bytes=str(2 * SIZE))
        for number in range(60):
            await client.produce("orders", batch(bytes(900), timestamp=START_MS + number))
    logs = sorted(directory.glob("*.log"))
    assert len(logs) >= 25
    (directory / CONTIGUOUS_OFFSET).unlink()  # past it, an empty segment has lost its records
    for emptied in logs[:20]:
        for path in directory.glob(f"{emptied.stem}.*x"):
            path.write_bytes(b"")
        emptied.write_bytes(b"")
    async with running(tmp_path / "data") as broker:
        client = await broker.connect()
        found = await client.fetch("orders", 0, max_bytes=SIZE)
        assert int.from_bytes(found.records[:8], "big") == int(logs[20].stem)
