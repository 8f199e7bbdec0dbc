"""Hashes of topics, compared with those that Kafka's classes computed."""

import json
from base64 import urlsafe_b64decode
from pathlib import Path
from typing import Any

import pytest

from warmlog.broker.groups.modern.assignment import TopicInfo
from warmlog.broker.groups.modern.topic_hash import NO_TOPICS, group_hash, topic_hash

GOLDEN = Path(__file__).parents[3] / "fixtures" / "kafka" / "4.4.0" / "topic_hashes.jsonl"
GROUPS = [json.loads(line) for line in GOLDEN.read_text(encoding="ascii").splitlines()]


def topic_info(fields: dict[str, Any]) -> TopicInfo:
    topic_id = urlsafe_b64decode(fields["id"] + "==")
    return TopicInfo(topic_id, fields["name"], fields["partitions"], tuple(map(tuple, fields["racks"])))


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: f"{len(group['topics'])}-topics")
def test_hashes_are_kafkas(group: dict[str, Any]) -> None:
    topics = [topic_info(fields) for fields in group["topics"]]
    hashes = [topic_hash(topic) for topic in topics]
    assert hashes == group["topic_hashes"]
    assert group_hash(dict(zip([topic.name for topic in topics], hashes, strict=True))) == group["hash"]


def test_a_group_without_topics_has_no_hash() -> None:
    assert group_hash({}) == NO_TOPICS


def test_the_order_of_a_partitions_replicas_does_not_count_but_their_number_does() -> None:
    topic = TopicInfo(b"\1" * 16, "t", 1, (("b", "a"),))
    assert topic_hash(topic) == topic_hash(topic._replace(racks=(("a", "b"),)))
    assert topic_hash(topic) != topic_hash(topic._replace(racks=(("a", "a", "b"),)))


def test_partitions_without_racks_are_hashed_as_if_no_racks_were_known() -> None:
    topic = TopicInfo(b"\1" * 16, "t", 2)
    assert topic_hash(topic) == topic_hash(topic._replace(racks=((), ())))
