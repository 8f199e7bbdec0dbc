"""The transaction coordinator as clients of the Kafka listener see it."""

from pathlib import Path

import pytest
import trio

from tests.broker.api.transactions.asking import (
    TIMEOUT_MS,
    add,
    add_batched,
    create,
    describe,
    end,
    find,
    init,
    produce,
    started,
    until,
    values,
)
from tests.broker.clients import running
from tests.broker.kafka_client import kafka_client
from warmlog.broker.transactions.markers import MARKERS_PER_STEP
from warmlog.protocol.errors import ErrorCode


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


@pytest.mark.parametrize("verify_only", [False, True])
async def test_brokers_add_no_partitions_that_do_not_exist(tmp_path: Path, verify_only: bool) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        producer = await started(client)
        for topic, index in (("others", 0), ("words", 1), ("words", -1)):
            places = [{"name": topic, "partitions": [index]}]
            error = await add_batched(client, **producer, verify_only=verify_only, topics=places)
            assert error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await describe(client))["transaction_state"] == "Empty"
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


async def test_an_unknown_id_is_not_described(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await started(client)
        assert (await describe(client, "nobody"))["error_code"] == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert (await describe(client, ""))["error_code"] == ErrorCode.INVALID_REQUEST
        broker.stop.set()


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


async def test_a_batch_of_an_epoch_that_its_log_has_fenced_does_not_add_its_partition(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        producer = await started(client)
        marker = {
            "producer_id": producer["producer_id"],
            "producer_epoch": producer["producer_epoch"] + 1,
            "transaction_result": False,
            "topics": [{"name": "words", "partition_indexes": [0]}],
        }
        await client.ask("WriteTxnMarkers", markers=[marker])
        assert await produce(client, producer) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert (await describe(client))["transaction_state"] == "Empty"
        broker.stop.set()


async def test_a_new_client_begins_in_a_partition_with_sequence_0(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        producer = await started(client)
        assert await produce(client, producer, sequence=1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await produce(client, producer) is ErrorCode.NONE
        assert await produce(client, producer, sequence=1) is ErrorCode.NONE
        broker.stop.set()


async def test_more_partitions_than_a_transaction_may_have_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"warmlog.transaction.partitions.max": 1}
    async with running(tmp_path, settings) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        await create(client, "numbers")
        producer = await started(client)
        assert await produce(client, producer) is ErrorCode.NONE
        refused = await add(client, producer, "words", "numbers")
        assert refused == dict.fromkeys(("words", "numbers"), ErrorCode.POLICY_VIOLATION)
        assert "raise warmlog.transaction.partitions.max" in caplog.text
        assert await end(client, producer) is ErrorCode.NONE  # what was admitted can still be committed
        broker.stop.set()


async def test_more_transactional_ids_than_the_limit_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"warmlog.transactional.ids.max": 1}
    async with running(tmp_path, settings) as broker, kafka_client(broker.addresses.kafka) as client:
        await started(client)
        assert (await init(client, "another"))["error_code"] == ErrorCode.POLICY_VIOLATION
        assert "raise warmlog.transactional.ids.max" in caplog.text
        broker.stop.set()


async def test_a_transaction_over_many_partitions_gets_a_marker_in_each(tmp_path: Path) -> None:
    count = 2 * MARKERS_PER_STEP + 1
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words", count)
        producer = await started(client)
        asked = {**producer, "topics": [{"name": "words", "partitions": list(range(count))}], "verify_only": False}
        reply = await client.ask("AddPartitionsToTxn", transactions=[asked])
        [topic] = reply["results_by_transaction"][0]["topic_results"]
        assert {one["partition_error_code"] for one in topic["results_by_partition"]} == {ErrorCode.NONE}
        assert await end(client, producer) is ErrorCode.NONE
        await until(client, "CompleteCommit")
        asked_ends = [{"partition_index": index, "timestamp": -1} for index in range(count)]
        reply = await client.ask("ListOffsets", 7, replica_id=-1, topics=[{"name": "words", "partitions": asked_ends}])
        assert [one["offset"] for one in reply["topics"][0]["partitions"]] == [1] * count
        broker.stop.set()


async def test_a_transaction_that_is_open_for_too_long_is_aborted(tmp_path: Path) -> None:
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 1}
    async with running(tmp_path, settings) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        await find(client, "orders")
        found = await init(client, transaction_timeout_ms=1)
        producer = {name: found[name] for name in ("producer_id", "producer_epoch")} | {"transactional_id": "orders"}
        error = await produce(client, producer)
        # The abort may be faster than the append, and end before it, too.
        assert error in {ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH}
        await until(client, "CompleteAbort")
        assert (await values(client, "words"))[0] == []
        assert await produce(client, producer, sequence=1) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await end(client, producer) is ErrorCode.INVALID_TXN_STATE  # it was aborted
        broker.stop.set()


async def test_an_id_that_is_not_used_expires(tmp_path: Path) -> None:
    settings = {
        "transaction.remove.expired.transaction.cleanup.interval.ms": 1,
        "transactional.id.expiration.ms": 1,
    }
    async with running(tmp_path, settings) as broker, kafka_client(broker.addresses.kafka) as client:
        producer = await started(client)
        while (await describe(client))["error_code"] != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            await trio.lowlevel.checkpoint()
        assert await end(client, producer) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        broker.stop.set()


@pytest.mark.parametrize(("level", "epoch"), [(1, 1), (2, 2)])
async def test_a_successor_gets_an_epoch_more_where_every_end_raises_it(tmp_path: Path, level: int, epoch: int) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        update = {"feature": "transaction.version", "max_version_level": level, "upgrade_type": 2}
        await client.ask("UpdateFeatures", feature_updates=[update if level < 2 else update | {"upgrade_type": 1}])
        await create(client, "words")
        producer = await started(client)
        await add(client, producer, "words")
        assert (await init(client))["error_code"] == ErrorCode.CONCURRENT_TRANSACTIONS  # the abort has begun
        found = await until(client, "CompleteAbort")
        assert found["producer_epoch"] == 1
        assert (await init(client))["producer_epoch"] == epoch + (level < 2)
        broker.stop.set()
