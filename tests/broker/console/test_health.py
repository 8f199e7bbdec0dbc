"""Status and health: totals, conditions, stalls and receipts."""

import json
from pathlib import Path

import trio

from tests.broker.clients import running
from tests.broker.console.web import Site, allow, console, console_with_users, produce
from warmlog.broker.console.routes import ROUTES, schemas
from warmlog.broker.metrics.loop_guard import LoopGuard

CLUSTER = 4
DESCRIBE, DESCRIBE_CONFIGS = 8, 10


async def test_the_strip_says_what_is_true_of_the_broker(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("words", partitions=3)
        await produce(client, "words", b"x" * 1000)
        status = await site.get("status")
        totals = status["totals"]
        assert (totals["topics"], totals["partitions"], totals["under_replicated"]) == (1, 3, 0)
        assert totals["log_bytes"] == totals["unsynced_bytes"] > 1000
        assert (status["user"], status["may_write"], status["brokers"]) == (None, False, 1)
        assert status["power_cut"].startswith("can lose ")
        assert totals["disks"][0]["path"] == str(tmp_path / "data")
        assert sum(totals["produce"]["counts"]) == 1
        assert len(totals["loop_delay"]["counts"]) == len(totals["loop_delay"]["bounds"]) + 1
        assert any(name.startswith("major ") for name in totals["loop_faults"])


async def test_what_concerns_the_cluster_needs_rights_on_it(tmp_path: Path) -> None:
    async with console_with_users(tmp_path, "alice") as site:
        alice = site.by("alice")
        status, health = await alice.get("status"), await alice.get("health")
        assert (status["totals"], status["power_cut"]) == (None, None)
        assert [health[name] for name in ("receipts", "moves", "mirror", "brokers", "stalls")] == [None] * 4 + [[]]
        await allow(site, "alice", CLUSTER, "kafka-cluster", DESCRIBE)
        status, health = await alice.get("status"), await alice.get("health")
        assert status["totals"] is not None
        assert status["power_cut"] is None
        assert health["brokers"]["registered"] == [1]
        await allow(site, "alice", CLUSTER, "kafka-cluster", DESCRIBE_CONFIGS)
        assert (await alice.get("status"))["power_cut"].startswith("can lose ")


async def test_totals_are_counted_once_a_second_for_all(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("words")
        assert (await site.get("status"))["totals"]["log_bytes"] == 0
        await produce(client, "words", b"x" * 1000)
        while (await site.get("status"))["totals"]["log_bytes"] == 0:  # time passes by itself
            await trio.lowlevel.checkpoint()


async def test_a_healthy_broker_has_no_conditions(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        health = await site.get("health")
        assert (
            health["alerts"] == health["stalls"] == health["partitions"] == health["receipts"] == health["moves"] == []
        )
        brokers = health["brokers"]
        assert (brokers["registered"], brokers["missing"], brokers["controller"]) == ([1], [], 1)
        assert health["mirror"] is None


async def test_recoveries_and_failed_logs_are_reported(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        client = await site.broker.connect()
        await client.create("words")
        await produce(client, "words", b"a")
    data = tmp_path / "data"
    for path in data.glob(".kafka_cleanshutdown"):
        path.unlink()
    log = next((data / "words-0").glob("*.log"))
    log.write_bytes(log.read_bytes() + b"torn")
    (data / "recovery-receipt-20990101T000000000Z.json").write_text("damaged")
    async with console(tmp_path) as site:
        receipts = (await site.get("health"))["receipts"]
        assert any(each.get("truncated_bytes") == 4 for each in receipts)
        assert any(each["started_at"] == "" for each in receipts)


async def test_stalls_are_kept_with_their_stack(tmp_path: Path) -> None:
    guard = LoopGuard(0.02)
    async with running(tmp_path / "data", http="127.0.0.1:0", guard=guard) as broker:
        site = Site(broker)
        guard._log_stall(guard.began_at, guard.began_at + 0.5)
        health = await site.get("health")
        assert health["stalls"][0]["milliseconds"] == 500
        assert [each["name"] for each in health["alerts"]] == ["WarmlogLoopStalls"]


async def test_every_answer_fits_its_schema(tmp_path: Path) -> None:
    async with console(tmp_path) as site:
        index = await site.get("")
        assert {each["path"] for each in index["endpoints"]} == {f"/api/v1/{each.path}".rstrip("/") for each in ROUTES}
        assert (await site.get("schema")) == json.loads(json.dumps(schemas()))
        assert {each["returns"] for each in index["endpoints"]} - {"dict", "bytes"} <= schemas().keys()
