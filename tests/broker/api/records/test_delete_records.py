"""DeleteRecords and DescribeLogDirs, asked of a broker as Kafka's clients ask."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.broker.clients import RawClient, Running, batch, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.broker.log.directory.checkpoint import LOG_STARTS, read_offsets
from warmlog.broker.log.io.disk import Disk
from warmlog.protocol.errors import ErrorCode


async def delete(client: KafkaClient, offset: int, topic: str = "orders", partition: int = 0) -> tuple[int, ErrorCode]:
    """(low watermark, error)."""
    asked = [{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}]
    reply = await client.ask("DeleteRecords", topics=asked, timeout_ms=1000)
    found = reply["topics"][0]["partitions"][0]
    return found["low_watermark"], ErrorCode(found["error_code"])


async def ends(client: KafkaClient, topic: str = "orders") -> list[int]:
    """The first and the last offset, as ListOffsets says."""
    found = []
    for timestamp in (-2, -1):
        asked = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": timestamp}]}]
        reply = await client.ask("ListOffsets", topics=asked)
        found.append(reply["topics"][0]["partitions"][0]["offset"])
    return found


async def filled(broker: Running, batches: int = 10, **configs: str) -> RawClient:
    client = await broker.connect()
    await client.create("orders", **configs)
    for number in range(batches):
        await client.produce("orders", batch(b"%d" % number))
    return client


async def test_records_are_deleted_up_to_an_offset_and_stay_deleted(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        native = await filled(broker)
        async with kafka_client(broker.addresses.kafka) as client:
            assert await delete(client, 4) == (4, ErrorCode.NONE)
            assert read_offsets(Disk(), f"{tmp_path}/{LOG_STARTS}") == {("orders", 0): 4}
            assert await ends(client) == [4, 10]
            assert await delete(client, 2) == (4, ErrorCode.NONE)
            assert (await native.fetch("orders", 3)).error is ErrorCode.OFFSET_OUT_OF_RANGE
            assert (await native.fetch("orders", 4)).log_start_offset == 4
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        assert await ends(client) == [4, 10]
        assert await delete(client, -1) == (10, ErrorCode.NONE)
        assert await ends(client) == [10, 10]


async def test_of_a_partition_that_is_named_twice_the_last_offset_counts(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await filled(broker)
        async with kafka_client(broker.addresses.kafka) as client:
            partitions = [{"partition_index": 0, "offset": offset} for offset in (7, 3)]
            reply = await client.ask(
                "DeleteRecords", topics=[{"name": "orders", "partitions": partitions}], timeout_ms=1000
            )
            (found,) = reply["topics"][0]["partitions"]
            assert (found["low_watermark"], found["error_code"]) == (3, ErrorCode.NONE)
            assert await ends(client) == [3, 10]
        broker.stop.set()


async def test_what_cannot_be_deleted_is_refused_with_kafkas_errors(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        native = await filled(broker)
        assert await delete(client, 11) == (-1, ErrorCode.OFFSET_OUT_OF_RANGE)
        assert await delete(client, -2) == (-1, ErrorCode.OFFSET_OUT_OF_RANGE)
        assert await delete(client, 1, partition=7) == (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert await delete(client, 1, topic="others") == (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        await native.create("__consumer_offsets", cleanup_policy="compact,delete")
        assert await delete(client, 0, topic="__consumer_offsets") == (-1, ErrorCode.INVALID_TOPIC_EXCEPTION)
        for policy, error in (
            ("compact", ErrorCode.POLICY_VIOLATION),
            ("compact,delete", ErrorCode.NONE),
            ("delete", ErrorCode.NONE),
            ("", ErrorCode.NONE),
        ):
            await native.create(f"of.{policy.replace(',', '.')}", cleanup_policy=policy)
            assert (await delete(client, 0, topic=f"of.{policy.replace(',', '.')}"))[1] is error


async def test_a_start_that_cannot_be_written_down_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await filled(broker)
        os.mkdir(tmp_path / f"{LOG_STARTS}.tmp")
        assert await delete(client, 4) == (-1, ErrorCode.KAFKA_STORAGE_ERROR)
        os.rmdir(tmp_path / f"{LOG_STARTS}.tmp")


async def log_dirs(client: KafkaClient, topics: list[dict[str, Any]] | None) -> dict[str, Any]:
    reply = await client.ask("DescribeLogDirs", topics=topics)
    assert reply["error_code"] == ErrorCode.NONE
    assert len(reply["results"]) == 1
    found: dict[str, Any] = reply["results"][0]
    return found


async def test_log_dirs_say_how_large_partitions_are_and_how_much_room_there_is(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await filled(broker)
        await (await broker.connect()).create("empty", partitions=2)
        found = await log_dirs(client, None)
        sizes = {
            (topic["name"], each["partition_index"]): each["partition_size"]
            for topic in found["topics"]
            for each in topic["partitions"]
        }
        size = (tmp_path / "orders-0" / f"{0:020d}.log").stat().st_size
        assert sizes == {("orders", 0): size, ("empty", 0): 0, ("empty", 1): 0}
        assert all(not each["offset_lag"] for topic in found["topics"] for each in topic["partitions"])
        assert found["log_dir"] == str(tmp_path.resolve())
        assert found["total_bytes"] >= found["usable_bytes"] > 0


async def test_log_dirs_are_told_for_the_partitions_asked_for(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await filled(broker)
        asked = [{"topic": "orders", "partitions": [0, 0, 5]}, {"topic": "others", "partitions": [0]}]
        found = await log_dirs(client, asked)
        assert [(topic["name"], len(topic["partitions"])) for topic in found["topics"]] == [("orders", 1)]
        assert (await log_dirs(client, []))["topics"] == ()


async def test_every_data_directory_is_told_with_what_lies_in_it_and_the_offline_ones_with_an_error(
    tmp_path: Path,
) -> None:
    paths = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    paths[2].write_text("no directory")
    settings = {"log.dirs": ",".join(map(str, paths))}
    async with running(tmp_path, settings) as broker, kafka_client(broker.addresses.kafka) as client:
        await (await broker.connect()).create("orders", partitions=3)
        results = (await client.ask("DescribeLogDirs", topics=None))["results"]
        told = {
            result["log_dir"]: (
                result["error_code"],
                sorted(each["partition_index"] for topic in result["topics"] for each in topic["partitions"]),
            )
            for result in results
        }
    assert told == {
        str(paths[0]): (ErrorCode.NONE, [0, 2]),
        str(paths[1]): (ErrorCode.NONE, [1]),
        str(paths[2]): (ErrorCode.KAFKA_STORAGE_ERROR, []),
    }
    assert all(result["total_bytes"] >= result["usable_bytes"] > 0 for result in results[:2])
