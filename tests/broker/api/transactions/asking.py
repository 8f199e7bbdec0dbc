"""Requests of transactional producers and tools, shared by tests of the Kafka listener."""

import time
from typing import Any

import trio

from tests.broker.kafka_client import KafkaClient
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import TRANSACTIONAL_BIT
from warmlog.protocol.records.reader import decode_batch

TIMEOUT_MS = 60_000


async def find(client: KafkaClient, *names: str) -> dict[str, Any]:
    return await client.ask("FindCoordinator", 6, key_type=1, coordinator_keys=list(names))


async def init(client: KafkaClient, name: str = "orders", version: int | None = None, **fields: Any) -> dict[str, Any]:
    asked = {"transactional_id": name, "transaction_timeout_ms": TIMEOUT_MS, **fields}
    return await client.ask("InitProducerId", version, **asked)


async def started(client: KafkaClient, name: str = "orders") -> dict[str, Any]:
    """Find the coordinator and return the producer of an id as fields of the next requests."""
    assert (await find(client, name))["coordinators"][0]["error_code"] == ErrorCode.NONE
    found = await init(client, name)
    assert found["error_code"] == ErrorCode.NONE
    return {
        "transactional_id": name,
        "producer_id": found["producer_id"],
        "producer_epoch": found["producer_epoch"],
    }


async def create(client: KafkaClient, name: str, partitions: int = 1) -> None:
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
    reply = await client.ask("CreateTopics", topics=[topic], timeout_ms=1000)
    assert reply["topics"][0]["error_code"] == ErrorCode.NONE


async def add(client: KafkaClient, producer: dict[str, Any], *topics: str, version: int = 3) -> dict[str, ErrorCode]:
    """Add partition 0 of topics, as a client."""
    reply = await client.ask(
        "AddPartitionsToTxn",
        version,
        **{f"v3_and_below_{name}": value for name, value in producer.items()},
        v3_and_below_topics=[{"name": name, "partitions": [0]} for name in topics],
    )
    return {
        one["name"]: ErrorCode(one["results_by_partition"][0]["partition_error_code"])
        for one in reply["results_by_topic_v3_and_below"]
    }


async def add_batched(client: KafkaClient, version: int = 5, **transaction: Any) -> ErrorCode:
    """Add or verify one partition, as a broker."""
    reply = await client.ask("AddPartitionsToTxn", version, transactions=[transaction])
    assert reply["error_code"] == ErrorCode.NONE
    [result] = reply["results_by_transaction"]
    return ErrorCode(result["topic_results"][0]["results_by_partition"][0]["partition_error_code"])


async def describe(client: KafkaClient, name: str = "orders") -> dict[str, Any]:
    reply = await client.ask("DescribeTransactions", transactional_ids=[name])
    found: dict[str, Any] = reply["transaction_states"][0]
    return found


async def listed(client: KafkaClient, version: int = 2, **filters: Any) -> list[tuple[str, str]]:
    asked = {"state_filters": [], "producer_id_filters": [], **filters}
    reply = await client.ask("ListTransactions", version, **asked)
    assert reply["error_code"] == ErrorCode.NONE
    return [(one["transactional_id"], one["transaction_state"]) for one in reply["transaction_states"]]


async def produce(
    client: KafkaClient, producer: dict[str, Any], version: int = 12, *, value: bytes = b"value", sequence: int = 0
) -> ErrorCode:
    """Produce one record of a transaction to words-0."""
    records = build_batch(
        [(time.time_ns() // 1_000_000, None, value, ())],
        producer_id=producer["producer_id"],
        producer_epoch=producer["producer_epoch"],
        base_sequence=sequence,
        attributes=TRANSACTIONAL_BIT,
    )
    data = [{"name": "words", "partition_data": [{"index": 0, "records": records}]}]
    transactional_id = producer["transactional_id"]
    reply = await client.ask(
        "Produce", version, transactional_id=transactional_id, acks=-1, timeout_ms=1000, topic_data=data
    )
    return ErrorCode(reply["responses"][0]["partition_responses"][0]["error_code"])


async def end(client: KafkaClient, producer: dict[str, Any], version: int = 5, *, commits: bool = True) -> ErrorCode:
    """End a transaction; a producer of version 5 or later takes over its next epoch."""
    reply = await client.ask("EndTxn", version, **producer, committed=commits)
    if version >= 5 and reply["error_code"] == ErrorCode.NONE:
        producer |= {name: reply[name] for name in ("producer_id", "producer_epoch")}
    return ErrorCode(reply["error_code"])


async def until(client: KafkaClient, state: str, name: str = "orders") -> dict[str, Any]:
    """Ask until an id is in a state; return its description."""
    while (found := await describe(client, name))["transaction_state"] != state:
        await trio.lowlevel.checkpoint()
    return found


async def values(client: KafkaClient, topic: str, isolation: int = 1) -> tuple[list[bytes | None], int]:
    """Fetch from the start of partition 0; return the values of its records, aborted ones left out, and its LSO."""
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }
    asked = {"replica_id": -1, "max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": isolation}
    topics = [{"topic": topic, "partitions": [partition]}]
    reply = await client.ask("Fetch", 11, **asked, session_id=0, session_epoch=-1, topics=topics)
    [found] = reply["responses"][0]["partitions"]
    assert found["error_code"] == ErrorCode.NONE
    aborted = {(one["producer_id"], one["first_offset"]) for one in found["aborted_transactions"] or ()}
    return committed_values(bytes(found["records"] or b""), aborted), found["last_stable_offset"]


def committed_values(data: bytes, aborted: set[tuple[int, int]]) -> list[bytes | None]:
    """Return the values of all records but markers and those of aborted transactions, as a consumer does."""
    open_aborted: set[int] = set()
    found: list[bytes | None] = []
    for position, header in headers(data):
        open_aborted |= {producer for producer, first in aborted if first <= header.last_offset}
        if header.is_control:
            open_aborted.discard(header.producer_id)
            aborted = {one for one in aborted if one[0] != header.producer_id or one[1] > header.last_offset}
        elif header.producer_id not in open_aborted:
            found += [record.value for record in decode_batch(data, position, header)]
    return found


async def commit_offset(client: KafkaClient, producer: dict[str, Any], version: int = 5, **fields: Any) -> ErrorCode:
    """Commit offset 7 of words-0 for the group `readers` within the transaction."""
    offset = {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}
    topics = [{"name": "words", "partitions": [offset]}]
    member = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    asked = {**producer, "group_id": "readers", "topics": topics, **member, **fields}
    reply = await client.ask("TxnOffsetCommit", version, **asked)
    return ErrorCode(reply["topics"][0]["partitions"][0]["error_code"])


async def committed_offset(client: KafkaClient, *, stable: bool) -> tuple[ErrorCode, int]:
    """The committed offset, once the coordinator has read its log."""
    topics = [{"name": "words", "partition_indexes": [0]}]
    while True:
        reply = await client.ask("OffsetFetch", 7, group_id="readers", topics=topics, require_stable=stable)
        if reply["error_code"] != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            break
    [found] = reply["topics"][0]["partitions"]
    return ErrorCode(found["error_code"]), found["committed_offset"]
