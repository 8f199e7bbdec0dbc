"""A `__consumer_offsets` partition written by Kafka and copied into a data directory."""

import shutil
from pathlib import Path

import pytest
import trio

from tests.broker.clients import running
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.broker.coordinator import reading
from warmlog.protocol.records.codec import java_hash

GOLDEN = Path(__file__).parents[2] / "fixtures/kafka/4.3.1/clean/__consumer_offsets-0"
GROUP, TOPIC, COMMITTED = "golden-group", "plain", 42
LOADING = 14
NEIGHBOUR = "group-2"  # belongs to the copied partition in a topic of fifty


async def committed(client: KafkaClient, group_id: str = GROUP) -> int:
    """Find the coordinator and fetch a group's committed offset, as clients do; -1 if there is none."""
    await client.ask("FindCoordinator", 4, key_type=0, coordinator_keys=[group_id])
    while True:
        asked = {"group_id": group_id, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}
        (group,) = (await client.ask("OffsetFetch", 8, groups=[asked]))["groups"]
        if group["error_code"] != LOADING:
            return int(group["topics"][0]["partitions"][0]["committed_offset"])
        await trio.lowlevel.checkpoint()


async def test_a_copied_directory_is_loaded_when_its_topic_is_created(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / GOLDEN.name)
    async with running(tmp_path, {"offsets.topic.num.partitions": 1}) as broker:
        await (await broker.connect()).create(TOPIC)
        async with kafka_client(broker.addresses.kafka) as client:
            assert await committed(client) == COMMITTED


async def test_groups_in_the_wrong_partition_are_logged_and_not_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The record is in partition 0, as in a topic of one partition; in a topic of fifty it belongs elsewhere."""
    assert java_hash(NEIGHBOUR) % 50 == 0
    shutil.copytree(GOLDEN, tmp_path / GOLDEN.name)
    async with running(tmp_path) as broker:
        await (await broker.connect()).create(TOPIC)
        async with kafka_client(broker.addresses.kafka) as client:
            assert await committed(client) == -1
            await committed(client, NEIGHBOUR)  # all that was copied is read by then
    assert "records of groups that belong to another partition" in caplog.text
    assert "offsets.topic.num.partitions" in caplog.text


async def test_groups_are_loaded_despite_a_flipped_bit_in_the_active_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "READ_BYTES", 100)  # so that a small log is read by its index
    settings = {"offsets.topic.num.partitions": 1, "log.index.interval.bytes": 0}
    async with running(tmp_path, settings) as broker:
        await (await broker.connect()).create(TOPIC)
        async with kafka_client(broker.addresses.kafka) as client:
            assert await committed(client) == -1
            for offset in range(20):
                partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
                topics = [{"name": TOPIC, "partitions": [partition]}]
                await client.ask("OffsetCommit", 8, group_id=GROUP, generation_id_or_member_epoch=-1, topics=topics)
    path = tmp_path / "__consumer_offsets-0" / f"{0:020}.index"
    content = bytearray(path.read_bytes())
    content[5 * 8 + 7] ^= 1  # in a position
    path.write_bytes(content)
    async with running(tmp_path, settings) as broker, kafka_client(broker.addresses.kafka) as client:
        with trio.fail_after(20):
            assert await committed(client) == 19
