"""Connections and large requests leave no cycles, and the garbage collector does not look at large requests.

A collection of 100,000 objects holds the event loop for 0.1 s.
"""

import gc
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from benchmarks.questions.large_frames import KAFKA, LargeRequest, commit_fields, many, request_bytes
from tests.broker.clients import Running, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.broker.net.test_quotas import set_quota
from tests.clients.waiting import LIMIT_S
from warmlog.broker.api.context import Session
from warmlog.broker.api.pacing import Pacer

SCALE = 0.03
TOPICS, WIDE = 30, 60  # those that the requests name at this scale
FEW = 60  # objects in cycles


@contextmanager
def cycles() -> Iterator[list[object]]:
    """Collect, in the list, the objects that are left in cycles by what is done meanwhile."""
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    found: list[object] = []
    try:
        yield found
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No collections but those of `cycles`."""
    gc.disable()
    yield
    gc.enable()


async def prepare(client: KafkaClient) -> None:
    """Create what the requests name."""
    new = [{"name": name, "num_partitions": 2} for name in many(TOPICS)]
    new += [{"name": "wide", "num_partitions": WIDE}]
    topics = [{"replication_factor": 1, "assignments": (), "configs": (), **topic} for topic in new]
    reply = await client.ask("CreateTopics", 5, topics=topics, timeout_ms=60_000)
    assert not any(topic["error_code"] for topic in reply["topics"])
    while True:
        reply = await client.ask("OffsetCommit", 8, **commit_fields("wide", 1))
        if not reply["topics"][0]["partitions"][0]["error_code"]:
            return
        await trio.lowlevel.checkpoint()


async def ask(client: KafkaClient, request: LargeRequest) -> None:
    await client.stream.send_all(request_bytes(request, max(1, int(request.size * SCALE)), {}))
    assert await client._frame() is not None, "the connection was closed"


def told(garbage: list[Any]) -> str:
    kinds: dict[str, int] = {}
    for each in garbage:
        kind = type(each).__name__
        kinds[kind] = kinds.get(kind, 0) + 1
    frames = {f"{each.f_code.co_qualname}:{each.f_lineno}" for each in garbage if type(each).__name__ == "frame"}
    return f"{sorted(kinds.items(), key=lambda item: -item[1])[:8]}, frames {sorted(frames)[:12]}"


def is_ours(garbage: object) -> bool:
    """Whether an object may refer to what clients sent; a few of the standard library's are left by trio."""
    return type(garbage).__module__.startswith("warmlog.")


@pytest.mark.usefixtures("uncollected")
async def test_large_requests_leave_no_cycles(tmp_path: Path) -> None:
    left = {}
    with trio.fail_after(LIMIT_S):
        async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
            await prepare(client)
            for request in KAFKA:
                await ask(client, request)  # imports and caches
                with cycles() as found:
                    await ask(client, request)
                    await wait_all_tasks_blocked()
                if len(found) > FEW or any(map(is_ours, found)):
                    left[request.name] = len(found), told(found)
    assert not left


async def end_normally(broker: Running) -> None:
    async with kafka_client(broker.addresses.kafka) as client:
        await client.ask("Metadata", 9, topics=None)


async def reset(broker: Running) -> None:
    client = await broker.connect(hello=False)
    linger = struct.pack("ii", 1, 0)
    client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    await client.stream.aclose()


async def send_a_malformed_frame(broker: Running) -> None:
    client = await broker.connect(hello=False)
    await client.stream.send_all(bytes([0, 0, 0, 3]) + b"abc")
    assert await client.stream.receive_some() is not None
    await client.stream.aclose()


async def fail_to_fetch(broker: Running) -> None:
    client = await broker.connect()
    assert (await client.fetch("none", 0)).error
    await client.stream.aclose()


async def be_a_member(broker: Running) -> None:
    protocols = [{"name": "range", "metadata": b"m"}]
    async with kafka_client(broker.addresses.kafka) as client:
        joined = await client.ask(
            "JoinGroup",
            2,
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=protocols,
        )
        member, generation = joined["member_id"], joined["generation_id"]
        assignments = [{"member_id": member, "assignment": b"a"}]
        synced = await client.ask(
            "SyncGroup", 3, group_id="g", generation_id=generation, member_id=member, assignments=assignments
        )
        assert not synced["error_code"]
        await client.ask("LeaveGroup", 4, group_id="g", members=[{"member_id": member, "group_instance_id": None}])


async def begin_and_abort(broker: Running) -> None:
    async with kafka_client(broker.addresses.kafka) as client:
        await client.ask("FindCoordinator", 3, key="t", key_type=1)  # creates the topic of transactions
        producer = await client.ask("InitProducerId", 4, transactional_id="t", transaction_timeout_ms=60_000)
        assert not producer["error_code"]
        known = {"producer_id": producer["producer_id"], "producer_epoch": producer["producer_epoch"]}
        added = {"transactional_id": "t", **known, "group_id": "g"}
        assert not (await client.ask("AddOffsetsToTxn", 3, **added))["error_code"]
        ended = await client.ask("EndTxn", 3, transactional_id="t", **known, committed=False)
        assert not ended["error_code"]


async def close_in_a_pause(broker: Running) -> None:
    async with kafka_client(broker.addresses.kafka) as client:
        await set_quota(client, "request_percentage", 1e-9, ("client-id", "greedy"))
    async with kafka_client(broker.addresses.kafka, "greedy") as greedy:
        assert (await greedy.ask("Metadata", 9, topics=None))["throttle_time_ms"] > 0


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize(
    "use", [close_in_a_pause, end_normally, be_a_member, begin_and_abort, reset, send_a_malformed_frame, fail_to_fetch]
)
async def test_connections_leave_no_cycles(tmp_path: Path, use: Callable[[Running], Awaitable[None]]) -> None:
    with trio.fail_after(LIMIT_S):
        async with running(tmp_path, {"group.initial.rebalance.delay.ms": 0}) as broker:
            await use(broker)
            await wait_all_tasks_blocked()
            with cycles() as found:
                for _ in range(FEW):
                    await use(broker)
                await wait_all_tasks_blocked()
            assert len(found) < FEW, told(found)
            assert not any(map(is_ours, found)), told(found)


async def test_what_exists_at_the_end_of_a_piece_is_exempt_from_collections() -> None:
    pacer = Pacer()

    async def pause() -> None:
        await pacer.pause()

    async def work() -> None:
        await pacer.in_worker(list, Session(listener="", peer=("", 0), local=("", 0)), 0)

    for end in (pause, work):
        kept: list[object] = [[]]
        await end()
        try:
            assert not any(each is kept for each in gc.get_objects())
        finally:
            gc.unfreeze()
        assert any(each is kept for each in gc.get_objects())
