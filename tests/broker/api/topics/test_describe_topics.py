"""DescribeTopicPartitions: pages of partitions, as Kafka 4.3.1 cuts them."""

from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from tests.broker.clients import RawClient, Running
from tests.broker.kafka_client import KafkaClient, kafka_client
from warmlog.broker.api.topics import metadata
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.common import TOPIC_OPERATIONS

Cursor = tuple[str, int] | None


@pytest.fixture
async def client(broker: Running) -> AsyncIterator[KafkaClient]:
    raw: RawClient = await broker.connect()
    for name in ("a", "b"):
        await raw.create(name, 3)
    async with kafka_client(broker.addresses.kafka) as client:
        yield client


async def asked(client: KafkaClient, *topics: str, limit: int = 2000, cursor: Cursor = None) -> dict[str, Any]:
    begin = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    names = [{"name": name} for name in topics]
    return await client.ask("DescribeTopicPartitions", topics=names, response_partition_limit=limit, cursor=begin)


async def page(client: KafkaClient, *topics: str, limit: int = 2000, cursor: Cursor = None) -> tuple[str, Cursor]:
    """The partitions of a page, as "a0 a1", and its cursor."""
    reply = await asked(client, *topics, limit=limit, cursor=cursor)
    found = [f"{topic['name']}{one['partition_index']}" for topic in reply["topics"] for one in topic["partitions"]]
    following = reply["next_cursor"]
    return " ".join(found), None if following is None else (following["topic_name"], following["partition_index"])


@pytest.mark.parametrize("piece", [1, 7, 1000])
async def test_very_many_names_are_sorted_in_pieces(
    client: KafkaClient, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(metadata, "NAMES_PER_PIECE", piece)
    longest = 0

    def counted(names: Iterable[str]) -> list[str]:
        nonlocal longest
        found = sorted(names)
        longest = max(longest, len(found))
        return found

    monkeypatch.setattr(metadata, "sorted", counted, raising=False)
    names = [f"none-{number * 7919 % 50:02}" for number in range(50)]
    reply = await asked(client, *names, "b", "none-07", "a")
    assert [topic["name"] for topic in reply["topics"]] == sorted({"a", "b", *names})
    assert longest == min(piece, 52)


async def test_partitions_are_described(client: KafkaClient) -> None:
    (topic,) = (await asked(client, "a"))["topics"]
    assert (topic["error_code"], topic["is_internal"]) == (ErrorCode.NONE, False)
    assert topic["topic_authorized_operations"] == TOPIC_OPERATIONS
    assert topic["topic_id"] != bytes(16)
    assert topic["partitions"][1] == {
        "error_code": 0,
        "partition_index": 1,
        "leader_id": 1,
        "leader_epoch": 0,
        "replica_nodes": (1,),
        "isr_nodes": (1,),
        "eligible_leader_replicas": (),
        "last_known_elr": (),
        "offline_replicas": (),
    }


@pytest.mark.parametrize(
    ("topics", "limit", "cursor", "found"),
    [
        ("ba", 2000, None, ("a0 a1 a2 b0 b1 b2", None)),
        ("aa", 2000, None, ("a0 a1 a2", None)),
        ("", 2000, None, ("a0 a1 a2 b0 b1 b2", None)),
        ("ab", 4, None, ("a0 a1 a2 b0", ("b", 1))),
        ("ab", 3, None, ("a0 a1 a2", ("b", 0))),
        ("a", 3, None, ("a0 a1 a2", None)),
        ("ab", 0, None, ("a0", ("a", 1))),
        ("ab", -5, None, ("a0", ("a", 1))),
        ("ab", 2, ("a", 1), ("a1 a2", ("b", 0))),
        ("ab", 2, ("a", 7), ("b0 b1", ("b", 2))),
        ("", 1, ("b", 2), ("b2", None)),
        ("", 1, ("aa", 1), ("b0", ("b", 1))),
    ],
)
async def test_pages_are_cut_at_the_limit(
    client: KafkaClient, topics: str, limit: int, cursor: Cursor, found: tuple[str, Cursor]
) -> None:
    assert await page(client, *topics, limit=limit, cursor=cursor) == found


async def test_a_walk_over_pages_finds_every_partition_once(client: KafkaClient) -> None:
    found: list[str] = []
    cursor: Cursor = ("", 0)
    while cursor is not None:
        part, cursor = await page(client, limit=2, cursor=cursor)
        found += part.split()
    assert found == ["a0", "a1", "a2", "b0", "b1", "b2"]


@pytest.mark.parametrize("cursor", [("zz", 0), ("a", -1)])
async def test_a_cursor_that_makes_no_sense_is_refused(client: KafkaClient, cursor: Cursor) -> None:
    reply = await asked(client, "a", "b", cursor=cursor)
    assert [topic["error_code"] for topic in reply["topics"]] == [ErrorCode.INVALID_REQUEST] * 2


async def test_topics_that_there_are_not_are_told(client: KafkaClient) -> None:
    """Of an impossible name Kafka says UNKNOWN_SERVER_ERROR."""
    topics = (await asked(client, "nope", "a/b", ""))["topics"]
    assert {topic["name"]: topic["error_code"] for topic in topics} == {
        "": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "a/b": ErrorCode.INVALID_TOPIC_EXCEPTION,
        "nope": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
