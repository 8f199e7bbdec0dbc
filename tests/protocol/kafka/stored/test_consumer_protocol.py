"""The consumer protocol, compared with bytes written by Kafka's classes, and the range assignor."""

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.kafka.messages import DATA_MESSAGES, DATA_TABLES, from_kafka_json, with_defaults
from warmlog.protocol.groups import PartitionEntry
from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.kafka.codec.engine import ENGINE
from warmlog.protocol.kafka.consumer_protocol import (
    LAST_VERSION,
    Assignment,
    Subscription,
    assign_range,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

GOLDEN = Path(__file__).parents[3] / "fixtures" / "kafka" / "4.4.0" / "consumer_protocol.jsonl"
LINES = [json.loads(line) for line in GOLDEN.read_text().splitlines()]


def partitions(topic: str, *indexes: int) -> tuple[PartitionEntry, ...]:
    return tuple([PartitionEntry(topic=topic, partition=index) for index in indexes])


def test_there_is_a_sample_of_every_version() -> None:
    assert {(line["message"], line["version"]) for line in LINES} == set(DATA_MESSAGES)


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line['message']}-{line['version']}")
def test_tables_read_and_write_what_kafka_wrote(line: dict[str, Any]) -> None:
    table, version, data = DATA_TABLES[line["message"]], line["version"], bytes.fromhex(line["body"])
    values = from_kafka_json(table, version, line["fields"])
    assert ENGINE.reader(table, version, flexible=False).read(memoryview(data)) == (
        with_defaults(table, version, values),
        len(data),
    )
    assert ENGINE.writer(table, version, flexible=False).write(values) == data


@pytest.mark.parametrize("version", range(LAST_VERSION + 1))
def test_subscriptions(version: int) -> None:
    full = Subscription(
        topics=("b", "a"), user_data=b"u", owned=partitions("a", 0, 3) + partitions("b", 1), generation=7, rack="r"
    )
    seen = decode_subscription(encode_subscription(full, version))
    assert (seen.topics, seen.user_data) == (full.topics, b"u")
    assert seen.owned == (full.owned if version >= 1 else ())
    assert seen.generation == (7 if version >= 2 else -1)
    assert seen.rack == ("r" if version >= 3 else None)


@pytest.mark.parametrize("version", range(LAST_VERSION + 1))
def test_assignments(version: int) -> None:
    assignment = Assignment(partitions=partitions("a", 0, 3) + partitions("b", 1), user_data=b"u")
    assert decode_assignment(encode_assignment(assignment, version)) == assignment


def test_no_bytes_are_no_partitions() -> None:
    assert decode_assignment(b"") == Assignment(partitions=())


def test_a_later_version_is_read_as_the_last_known_one() -> None:
    subscription = Subscription(topics=("a",), owned=partitions("a", 1))
    data = (9).to_bytes(2) + encode_subscription(subscription)[2:] + b"something new"
    assert decode_subscription(data) == subscription


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff\0\0\0\0", b"\0\0\x7f\xff\xff\xff", b"\0\0\0\0\0\1\0\1\xff"])
def test_an_invalid_subscription_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError, match="invalid consumer protocol data"):
        decode_subscription(data)


def test_range_gives_the_remainder_to_the_first_members() -> None:
    # Kafka's RangeAssignorTest, testTwoConsumersTwoTopicsSixPartitions and testMultipleConsumersMixedTopics
    assert assign_range({"one": ["a", "b"], "two": ["a", "b"]}, {"a": 3, "b": 3}) == {
        "one": partitions("a", 0, 1) + partitions("b", 0, 1),
        "two": partitions("a", 2) + partitions("b", 2),
    }
    assert assign_range({"one": ["a"], "two": ["a", "b"], "three": ["a"]}, {"a": 3, "b": 2}) == {
        "one": partitions("a", 0),
        "two": partitions("a", 1) + partitions("b", 0, 1),
        "three": partitions("a", 2),
    }


def test_range_knows_nothing_of_topics_that_are_not_there() -> None:
    assert assign_range({"one": ["gone"], "two": []}, {}) == {"one": (), "two": ()}
    assert assign_range({}, {"a": 3}) == {}


@given(
    st.dictionaries(st.sampled_from("mnopq"), st.sets(st.sampled_from("abc")), max_size=5),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)),
)
def test_range_gives_each_partition_to_one_subscriber(
    subscriptions: dict[str, set[str]], counts: dict[str, int]
) -> None:
    assigned = assign_range(subscriptions, counts)
    assert set(assigned) == set(subscriptions)
    given_away = [(one.topic, one.partition) for one in chain.from_iterable(assigned.values())]
    wanted = {topic for topics in subscriptions.values() for topic in topics}
    assert sorted(given_away) == sorted((topic, index) for topic in wanted for index in range(counts.get(topic, 0)))
    for member, topics in subscriptions.items():
        assert {one.topic for one in assigned[member]} <= topics
    for topic in wanted:
        shares = [sum(one.topic == topic for one in assigned[member]) for member in subscriptions
                  if topic in subscriptions[member]]  # fmt: skip
        assert max(shares) - min(shares) <= 1
