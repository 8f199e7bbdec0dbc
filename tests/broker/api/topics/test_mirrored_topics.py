"""Topics that follow another cluster: clients read them, and every request that would change them is refused."""

from pathlib import Path
from typing import Any

import pytest

from tests.broker.api.transactions.asking import add, create, started, values
from tests.broker.clients import batch, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.broker.rig import rig
from tests.broker.stored_topics import stored_topics
from warmlog.broker.metadata.topic import InvalidTopicError, Mirror, MirroredTopicError, Topic
from warmlog.broker.partitions.topics.errors import UnknownTopicError
from warmlog.protocol.errors import ErrorCode

REFUSED = ErrorCode.POLICY_VIOLATION
COPY = Topic(name="copy", partitions=2, mirror=Mirror(cluster_id="source"))


def follow_a_source(directory: Path, topic: str) -> None:
    """Make a stopped broker's topic a mirror."""
    with stored_topics(directory) as stored:
        stored.set_mirror(topic, Mirror(cluster_id="source"))


async def produce(client: KafkaClient, topic: str) -> tuple[ErrorCode, str | None]:
    data = [{"name": topic, "partition_data": [{"index": 0, "records": batch(b"value")}]}]
    reply = await client.ask("Produce", 9, acks=-1, timeout_ms=1000, topic_data=data)
    found = reply["responses"][0]["partition_responses"][0]
    return ErrorCode(found["error_code"]), found["error_message"]


async def test_clients_read_a_mirrored_topic_and_cannot_change_it(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, "words")
        assert await produce(client, "words") == (ErrorCode.NONE, None)
        broker.stop.set()
    follow_a_source(tmp_path, "words")
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        code, message = await produce(client, "words")
        assert code is REFUSED
        assert message is not None
        assert "a mirror of cluster source, and read-only until it is promoted" in message
        producer = await started(client)
        assert await add(client, producer, "words") == {"words": REFUSED}
        assert await markers(client, producer) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await deleted_records(client) is REFUSED
        grown = await client.ask(
            "CreatePartitions", topics=[{"name": "words", "count": 3, "assignments": None}], timeout_ms=1000
        )
        assert grown["results"][0]["error_code"] == REFUSED
        for api, fields in (("AlterConfigs", {}), ("IncrementalAlterConfigs", {"config_operation": 0})):
            config = {"name": "retention.ms", "value": "1000", **fields}
            resource = {"resource_type": 2, "resource_name": "words", "configs": [config]}
            altered = await client.ask(api, resources=[resource], validate_only=False)
            assert altered["responses"][0]["error_code"] == REFUSED
        assert await values(client, "words") == ([b"value"], 1)
        gone = await client.ask("DeleteTopics", 5, topic_names=["words"], timeout_ms=1000)
        assert gone["responses"][0]["error_code"] == ErrorCode.NONE
        broker.stop.set()


async def markers(client: KafkaClient, producer: dict[str, Any]) -> ErrorCode:
    reply = await client.ask(
        "WriteTxnMarkers",
        1,
        markers=[
            {
                "producer_id": producer["producer_id"],
                "producer_epoch": producer["producer_epoch"],
                "transaction_result": False,
                "topics": [{"name": "words", "partition_indexes": [0]}],
                "coordinator_epoch": 0,
            }
        ],
    )
    return ErrorCode(reply["markers"][0]["topics"][0]["partitions"][0]["error_code"])


async def deleted_records(client: KafkaClient) -> ErrorCode:
    asked = [{"name": "words", "partitions": [{"partition_index": 0, "offset": 1}]}]
    reply = await client.ask("DeleteRecords", topics=asked, timeout_ms=1000)
    return ErrorCode(reply["topics"][0]["partitions"][0]["error_code"])


async def test_a_promoted_topic_is_writable_and_remembers_where_it_was(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        partitions = made.partitions
        assert await partitions.create_all([COPY]) == {}
        assert {partition.mirror_of for partition in partitions} == {"source"}
        await made.append(partitions.require("copy", 1), 3)  # what follows a source does not ask a client's way
        with pytest.raises(MirroredTopicError):
            await partitions.alter("copy", lambda configs: {**configs, "retention.ms": "5"})
        changed = await partitions.changes.alter("copy", lambda _: {"retention.ms": "5"}, 3, for_mirror=True)
        assert (changed.partitions, changed.configs) == (3, {"retention.ms": "5"})
        assert partitions.require("copy", 2).mirror_of == "source"
        promoted = await partitions.changes.promote("copy", {})
        assert promoted.mirror == Mirror(cluster_id="source", promoted_at=(0, 3, 0))
        assert {partition.mirror_of for partition in partitions} == {None}
        await partitions.alter("copy", lambda _: {})
        with pytest.raises(InvalidTopicError, match="is not a mirror any more"):
            await partitions.changes.promote("copy", {})
    async with rig(tmp_path) as made:
        (topic,) = made.partitions.topics()
        assert topic.mirror == promoted.mirror
        assert {partition.mirror_of for partition in made.partitions} == {None}


async def test_only_a_mirrored_topic_is_promoted(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        await made.create("own")
        with pytest.raises(InvalidTopicError, match=r"'own' is not a mirror$"):
            await made.partitions.changes.promote("own", {})
        with pytest.raises(UnknownTopicError):
            await made.partitions.changes.promote("none", {})


async def test_a_topic_is_still_mirrored_after_a_restart(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        assert await made.partitions.create_all([COPY]) == {}
    async with rig(tmp_path) as made:
        assert made.partitions.topics() == [COPY]
        assert {partition.mirror_of for partition in made.partitions} == {"source"}
