"""Share group state through the Kafka listener: the five requests, FindCoordinator, and a restart."""

from pathlib import Path
from typing import Any

import pytest
import trio

from tests.broker.clients import Running, running
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.common import topic_id_text

SETTINGS = {"share.coordinator.state.topic.num.partitions": 3}
SHARE = 2
ZERO = "A" * 22
UNKNOWN_ID = b"\7" * 16


async def topic_id(broker: Running, client: KafkaClient, name: str = "jobs", partitions: int = 3) -> bytes:
    native = await broker.connect()
    await native.create(name, partitions=partitions)
    reply = await client.ask("Metadata", 13, topics=[{"name": name, "topic_id": bytes(16)}])
    return bytes(reply["topics"][0]["topic_id"])


async def find(client: KafkaClient, *keys: str, version: int = 6) -> list[dict[str, Any]]:
    reply = await client.ask("FindCoordinator", version, key_type=SHARE, coordinator_keys=[*keys])
    return [dict(each) for each in reply["coordinators"]]


async def ask(client: KafkaClient, name: str, topic: bytes, *partitions: dict[str, Any], group: str = "g") -> Any:
    """Ask about share-partitions of a topic; return its results."""
    while True:
        reply = await client.ask(name, group_id=group, topics=[{"topic_id": topic, "partitions": [*partitions]}])
        (found,) = reply["results"]
        if found["partitions"][0]["error_code"] != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return found["partitions"]
        await trio.lowlevel.checkpoint()


def first_offset(offset: int, state_epoch: int = 1, partition: int = 0) -> dict[str, Any]:
    return {"partition": partition, "state_epoch": state_epoch, "start_offset": offset}


def change(*batches: tuple[int, int, int, int], partition: int = 0, **fields: int) -> dict[str, Any]:
    names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
    usual = {"state_epoch": 1, "leader_epoch": 0, "start_offset": -1, "delivery_complete_count": 0}
    states = [dict(zip(names, batch, strict=True)) for batch in batches]
    return {"partition": partition, **usual, **fields, "state_batches": states}


def errors(results: Any) -> list[ErrorCode]:
    return [ErrorCode(each["error_code"]) for each in results]


async def test_a_state_is_initialized_written_read_and_kept_through_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS) as broker, kafka_client(broker.addresses.kafka) as client:
        jobs = await topic_id(broker, client)
        (found,) = await find(client, f"g:{topic_id_text(jobs)}:0")
        assert found["error_code"] == ErrorCode.NONE
        assert errors(await ask(client, "InitializeShareGroupState", jobs, first_offset(5))) == [ErrorCode.NONE]
        written = change((5, 9, 2, 1), (10, 10, 0, 2), start_offset=5, delivery_complete_count=5)
        assert errors(await ask(client, "WriteShareGroupState", jobs, written)) == [ErrorCode.NONE]
        (before,) = await ask(client, "ReadShareGroupState", jobs, {"partition": 0, "leader_epoch": 3})
    async with running(tmp_path, SETTINGS) as broker, kafka_client(broker.addresses.kafka) as client:
        (after,) = await ask(client, "ReadShareGroupState", jobs, {"partition": 0, "leader_epoch": 3})
        assert after == before
        assert (after["state_epoch"], after["start_offset"]) == (1, 5)
        assert [tuple(each.values()) for each in after["state_batches"]] == [(5, 9, 2, 1), (10, 10, 0, 2)]
        (summary,) = await ask(client, "ReadShareGroupStateSummary", jobs, {"partition": 0, "leader_epoch": 0})
        assert (summary["leader_epoch"], summary["delivery_complete_count"]) == (3, 5)
        stale = change((5, 5, 2, 1), leader_epoch=2)
        assert errors(await ask(client, "WriteShareGroupState", jobs, stale)) == [ErrorCode.FENCED_LEADER_EPOCH]
        assert errors(await ask(client, "DeleteShareGroupState", jobs, {"partition": 0})) == [ErrorCode.NONE]
        (gone,) = await ask(client, "ReadShareGroupStateSummary", jobs, {"partition": 0, "leader_epoch": 0})
        assert (gone["error_code"], gone["start_offset"]) == (ErrorCode.NONE, -1)


