"""Fetches that name all their partitions each time: what a connection remembers of them changes no answer."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from tests.broker.clients import Running, batch
from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.broker.rig import NO_QUOTAS, Rig, rig
from warmlog.broker.api.context import Context, Session
from warmlog.broker.api.fetch import sessions as fetch_sessions
from warmlog.broker.api.fetch.fetch import Fetch, Fetches
from warmlog.broker.api.fetch.session import LONG_STEP, STEP, FetchSession
from warmlog.broker.api.fetch.sessions import ClosedPartitions, ConnectionSessions, FetchSessions
from warmlog.broker.api.pacing import Pacer
from warmlog.broker.partitions.reads.read_ahead import ReadAhead, ReadLimits
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.records.fetch import KafkaFetchPartition, KafkaFetchRequest
from warmlog.protocol.request import FetchPartition, FetchRequest, Isolation
from warmlog.protocol.response import FetchResponse

PARTITIONS = 3
TOPICS = ("orders", "other")


class Clients:
    """A consumer that stays connected, and what a connection without any past is answered."""

    def __init__(self, broker: Running, consumer: KafkaClient, admin: KafkaClient) -> None:
        self.broker = broker
        self.consumer = consumer
        self.admin = admin

    async def both(self, version: int, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        remembered = await self.consumer.ask("Fetch", version, **fields)
        async with kafka_client(self.broker.addresses.kafka) as fresh:
            return remembered, await fresh.ask("Fetch", version, **fields)

    async def produce(self, topic: str, index: int) -> None:
        await self.admin.ask(
            "Produce", 8, acks=1, timeout_ms=1000,
            topic_data=({"name": topic, "partition_data": ({"index": index, "records": batch(b"x" * 50)},)},),
        )  # fmt: skip

    async def delete_records(self, topic: str, index: int, offset: int) -> None:
        asked = {"name": topic, "partitions": ({"partition_index": index, "offset": offset},)}
        await self.admin.ask("DeleteRecords", 1, topics=(asked,), timeout_ms=1000)

    async def create(self, topic: str) -> None:
        new = {"name": topic, "num_partitions": PARTITIONS, "replication_factor": 1, "assignments": (), "configs": ()}
        await self.admin.ask("CreateTopics", 5, topics=(new,), timeout_ms=1000)

    async def delete(self, topic: str) -> None:
        await self.admin.ask("DeleteTopics", 5, topic_names=(topic,), timeout_ms=1000)


@pytest.fixture
async def clients(broker: Running) -> AsyncIterator[Clients]:
    async with kafka_client(broker.addresses.kafka) as consumer, kafka_client(broker.addresses.kafka) as admin:
        yield Clients(broker, consumer, admin)


def asked(wanted: list[tuple[str, int, int]], **options: Any) -> dict[str, Any]:
    """(topic, partition, offset), each a topic entry of its own, in that order."""
    topics = tuple(
        {"topic": topic, "partitions": ({"partition": index, "fetch_offset": offset, "partition_max_bytes": 200},)}
        for topic, index, offset in wanted
    )
    limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1000, "isolation_level": 0, "session_epoch": -1}
    return {**limits, "topics": topics, **options}


@pytest.mark.parametrize("seed", range(8))
async def test_a_connection_is_answered_as_one_without_a_past(clients: Clients, seed: int) -> None:
    random = Random(seed)
    for topic in TOPICS:
        await clients.create(topic)
    places = [(topic, index) for topic in TOPICS for index in range(PARTITIONS + 1)]
    offsets, ends = dict.fromkeys(places, 0), dict.fromkeys(places, 0)
    for _ in range(100):
        topic, index = random.choice(places)
        changes = (
            partial(clients.delete_records, topic, index, random.choice((1, -1))),
            partial(clients.delete, topic),
            partial(clients.create, topic),
            partial(clients.produce, topic, index),
        )
        await random.choices(changes, (3, 1, 2, 6))[0]()
        if random.random() < 0.7:  # the consumer has read everything
            offsets |= ends
        else:
            offsets[topic, index] += random.choice((-1, 1))
        chosen = random.sample(places, len(places) if random.random() < 0.9 else 3)
        remembered, fresh = await clients.both(
            9 if seed % 2 else 11,
            **asked([(*place, offsets[place]) for place in chosen], isolation_level=random.choices((0, 1), (9, 1))[0]),
        )
        assert remembered == fresh
        for found in fresh["responses"]:
            ends |= {(found["topic"], one["partition_index"]): one["high_watermark"] for one in found["partitions"]}


async def test_a_partition_named_twice_is_answered_once_as_by_kafka(clients: Clients) -> None:
    await clients.create("orders")
    await clients.produce("orders", 0)
    reply = await clients.consumer.ask("Fetch", 11, **asked([("orders", 0, 1), ("orders", 0, 0)]))
    (topic,) = reply["responses"]
    (found,) = topic["partitions"]
    assert len(found["records"]) > 0


async def test_a_waiting_fetch_is_woken_by_a_partition_that_was_quiet_before(clients: Clients) -> None:
    await clients.create("orders")
    wanted = asked([("orders", index, 0) for index in range(PARTITIONS)])
    await clients.consumer.ask("Fetch", 11, **wanted)
    await clients.consumer.send("Fetch", 11, **{**wanted, "max_wait_ms": 2**31 - 1})
    await clients.produce("orders", 2)
    reply = await clients.consumer.reply()
    found = [one for topic in reply["responses"] for one in topic["partitions"]]
    assert [one["partition_index"] for one in found] == list(range(PARTITIONS))
    assert [one["high_watermark"] for one in found] == [0, 0, 1]


async def test_the_native_listener_answers_each_partition_as_often_as_it_is_named(broker: Running) -> None:
    client = await broker.connect()
    await client.create("orders")
    await client.produce("orders", batch(b"x"))
    wanted = tuple(FetchPartition(topic="orders", partition=0, offset=offset) for offset in (0, 1, 0))
    for _ in range(2):
        found = (await client.ask(FetchRequest(partitions=wanted, max_wait_ms=0))).partitions
        assert [len(one.records) > 0 for one in found] == [True, False, True]


# -- what is looked at, and what is kept --


def context() -> Context:
    return Context(Session(listener="kafka", peer=("127.0.0.1", 1), local=("127.0.0.1", 2)), Pacer())


def request(*offsets: int, **options: Any) -> KafkaFetchRequest:
    partitions = [
        KafkaFetchPartition(topic="orders", partition=index, offset=offset) for index, offset in enumerate(offsets)
    ]
    return KafkaFetchRequest(partitions=tuple(partitions), max_wait_ms=0, **options)


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[tuple[Rig, Fetches]]:
    async with rig(tmp_path) as made, trio.open_nursery() as nursery:
        limits = ReadLimits(threads=1, piece_bytes=1 << 16, ahead_bytes=1 << 20, drop_passed=False)
        residency = made.partitions._storage.files.residency
        reads = ReadAhead(nursery=nursery, residency=residency, metrics=made.metrics, limits=limits)
        sessions = FetchSessions(slots=1, clock=trio.current_time, random=Random(1))
        await made.partitions.create("orders", 3)
        yield made, Fetches(made.partitions, sessions, reads, quotas=NO_QUOTAS)


def pending(fetches: Fetches, of: Context) -> list[int]:
    """The partitions that the connection's next fetch would look at, were it like the one before."""
    session = fetches.sessions.own._sessions[of.session]
    return [entry.requested.partition for entry in session.pending]


