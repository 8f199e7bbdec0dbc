"""`__transaction_state` is created, appended to and read by the shared log of coordinators."""

from pathlib import Path

from tests.broker.coordinator_log.loads import Loads
from tests.broker.rig import START_MS, rig
from warmlog.broker.coordinator_log.log import CoordinatorLog
from warmlog.broker.coordinator_log.reading import read_partition
from warmlog.broker.transactions.replay import ReplayedTransactions
from warmlog.broker.transactions.topic import STATE_TOPIC
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.transaction_records import StoredTransaction, encode_transaction, encode_transaction_key
from warmlog.protocol.transactions import TransactionState, TransactionVersion


async def test_the_topic_is_created_as_kafka_does(tmp_path: Path) -> None:
    async with rig(tmp_path) as broker:
        log = CoordinatorLog(STATE_TOPIC, broker.partitions, broker.writer, lambda: START_MS)
        assert await log.ensure() is ErrorCode.NONE
        assert log.partition_count == 50
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
    async with rig(tmp_path) as broker:
        log = CoordinatorLog(STATE_TOPIC, broker.partitions, broker.writer, lambda: START_MS)
        log.bind(Loads())
        await log.ensure()
        errors: list[ErrorCode] = []
        for name, state in states.items():
            row = (encode_transaction_key(name), encode_transaction(state, TransactionVersion.TV_2))
            log.append(name, [row], lambda error, _: errors.append(error))
        for partition in broker.partitions:
            await partition.appends.settled()
        assert errors == [ErrorCode.NONE] * 5
        found: dict[str, StoredTransaction] = {}
        for index in range(log.partition_count):
            partition = broker.partitions.get(STATE_TOPIC.name, index)
            assert partition is not None
            replay = await read_partition(partition)
            found |= dict(ReplayedTransactions(replay.latest, index, log.partition_of))
        assert found == states
