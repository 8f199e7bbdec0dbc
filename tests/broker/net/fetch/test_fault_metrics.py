"""What the page cache does to a request is seen in the metrics: with the plain search and no gate, and without both."""

import os
import time
from pathlib import Path

import pytest

from benchmarks.servers.throttle import ThrottleError, throttled
from tests.broker.clients import RawClient, batch, running
from tests.broker.log.io.eviction import evict_files, needs_eviction
from warmlog.broker.metrics.loop_guard import LoopGuard

BATCHES = 4000  # an index of eight pages
GROUP = 500
START_MS = time.time_ns() // 1_000_000 - 3_600_000


async def fill(client: RawClient) -> None:
    """A sealed segment with an entry for each batch, and another one."""
    await client.create("orders", index_interval_bytes="1", segment_bytes=str(1 << 20))
    one = batch(os.urandom(200), timestamp=START_MS)
    for _ in range(BATCHES // GROUP):
        assert not (await client.produce("orders", one * GROUP)).error


async def faults_of_fetches(path: Path, *offsets: int, **settings: str) -> dict[str, float]:
    """The metrics after fetches from indexes that nobody has touched, none of them in memory."""
    evict_files(path / "orders-0")
    own = {name.replace("_", "."): value for name, value in settings.items()}
    async with running(path, own, http="127.0.0.1:0") as broker:
        client = await broker.connect()
        for offset in offsets:
            assert (await client.fetch("orders", offset, max_bytes=300)).records
        return await broker.scrape()


async def test_plain_search_without_a_gate_waits_for_the_disk_and_the_gate_does_not(tmp_path: Path) -> None:
    needs_eviction(tmp_path)
    async with running(tmp_path) as broker:
        await fill(await broker.connect())
    major = 'warmlog_page_faults_total{kind="major",where="%s"}'
    offsets = (3000, 700, 1900, 2500)
    shown = await faults_of_fetches(tmp_path, *offsets, warmlog_index_search="plain", warmlog_gate="off")
    assert shown[major % "index_cold"] >= 2, "the first and the last page were read by the check at first use"
    assert shown['warmlog_cold_pages_total{where="index"}'] == 0
    gated = await faults_of_fetches(tmp_path, *offsets)
    assert gated[major % "index_cold"] == gated[major % "index_warm"] == 0
    assert gated['warmlog_cold_pages_total{where="index"}'] >= 3


async def test_without_a_gate_a_slow_disk_holds_the_loop_and_the_metrics_tell(
    tmp_path: Path, guard: LoopGuard, caplog: pytest.LogCaptureFixture
) -> None:
    """What is fetched takes 0.8 s to read, in which the loop's timer is due three times."""
    needs_eviction(tmp_path)
    async with running(tmp_path) as broker:
        client = await broker.connect()
        await client.create("orders")
        for _ in range(4):
            assert not (await client.produce("orders", batch(os.urandom(200_000), timestamp=START_MS))).error
    seen = {}
    for gate in ("off", "auto"):
        watching = guard if gate == "off" else None
        evict_files(tmp_path / "orders-0", "*.log")
        caplog.clear()
        async with running(tmp_path, {"warmlog.gate": gate}, http="127.0.0.1:0", guard=watching) as broker:
            client = await broker.connect()
            try:
                with throttled(os.getpid(), tmp_path, 1_000_000):
                    assert len((await client.fetch("orders", 0)).records) > 800_000
            except ThrottleError as error:
                pytest.skip(str(error))
            seen[gate] = await broker.scrape(), caplog.text
    metrics, told = seen["off"]
    stalls = metrics["warmlog_loop_stall_seconds_count"] - metrics['warmlog_loop_stall_seconds_bucket{le="0.025"}']
    assert stalls >= 1
    assert "the event loop was held for" in told
    assert metrics["warmlog_cold_read_bytes_total"] == 0
    gated, _ = seen["auto"]  # a busy machine holds that loop, too
    assert gated["warmlog_cold_read_bytes_total"] > 0  # all but what the kernel has read ahead when the log was opened