async def test_only_what_has_changed_is_looked_at(made: tuple[Rig, Fetches]) -> None:
    rig, fetches = made
    consumer = context()
    fetches.begin(request(0, 0, 0), consumer)
    assert pending(fetches, consumer) == []
    second = rig.partitions.get("orders", 1)
    assert second is not None
    await rig.append(second)
    assert pending(fetches, consumer) == [1]
    fetches.begin(request(0, 0, 0), consumer)
    assert pending(fetches, consumer) == [1]  # its records were not asked for yet
    fetches.begin(request(0, 1, 0), consumer)
    assert pending(fetches, consumer) == []
    second.advance_start(1)
    assert pending(fetches, consumer) == [1]
    fetches.begin(request(0, 1, 0), consumer)
    fetches.begin(request(0, 1, 0, isolation=Isolation.READ_COMMITTED), consumer)
    assert pending(fetches, consumer) == []


class Counted:
    """The part of a context that a large fetch uses."""

    steps = 0

    async def checkpoint(self) -> None:
        self.steps += 1


async def test_the_answer_of_a_large_fetch_is_put_together_in_steps(made: tuple[Rig, Fetches]) -> None:
    _, fetches = made
    fetch = fetches.begin(request(*[0] * (2 * LONG_STEP + 1)), context())
    assert isinstance(fetch, Fetch)
    assert fetch.needs_task
    counted = Counted()
    response = await fetch.work(counted)
    assert isinstance(response, FetchResponse)
    assert len(response.partitions) == 2 * LONG_STEP + 1
    assert counted.steps == 96 + 67 + 2 + 64, "taken over, read, collected, recorded"