async def test_each_share_partition_has_its_own_result(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS) as broker, kafka_client(broker.addresses.kafka) as client:
        jobs = await topic_id(broker, client)
        await find(client, f"g:{topic_id_text(jobs)}:0")
        asked = [first_offset(0), first_offset(0, partition=1, state_epoch=-1), first_offset(0, partition=3)]
        results = await ask(client, "InitializeShareGroupState", jobs, *asked, first_offset(0, partition=-1))
        assert errors(results) == [
            ErrorCode.NONE,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_REQUEST,
        ]
        assert all(each["error_message"] for each in results[1:])
        results = await ask(client, "InitializeShareGroupState", UNKNOWN_ID, first_offset(0))
        assert errors(results) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_a_share_partition_is_named_once(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS) as broker, kafka_client(broker.addresses.kafka) as client:
        jobs = await topic_id(broker, client)
        await find(client, f"g:{topic_id_text(jobs)}:0")
        results = await ask(client, "InitializeShareGroupState", jobs, first_offset(5), first_offset(6))
        assert errors(results) == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
        (summary,) = await ask(client, "ReadShareGroupStateSummary", jobs, {"partition": 0, "leader_epoch": 0})
        assert summary["start_offset"] == 5


async def test_a_request_of_any_length_holds_nothing_up(tmp_path: Path) -> None:
    """Each share-partition has its result, in the order of the request."""
    async with running(tmp_path, SETTINGS) as broker, kafka_client(broker.addresses.kafka) as client:
        jobs = await topic_id(broker, client, partitions=1000)
        await find(client, f"g:{topic_id_text(jobs)}:0")
        asked = [first_offset(index, partition=index) for index in range(3000)]
        results = await ask(client, "InitializeShareGroupState", jobs, *asked)
        assert [each["partition"] for each in results] == [*range(3000)]
        assert errors(results) == [ErrorCode.NONE] * 1000 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2000


@pytest.mark.parametrize("name", ["InitializeShareGroupState", "WriteShareGroupState", "ReadShareGroupStateSummary"])
async def test_a_request_without_a_group_or_topics_is_answered_with_nothing(tmp_path: Path, name: str) -> None:
    async with running(tmp_path, SETTINGS) as broker, kafka_client(broker.addresses.kafka) as client:
        topics = [{"topic_id": UNKNOWN_ID, "partitions": [{"partition": 0}]}]
        assert (await client.ask(name, group_id="", topics=topics))["results"] == ()
        assert (await client.ask(name, group_id="g", topics=[]))["results"] == ()


async def test_states_are_not_served_before_their_topic_exists(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS) as broker, kafka_client(broker.addresses.kafka) as client:
        jobs = await topic_id(broker, client)
        assert errors(await ask(client, "InitializeShareGroupState", jobs, first_offset(0))) == [
            ErrorCode.NOT_COORDINATOR
        ]


@pytest.mark.parametrize(
    "key", ["", "g", "g:0", "g:nothing:0", ":AAAAAAAAAAAAAAAAAAAAAA:0", "g:AAAAAAAAAAAAAAAAAAAAAA:x"]
)
async def test_the_key_of_a_coordinator_names_a_share_partition(tmp_path: Path, key: str) -> None:
    async with running(tmp_path, SETTINGS) as broker, kafka_client(broker.addresses.kafka) as client:
        (found,) = await find(client, key)
        assert (found["error_code"], found["node_id"]) == (ErrorCode.INVALID_REQUEST, -1)
        (known,) = await find(client, f"g:{ZERO}:0")
        assert known["error_code"] == ErrorCode.NONE


async def test_coordinators_of_share_groups_need_version_6(tmp_path: Path) -> None:
    async with running(tmp_path, SETTINGS) as broker, kafka_client(broker.addresses.kafka) as client:
        (found,) = await find(client, f"g:{ZERO}:0", version=5)
        assert found["error_code"] == ErrorCode.INVALID_REQUEST
