"""Fetch sessions, ListOffsets and OffsetForLeaderEpoch: the same questions to Kafka and to us, and the same answers."""

import time
from pathlib import Path
from typing import Any

import pytest
import trio

from interop.kafka_node import KafkaNode
from tests.broker.clients import batch, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.broker.net.kafka.fetcher import Fetcher, offsets_of
from tests.broker.net.kafka.test_offsets import end_of_epoch, list_offsets

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

NOW = time.time_ns() // 1_000_000 - 100_000
TIMES = (-1, -2, -3, -4, -5, -6, -7, NOW, NOW + 1, NOW + 9)
WAIT_MS = 1500
SETTLED_S = 2.0  # Kafka answers before all of it knows

Answers = dict[str, Any]


class Asker:
    """Asks, and notes what it was told."""

    def __init__(self, client: KafkaClient) -> None:
        self.client = client
        self.answers: Answers = {}
        self.names: dict[str, bytes] = {}

    async def create(self, name: str, partitions: int) -> None:
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": (), "configs": ()}
        await self.client.ask("CreateTopics", 5, topics=(topic,), timeout_ms=5000, validate_only=False)
        await trio.sleep(SETTLED_S)
        reply = await self.client.ask(
            "Metadata", 12, topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        self.names = {topic["name"]: topic["topic_id"] for topic in reply["topics"]} | {"nobody": b"n" * 16}

    async def delete(self, name: str) -> None:
        await self.client.ask("DeleteTopics", 4, topic_names=(name,), timeout_ms=5000)
        await trio.sleep(SETTLED_S)

    async def produce(self, name: str, partition: int, *values: bytes) -> None:
        data = {"name": name, "partition_data": ({"index": partition, "records": batch(*values, timestamp=NOW)},)}
        reply = await self.client.ask("Produce", 9, transactional_id=None, acks=1, timeout_ms=5000, topic_data=(data,))
        assert reply["responses"][0]["partition_responses"][0]["error_code"] == 0

    def fetcher(self, version: int) -> Fetcher:
        return Fetcher(self.client, version, self.names)

    async def told(self, what: str, fetcher: Fetcher, *asked: Any, **options: Any) -> None:
        """What a fetch is told, whether it waited for it, and whether there is a session."""
        begun = time.monotonic()
        told = await fetcher.fetch(*asked, **options)
        waited = time.monotonic() - begun > WAIT_MS / 2000
        offsets = ("error_code", "high_watermark", "last_stable_offset", "log_start_offset")
        self.answers[f"{fetcher.version} {what}"] = (
            {key: ([one[name] for name in offsets], len(one["records"] or b"")) for key, one in told.items()},
            waited,
            fetcher.session_id > 0,
        )


async def offsets(asker: Asker) -> None:
    for version in range(1, 12):
        for timestamp in TIMES:
            for partition, epoch in ((0, -1), (0, 0), (0, 1), (1, -1)):
                (found,) = await list_offsets(
                    asker.client, version, timestamp, partition=partition, current_leader_epoch=epoch
                )
                asker.answers[f"offsets {version} {timestamp} {partition} {epoch}"] = found
    for version in range(2, 5):
        for epoch in (-1, 0, 1, 5):
            for partition, current in ((0, -1), (0, 0), (0, 1), (1, -1), (7, -1)):
                asker.answers[f"epoch {version} {epoch} {partition} {current}"] = await end_of_epoch(
                    asker.client, version, epoch, partition=partition, current_leader_epoch=current
                )


async def sessions(asker: Asker, version: int) -> None:
    fetcher = asker.fetcher(version)
    await asker.told("full", fetcher, {("orders", 0): 0, ("orders", 1): 0, ("others", 0): 0})
    await asker.told("the same again", fetcher, {})
    await asker.told("read", fetcher, {("orders", 0): 3})
    await asker.told("out of range", fetcher, {("orders", 0): 99}, max_wait_ms=WAIT_MS)
    await asker.told("well again", fetcher, {("orders", 0): 3})
    await asker.told("quiet", fetcher, {}, max_wait_ms=WAIT_MS)
    await asker.told("unknown beside known", fetcher, {("nobody", 0): 0}, max_wait_ms=WAIT_MS)
    await asker.told("forgotten", fetcher, {}, ("nobody", 0))
    await asker.told("all forgotten", fetcher, {}, ("orders", 0), ("orders", 1), ("others", 0))
    fetcher = asker.fetcher(version)
    await asker.told("unknown alone", fetcher, {("nobody", 0): 0}, max_wait_ms=WAIT_MS)
    await asker.told("unknown alone again", fetcher, {}, max_wait_ms=WAIT_MS)
    for epoch in (-1, 0, 1):
        await asker.told(f"leader epoch {epoch}", asker.fetcher(version), {("orders", 0): 0}, leader_epoch=epoch)


async def refusals(asker: Asker, version: int) -> None:
    fetcher = asker.fetcher(version)
    await fetcher.fetch({("orders", 0): 3})
    for session in ((0, 7), (12345, 1), (fetcher.session_id, 2), (fetcher.session_id, -7)):
        error = await fetcher.refused(session_id=session[0], session_epoch=session[1])
        asker.answers[f"{version} epoch {session[1]} refused"] = error
    fetcher.version = 12 if version >= 13 else 13
    asker.answers[f"{version} other names refused"] = await fetcher.refused()


async def turns(asker: Asker) -> None:
    for partition in range(3):
        for _ in range(3):
            await asker.produce("orders", partition, b"x" * 100)
    fetcher, read, wanted = asker.fetcher(12), [3, 0, 0], {("orders", 0): 3, ("orders", 1): 0, ("orders", 2): 0}
    for turn in range(6):
        told = await fetcher.fetch(wanted, max_bytes=len(batch(b"x" * 100)))
        (index,) = [index for (_, index), one in told.items() if one["records"]]
        asker.answers[f"turn {turn}"] = (index, list(told))
        read[index] += 1
        wanted = {("orders", index): read[index]}


async def deletion(asker: Asker, version: int) -> None:
    fetcher = asker.fetcher(version)
    await asker.told("before", fetcher, {("others", 0): 0, **offsets_of("orders", 1)}, max_bytes=1)
    await asker.delete("orders")
    await asker.told("deleted", fetcher, {})
    await asker.create("orders", 3)
    await asker.told("made again", fetcher, {("orders", 0): 5})


async def answers(address: str) -> Answers:
    async with kafka_client(address) as client:
        asker = Asker(client)
        await asker.create("orders", 3)
        await asker.create("others", 1)
        await asker.produce("orders", 0, b"a", b"b", b"c")
        await offsets(asker)
        for version in (7, 11, 12, 13, 17):
            await sessions(asker, version)
            await refusals(asker, version)
        await turns(asker)
        await deletion(asker, 12)
        await deletion(asker, 13)
        return asker.answers


async def test_what_kafka_answers_we_answer(tmp_path: Path) -> None:
    async with running(tmp_path / "ours") as broker:
        ours = await answers(broker.addresses.kafka)
    with KafkaNode(tmp_path / "kafka") as node:
        theirs = await answers(node.bootstrap)
    assert {what: (ours[what], theirs[what]) for what in theirs if ours[what] != theirs[what]} == {}
    assert len(ours) == len(theirs) > 500