async def test_nothing_of_an_answer_keeps_a_file_open(made: tuple[Rig, Fetches]) -> None:
    rig, fetches = made
    consumer = context()
    first = rig.partitions.get("orders", 0)
    assert first is not None
    await rig.append(first)
    found = fetches.begin(request(0, 0, 0), consumer)
    assert len(found.partitions[0].records) > 0
    session = fetches.sessions.own._sessions[consumer.session]
    assert all(entry.result is None or not len(entry.result.records) for entry in session.order)


async def test_a_connection_that_has_gone_leaves_nothing_behind(made: tuple[Rig, Fetches]) -> None:
    rig, fetches = made
    consumer = context()
    fetches.begin(request(0, 0, 0), consumer)
    assert not any(rig.partitions.get("orders", index).waiters.is_empty for index in range(3))
    fetches.forget(consumer.session)
    assert all(rig.partitions.get("orders", index).waiters.is_empty for index in range(3))
    assert fetches.sessions.own.partition_count == 0


async def test_a_defect_while_a_fetch_begins_leaves_nothing_behind(
    made: tuple[Rig, Fetches], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, fetches = made
    consumer = context()
    fetches.begin(request(0, 0, 0), consumer)
    monkeypatch.setattr(rig.partitions, "readable", lambda topic, index: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fetches.begin(request(1, 0, 0), consumer)
    monkeypatch.undo()
    assert all(rig.partitions.get("orders", index).waiters.is_empty for index in range(3))
    found = fetches.begin(request(0, 0, 0), consumer)
    assert [one.error for one in found.partitions] == [ErrorCode.NONE] * 3


def of_size(size: int) -> FetchSession:
    session = FetchSession()
    for _ in session.follow([KafkaFetchPartition(topic="t", partition=index, offset=0) for index in range(size)]):
        pass
    return session


def test_sessions_of_connections_have_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "MAX_PARTITIONS_OF_CONNECTIONS", 100)
    monkeypatch.setattr(fetch_sessions, "MAX_PARTITIONS_OF_CONNECTION", 60)
    sessions = ConnectionSessions(ClosedPartitions())
    first, second, third = of_size(40), of_size(40), of_size(30)
    sessions.put("first", first)
    sessions.put("second", second)
    assert sessions.take("first") is first
    sessions.put("first", first)
    sessions.put("third", third)  # the second was not used for the longest time
    assert sessions.partition_count == 70
    assert len(second) == 0
    assert sessions.take("second") is not second
    sessions.put("fourth", of_size(61))  # too large to be kept at all
    assert sessions.partition_count == 70


def test_closed_partitions_are_detached_a_few_at_a_time() -> None:
    closed = ClosedPartitions()
    closed.add(of_size(3 * STEP))
    assert len(closed) == 2 * STEP
    closed.detach()
    closed.detach()
    assert len(closed) == 0
