"""WriteTxnMarkers as tools and other coordinators send it."""

from pathlib import Path
from typing import Any

import pytest

from tests.broker.api.transactions.asking import add, create, produce, started, values
from tests.broker.clients import running
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.protocol.errors import ErrorCode


async def write(client: KafkaClient, version: int = 2, topic: str = "words", **fields: Any) -> ErrorCode:
    """Write an abort marker to partition 0 of a topic."""
    topics = [{"name": topic, "partition_indexes": [0]}]
    marker = {"transaction_result": False, "coordinator_epoch": 0, "topics": topics, **fields}
    reply = await client.ask("WriteTxnMarkers", version, markers=[marker])
    [found] = reply["markers"][0]["topics"][0]["partitions"]
    return ErrorCode(found["error_code"])


@pytest.mark.parametrize("version", [1, 2])
async def test_a_tool_ends_a_transaction_that_hangs(tmp_path: Path, version: int) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        producer = await started(client)
        await add(client, producer, "words")
        assert await produce(client, producer, 11) is ErrorCode.NONE
        assert await values(client, "words") == ([], 0)
        asked = {name: producer[name] for name in ("producer_id", "producer_epoch")}
        assert await write(client, version, **asked) is ErrorCode.NONE
        assert await values(client, "words") == ([], 2)
        assert await write(client, version, **asked, topic="others") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        broker.stop.set()


@pytest.mark.parametrize(("producer_id", "producer_epoch"), [(-1, -1), (-1, 0), (-5, 3), (7, -1)])
async def test_a_marker_without_a_producer_is_refused(tmp_path: Path, producer_id: int, producer_epoch: int) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        error = await write(client, producer_id=producer_id, producer_epoch=producer_epoch)
        assert error is ErrorCode.INVALID_REQUEST
        assert await values(client, "words") == ([], 0)
        broker.stop.set()
