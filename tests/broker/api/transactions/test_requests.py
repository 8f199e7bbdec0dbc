"""The transaction coordinator as clients of the Kafka listener see it."""

from pathlib import Path
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.records.builder import build_batch
from protocol.records.layout import TRANSACTIONAL_BIT
from tests.broker.clients import running
from tests.broker.kafka_client import KafkaClient, kafka_client

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


async def test_a_new_producer_of_an_id_gets_the_next_epoch_also_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        first = await started(client)
        second = await init(client)
        assert (second["producer_id"], second["producer_epoch"]) == (first["producer_id"], 1)
        broker.stop.set()
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        third = await init(client)
        while third["error_code"] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            third = await init(client)
        assert (third["producer_id"], third["producer_epoch"]) == (first["producer_id"], 2)
        broker.stop.set()


async def test_the_topic_is_created_when_the_coordinator_is_looked_up(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        assert (await init(client))["error_code"] == ErrorCode.NOT_COORDINATOR
        [found] = (await find(client, "orders"))["coordinators"]
        assert (found["error_code"], found["node_id"]) == (ErrorCode.NONE, 1)
        assert (await init(client))["error_code"] == ErrorCode.NONE
        broker.stop.set()


@pytest.mark.parametrize(("version", "code"), [(5, ErrorCode.PRODUCER_FENCED), (3, ErrorCode.INVALID_PRODUCER_EPOCH)])
async def test_a_producer_with_an_old_epoch_is_fenced(tmp_path: Path, version: int, code: ErrorCode) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        old = await started(client)
        for _ in range(3):
            await init(client)
        expected = {"producer_id": old["producer_id"], "producer_epoch": old["producer_epoch"]}
        assert (await init(client, version=version, **expected))["error_code"] == code
        broker.stop.set()


async def test_old_clients_know_a_fenced_producer_by_its_epoch(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        old = await started(client)
        await init(client)
        assert await add(client, old, "words", version=1) == {"words": ErrorCode.INVALID_PRODUCER_EPOCH}
        assert await add(client, old, "words", version=2) == {"words": ErrorCode.PRODUCER_FENCED}
        reply = await client.ask("EndTxn", 1, **old, committed=True)
        assert reply["error_code"] == ErrorCode.INVALID_PRODUCER_EPOCH
        broker.stop.set()


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
async def test_a_timeout_out_of_range_is_refused(tmp_path: Path, timeout_ms: int) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await find(client, "orders")
        reply = await init(client, transaction_timeout_ms=timeout_ms)
        assert reply["error_code"] == ErrorCode.INVALID_TRANSACTION_TIMEOUT
        broker.stop.set()


async def test_partitions_are_added_all_or_none(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        producer = await started(client)
        assert await add(client, producer, "words", "nothing", "__transaction_state") == {
            "words": ErrorCode.OPERATION_NOT_ATTEMPTED,
            "nothing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "__transaction_state": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        }
        assert (await describe(client))["transaction_state"] == "Empty"
        assert await add(client, producer, "words") == {"words": ErrorCode.NONE}
        found = await describe(client)
        assert (found["transaction_state"], found["transaction_timeout_ms"]) == ("Ongoing", TIMEOUT_MS)
        assert found["topics"] == ({"topic": "words", "partitions": (0,)},)
        broker.stop.set()


async def test_brokers_add_and_verify_partitions_in_batches(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        producer = await started(client)
        asked = {**producer, "topics": [{"name": "words", "partitions": [0]}]}
        assert await add_batched(client, **asked, verify_only=True) is ErrorCode.TRANSACTION_ABORTABLE
        assert await add_batched(client, **asked, verify_only=False) is ErrorCode.NONE
        assert await add_batched(client, **asked, verify_only=True) is ErrorCode.NONE
        broker.stop.set()


async def test_the_offsets_of_a_group_are_added_by_their_partition(tmp_path: Path) -> None:
    settings = {"offsets.topic.num.partitions": 1}
    async with running(tmp_path, settings) as broker, kafka_client(broker.addresses.kafka) as client:
        producer = await started(client)
        reply = await client.ask("AddOffsetsToTxn", **producer, group_id="readers")
        assert reply["error_code"] == ErrorCode.NONE
        assert (await describe(client))["topics"] == ({"topic": "__consumer_offsets", "partitions": (0,)},)
        broker.stop.set()


async def test_an_end_raises_the_epoch_for_new_clients_and_keeps_it_for_old_ones(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        producer = await started(client)
        reply = await client.ask("EndTxn", 5, **producer, committed=False)
        assert (reply["error_code"], reply["producer_id"], reply["producer_epoch"]) == (
            ErrorCode.NONE,
            producer["producer_id"],
            1,
        )
        reply = await client.ask("EndTxn", 4, **{**producer, "producer_epoch": 1}, committed=True)
        assert reply["error_code"] == ErrorCode.INVALID_TXN_STATE  # no transaction is open
        broker.stop.set()


async def test_transactions_are_listed_by_state_producer_and_duration(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        open_one, idle = await started(client, "open"), await started(client, "idle")
        await add(client, open_one, "words")
        for version in range(3):
            assert sorted(await listed(client, version)) == [("idle", "Empty"), ("open", "Ongoing")]
        assert await listed(client, state_filters=["Ongoing"]) == [("open", "Ongoing")]
        assert await listed(client, producer_id_filters=[idle["producer_id"]]) == [("idle", "Empty")]
        assert await listed(client, state_filters=["Ongoing"], duration_filter=3_600_000) == []
        broker.stop.set()


async def test_unknown_states_are_named_once_and_select_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await started(client)
        asked = {"state_filters": ["Ongoing", "Nope", "Nope"], "producer_id_filters": []}
        reply = await client.ask("ListTransactions", **asked)
        assert reply["unknown_state_filters"] == ("Nope",)
        assert await listed(client, state_filters=["Nope"]) == []
        broker.stop.set()


async def test_an_unknown_id_is_not_described(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await started(client)
        assert (await describe(client, "nobody"))["error_code"] == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert (await describe(client, ""))["error_code"] == ErrorCode.INVALID_REQUEST
        broker.stop.set()


async def produce(client: KafkaClient, producer: dict[str, Any], version: int) -> ErrorCode:
    """Produce one record of a transaction to words-0."""
    records = build_batch(
        [(0, None, b"value", ())],
        producer_id=producer["producer_id"],
        producer_epoch=producer["producer_epoch"],
        base_sequence=0,
        attributes=TRANSACTIONAL_BIT,
    )
    data = [{"name": "words", "partition_data": [{"index": 0, "records": records}]}]
    transactional_id = producer["transactional_id"]
    reply = await client.ask(
        "Produce", version, transactional_id=transactional_id, acks=-1, timeout_ms=1000, topic_data=data
    )
    return ErrorCode(reply["responses"][0]["partition_responses"][0]["error_code"])


@pytest.mark.parametrize(
    ("version", "code"), [(11, ErrorCode.TRANSACTION_ABORTABLE), (10, ErrorCode.INVALID_TXN_STATE)]
)
async def test_a_batch_for_a_partition_that_was_not_added_is_refused(
    tmp_path: Path, version: int, code: ErrorCode
) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        producer = await started(client)
        assert await produce(client, producer, version) is code
        stale = {**producer, "producer_epoch": 7}
        assert await produce(client, stale, version) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert (await describe(client))["transaction_state"] == "Empty"
        broker.stop.set()


async def test_a_batch_of_a_new_client_adds_its_partition(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        producer = await started(client)
        await produce(client, producer, 12)
        found = await describe(client)
        assert (found["transaction_state"], found["topics"]) == ("Ongoing", ({"topic": "words", "partitions": (0,)},))
        broker.stop.set()
