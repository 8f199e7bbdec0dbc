"""Produce on the Kafka listener: what Kafka says to unusual and wrong batches is said here, over a socket."""

from pathlib import Path
from typing import Any

import pytest

from tests.broker.clients import running
from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.golden.verdicts import expected_error, tells_records, verdicts
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.builder import Codec, build_batch

#: Their times were recent when Kafka was asked.
BY_THE_CLOCK = {"recent", "one record of three is past", "gzip, one record of three is past"}
FIRST_WITH_MESSAGE = 8
FIRST_WITH_TOPIC_ID = 13


async def create(client: KafkaClient, topics: dict[str, dict[str, Any]]) -> None:
    wanted = [
        {
            "name": name,
            "num_partitions": 1,
            "replication_factor": 1,
            "configs": tuple({"name": key, "value": str(value)} for key, value in configs.items()),
        }
        for name, configs in topics.items()
    ]
    reply = await client.ask("CreateTopics", 5, topics=tuple(wanted), timeout_ms=1000)
    assert {topic["error_code"] for topic in reply["topics"]} == {0}, reply


async def produce(client: KafkaClient, topic: str, data: bytes, version: int) -> dict[str, Any]:
    part = {"index": 0, "records": data}
    reply = await client.ask(
        "Produce", version, acks=-1, timeout_ms=1000, topic_data=({"name": topic, "partition_data": (part,)},)
    )
    outcome: dict[str, Any] = reply["responses"][0]["partition_responses"][0]
    return outcome


@pytest.mark.parametrize("version", [8, 12])
async def test_kafkas_verdicts(version: int, tmp_path: Path, kafka_fixtures: Path) -> None:
    lines = [line for line in verdicts(kafka_fixtures) if line["name"] not in BY_THE_CLOCK]
    settings = {str(line["configs"]): line["configs"] for line in lines}
    names = {key: f"t{number}" for number, key in enumerate(settings)}
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, {names[key]: configs for key, configs in settings.items()})
        for line in lines:
            sent_as = line["version"] if line["version"] < FIRST_WITH_MESSAGE else version
            answer = await produce(client, names[str(line["configs"])], bytes.fromhex(line["sent"]), sent_as)
            assert answer["error_code"] == expected_error(line), line
            stamped = not answer["error_code"] and "message.timestamp.type" in line["configs"]
            assert (answer["log_append_time_ms"] > 0) == stamped, line
            if sent_as >= FIRST_WITH_MESSAGE:
                assert bool(answer["error_message"]) == bool(answer["error_code"]), line
                if tells_records(line):
                    told = [each["batch_index"] for each in answer["record_errors"]]
                    assert told == [index for index, _ in line["record_errors"]], line


@pytest.mark.parametrize("version", range(3, FIRST_WITH_TOPIC_ID))
async def test_zstd_is_refused_from_clients_that_are_older_than_it(version: int, tmp_path: Path) -> None:
    zstd = build_batch([(5, b"k", b"v", ())], compression=Codec.ZSTD)
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, {"t": {}})
        answer = await produce(client, "t", zstd, version)
        refused = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE if version < 7 else ErrorCode.NONE
        assert answer["error_code"] == refused
        gzip = build_batch([(5, b"k", b"v", ())], compression=Codec.GZIP)
        assert (await produce(client, "t", gzip, version))["error_code"] == ErrorCode.NONE
        assert (await produce(client, "t", b"no batch", version))["error_code"] == ErrorCode.CORRUPT_MESSAGE


async def test_a_batch_that_must_be_opened_keeps_its_place_among_others(tmp_path: Path) -> None:
    """Requests of one connection are stored and answered in order, whether a worker has to open them or not."""
    async with running(tmp_path) as broker, kafka_client(broker.addresses.kafka) as client:
        await create(client, {"t": {"cleanup.policy": "compact"}})
        for number in range(40):
            codec = Codec.GZIP if number % 3 == 0 else Codec.NONE
            data = build_batch([(5, b"k", b"%d" % number, ())], compression=codec)
            part = {"index": 0, "records": data}
            await client.send(
                "Produce", 9, acks=-1, timeout_ms=1000, topic_data=({"name": "t", "partition_data": (part,)},)
            )
        for number in range(40):
            outcome = (await client.reply())["responses"][0]["partition_responses"][0]
            assert (outcome["error_code"], outcome["base_offset"]) == (0, number)
