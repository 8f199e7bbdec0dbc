"""`__transaction_state` is created, appended to and read by the shared log of coordinators."""

import shutil
from pathlib import Path

import pytest

from tests.broker.rig import START_MS, rig
from tests.broker.transactions.serving import serving
from warmlog.broker.coordinator.runtime import CoordinatorRuntime
from warmlog.broker.transactions.shard import TransactionShard
from warmlog.broker.transactions.topic import STATE_TOPIC
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.kafka.transaction_records import StoredTransaction, encode_transaction, encode_transaction_key
from warmlog.protocol.transactions import TransactionState, TransactionVersion

KAFKAS = Path(__file__).parents[2] / "fixtures/kafka/4.3.1/clean/__transaction_state-0"
VALUE = encode_transaction(
    StoredTransaction(producer_id=1, producer_epoch=0, timeout_ms=1, state=TransactionState.EMPTY, updated_ms=0),
    TransactionVersion.TV_2,
)


async def test_the_topic_is_created_as_kafka_does(tmp_path: Path) -> None:
    async with rig(tmp_path) as broker:
        runtime: CoordinatorRuntime[TransactionShard] = CoordinatorRuntime(
            STATE_TOPIC, broker.partitions, broker.writer, lambda: START_MS
        )
        assert await runtime.ensure() is ErrorCode.NONE
        assert runtime.partition_count == 50
        partition = broker.partitions.get("__transaction_state", 0)
        assert partition is not None
        assert partition.log.config.segment_bytes == 100 << 20


async def test_transactions_are_read_as_they_were_appended(tmp_path: Path) -> None:
    states = {
        f"id-{number}": StoredTransaction(
            producer_id=number,
            producer_epoch=0,
            timeout_ms=60_000,
            state=TransactionState.ONGOING,
            partitions=frozenset({("orders", number)}),
            updated_ms=START_MS,
            started_ms=START_MS,
        )
        for number in range(5)
    }
    async with serving(tmp_path) as broker:
        runtime = broker.service.runtime
        errors: list[ErrorCode] = []
        for name, state in states.items():
            shard = runtime.shard_of(name)
            assert shard is not None
            row = (encode_transaction_key(name), encode_transaction(state, TransactionVersion.TV_2))
            runtime.append(shard.term, name, [row], lambda error, _: errors.append(error))
        for partition in broker.rig.partitions:
            await partition.appends.settled()
        assert errors == [ErrorCode.NONE] * 5
    async with serving(tmp_path) as broker:
        found = {
            name: transaction.metadata.stored()
            for shard in broker.service.runtime.shards()
            for name, transaction in shard.transactions.items()
        }
        assert found == states


async def test_kafkas_log_comes_to_its_last_states(tmp_path: Path) -> None:
    shutil.copytree(KAFKAS, tmp_path / "__transaction_state-0")
    async with serving(tmp_path, transaction_state_log_num_partitions=1) as broker:
        found = {
            name: (each.metadata.producer_id, each.metadata.producer_epoch, each.metadata.state)
            for shard in broker.service.runtime.shards()
            for name, each in shard.transactions.items()
        }
        assert found == {
            "first": (2, 12, TransactionState.COMPLETE_ABORT),
            "second": (3, 1, TransactionState.COMPLETE_ABORT),
        }


@pytest.mark.parametrize(("key", "value"), [(b"\0\5x", VALUE), (encode_transaction_key("id"), b"\0\2x")])
def test_records_of_unknown_types_and_versions_are_not_decoded(key: bytes, value: bytes) -> None:
    assert STATE_TOPIC.decode(key, value) is None


@pytest.mark.parametrize(("key", "value"), [(b"\0\0\0", VALUE), (encode_transaction_key("id"), VALUE[:-1])])
def test_a_malformed_record_is_refused(key: bytes, value: bytes) -> None:
    with pytest.raises(MalformedError):
        STATE_TOPIC.decode(key, value)
