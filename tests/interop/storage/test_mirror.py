"""A live mirror of Kafka: the same bytes, offsets, producers and groups, also after either side was killed."""

import os
import random
import signal
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from interop.kafka_node import KafkaNode
from tests.clients.committing import commit
from tests.clients.waiting import until
from tests.interop.storage.mirroring import (
    LIMIT_S,
    PARTITIONS,
    SMALL,
    TOPICS,
    codecs,
    committed,
    content,
    ends,
    java_load,
    load,
    mirror_of,
    try_ends,
    wait_for_copy,
)
from warmlog import Client
from warmlog.protocol.records.layout import Codec

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


def test_a_live_mirror_has_the_same_bytes_also_after_it_was_killed(tmp_path: Path) -> None:
    values = random.Random(7)
    with KafkaNode(tmp_path / "kafka") as node, mirror_of(node.bootstrap, tmp_path / "here") as mirror:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        created = admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=SMALL) for topic in TOPICS])
        for each in created.values():
            each.result()
        until(lambda: try_ends(node.bootstrap) is not None, lambda: None, "leaders of the topics")
        with load(node.bootstrap, values), java_load(node.bootstrap):
            until(lambda: Codec.ZSTD in codecs(content(node.data, "plain", 0)), lambda: None, "Java", limit_s=LIMIT_S)
            for _ in range(3):
                before = ends(node.bootstrap)["plain", 0]
                until(
                    lambda before=before: ends(node.bootstrap)["plain", 0] > before + 500,
                    lambda: None,
                    "records",
                    limit_s=LIMIT_S,
                )  # type: ignore[misc]
                mirror.end(signal.SIGKILL)
                mirror.start()
        commit(node.bootstrap, "readers", TopicPartition("plain", 0, 77))
        wait_for_copy(node.bootstrap, mirror.kafka)
        until(lambda: committed(mirror.kafka, "readers") == 77, lambda: None, "the offset", limit_s=LIMIT_S)
        mirror.end()
        assert not [line for line in mirror.told if "Traceback" in line]
        total = 0
        for topic in TOPICS:
            for index in range(PARTITIONS):
                here, there = content(tmp_path / "here", topic, index), content(node.data, topic, index)
                assert here == there, f"{topic}-{index}"
                total += len(here)
        assert total > 1_000_000
        assert os.path.exists(tmp_path / "here" / "plain-0" / "leader-epoch-checkpoint")


def consumed(bootstrap: str, group: str, count: int | None) -> list[tuple[int, int, bytes]]:
    """Consume and commit as a member of a group: so many records, or all that are committed now."""
    settings = {
        "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False,
        "isolation.level": "read_committed", "enable.partition.eof": count is None,
    }  # fmt: skip
    member = Consumer(settings)
    member.subscribe(["plain"])
    found: list[tuple[int, int, bytes]] = []
    finished: set[int] = set()

    def step() -> None:
        message = member.poll(0.2)
        if message is None:
            return
        if message.error() is not None:
            assert message.error().name() == "_PARTITION_EOF"
            finished.add(message.partition())
        else:
            found.append((message.partition(), message.offset(), message.value()))

    until(lambda: len(finished) == PARTITIONS if count is None else len(found) == count, step, "records")
    member.commit(asynchronous=False)
    member.close()
    return found


def test_a_group_moves_over_and_loses_and_repeats_nothing(tmp_path: Path) -> None:
    count = 3_000
    with KafkaNode(tmp_path / "kafka") as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_topics([NewTopic("plain", PARTITIONS, 1, config=SMALL)])["plain"].result()
        producer = Producer({"bootstrap.servers": node.bootstrap, "enable.idempotence": True, "linger.ms": 2})
        for number in range(count):
            producer.produce("plain", b"%d" % number, partition=number % PARTITIONS)
        assert producer.flush(LIMIT_S) == 0
        late = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": "late"})
        late.init_transactions(LIMIT_S)
        late.begin_transaction()
        late.produce("plain", b"never committed", partition=0)
        late.flush(LIMIT_S)
        before = consumed(node.bootstrap, "movers", count // 2)
        with mirror_of(node.bootstrap, tmp_path / "here") as mirror, Client(mirror.native) as here:

            def has_moved() -> bool:
                topics = {topic.name: topic for topic in here.describe_mirror().topics}
                if "plain" not in topics or any(one.lag_records for one in topics["plain"].partitions):
                    return False
                return positions(mirror.kafka, "movers") == positions(node.bootstrap, "movers")

            until(has_moved, lambda: None, "the copy and its group", limit_s=LIMIT_S)
            promoted = here.promote_topic("plain")
            assert promoted == {0: count // PARTITIONS + 1, 1: count // PARTITIONS, 2: count // PARTITIONS}
            own = Producer({"bootstrap.servers": mirror.kafka, "enable.idempotence": True})
            own.produce("plain", b"own", partition=0)
            assert own.flush(LIMIT_S) == 0
            after = consumed(mirror.kafka, "movers", None)
        late.abort_transaction(LIMIT_S)
        assert not [line for line in mirror.told if "Traceback" in line]
        values = sorted(value for _, _, value in before + after)
        assert values == sorted([b"%d" % number for number in range(count)] + [b"own"])


def positions(bootstrap: str, group: str) -> list[int]:
    """Return the offsets that a group has committed."""
    member = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    found = member.committed([TopicPartition("plain", index) for index in range(PARTITIONS)], LIMIT_S)
    member.close()
    return [one.offset for one in found]
