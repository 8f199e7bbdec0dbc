"""Mirrors of other sources than a sound Kafka of today: one that lost records, an older Kafka, and warmlog."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from interop.kafka_node import SETTINGS, KafkaNode
from tests.clients.waiting import until
from tests.documents import ROOT
from tests.interop.storage.mirroring import (
    LIMIT_S,
    PARTITIONS,
    SMALL,
    TOPICS,
    Served,
    content,
    ends,
    load,
    mirror_of,
    try_ends,
    wait_for_copy,
)

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

# A broker that died is noticed, and a follower that lags leaves the set of those in sync, within seconds.
HASTY = {
    **SETTINGS, "broker.session.timeout.ms": 3000, "broker.heartbeat.interval.ms": 500,
    "replica.lag.time.max.ms": 1000, "unclean.leader.election.enable": "true", "min.insync.replicas": 1,
}  # fmt: skip


def create(bootstrap: str) -> None:
    """Create the topics of `load`."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=SMALL) for topic in TOPICS]).values():
        created.result()
    until(lambda: try_ends(bootstrap) is not None, lambda: None, "leaders of the topics")


def assert_equal(here: Path, source: Path) -> None:
    for topic in TOPICS:
        for index in range(PARTITIONS):
            assert content(here, topic, index) == content(source, topic, index), f"{topic}-{index}"
    assert_sound(here)


def assert_sound(directory: Path) -> None:
    command = [sys.executable, "-m", "warmlog", "log", "verify", str(directory)]
    verified = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_warmlog_that_is_killed_again_and_again_is_mirrored(tmp_path: Path) -> None:
    values = random.Random(11)
    with Served(tmp_path / "source", "serve") as source, mirror_of(source.kafka, tmp_path / "here") as mirror:
        create(source.kafka)
        with load(source.kafka, values):
            for killed in (source, mirror, source, mirror):
                before = ends(mirror.kafka) if try_ends(mirror.kafka) else dict.fromkeys([("plain", 0)], 0)

                def has_grown(before: dict[tuple[str, int], int] = before) -> bool:
                    now = try_ends(mirror.kafka)
                    return now is not None and now["plain", 0] > before["plain", 0] + 300

                until(has_grown, lambda: None, "records", limit_s=LIMIT_S)
                killed.end(signal.SIGKILL)
                killed.start()
        wait_for_copy(source.kafka, mirror.kafka)
        for each in (mirror, source):
            each.end()
            assert not [line for line in each.told if "Traceback" in line]
    assert_equal(tmp_path / "here", tmp_path / "source")


def test_an_older_kafka_is_mirrored(tmp_path: Path) -> None:
    values = random.Random(13)
    with (
        KafkaNode(tmp_path / "kafka", version="3.9.1") as node,
        mirror_of(node.bootstrap, tmp_path / "here") as mirror,
    ):
        create(node.bootstrap)
        with load(node.bootstrap, values):
            until(lambda: ends(node.bootstrap)["plain", 0] > 1000, lambda: None, "records", limit_s=LIMIT_S)
        wait_for_copy(node.bootstrap, mirror.kafka)
        mirror.end()
        assert_equal(tmp_path / "here", node.data)


def produce(bootstrap: str, text: str, count: int) -> None:
    """Produce records to the only partition of `lossy`, one batch each, acknowledged by its leader."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": 1, "linger.ms": 0, "message.timeout.ms": 60_000})
    for number in range(count):
        producer.produce("lossy", f"{text} {number}", partition=0)
        assert producer.flush(LIMIT_S) == 0


def test_a_mirror_forgets_what_its_source_has_lost(tmp_path: Path) -> None:
    """An unclean election: the follower that was behind leads, and what only the old leader had is gone."""
    with KafkaNode(tmp_path / "one", settings=HASTY) as first:
        second = KafkaNode(tmp_path / "two", settings={**HASTY, "node.id": 2}, controller=first)
        third = KafkaNode(tmp_path / "three", settings={**HASTY, "node.id": 3}, controller=first)
        with second, third, mirror_of(first.bootstrap, tmp_path / "here") as mirror:
            admin = AdminClient({"bootstrap.servers": first.bootstrap})
            admin.create_topics([NewTopic("lossy", 1, replica_assignment=[[2, 3]])])["lossy"].result()
            here = tmp_path / "here"
            produce(first.bootstrap, "both", 20)
            follower = third.data / "lossy-0"
            until(lambda: content(third.data, "lossy", 0).count(b"both") == 20, lambda: None, str(follower))
            third.kill()
            produce(first.bootstrap, "lost", 20)
            until(lambda: content(here, "lossy", 0).count(b"lost") == 20, lambda: None, "the copy", limit_s=LIMIT_S)
            second.kill()
            third.start()
            produce(first.bootstrap, "kept", 5)
            until(lambda: content(here, "lossy", 0).count(b"kept") == 5, lambda: None, "the copy", limit_s=LIMIT_S)
            mirror.end()
            assert any("the leader has lost records" in line for line in mirror.told)
            assert not [line for line in mirror.told if "Traceback" in line]
            assert b"lost" not in content(here, "lossy", 0)
            assert content(here, "lossy", 0) == content(third.data, "lossy", 0)
            assert_sound(here)


def latest(bootstrap: str, isolation: str = "read_committed") -> dict[tuple[int, bytes], tuple[int, bytes | None]]:
    """Consume `compacted`: offset and value of the last record of each partition and key."""
    found: dict[tuple[int, bytes], tuple[int, bytes | None]] = {}
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "r", "isolation.level": isolation})
    for index in range(PARTITIONS):
        place = TopicPartition("compacted", index)
        low, high = reader.get_watermark_offsets(place, LIMIT_S)
        reader.assign([TopicPartition("compacted", index, low)])
        while low < high:
            message = reader.poll(LIMIT_S)
            assert message is not None
            assert message.error() is None
            found[index, message.key()] = message.offset(), message.value()
            if message.offset() == high - 1:
                break
    reader.close()
    return found


def size_of(data: Path) -> int:
    return sum([len(content(data, "compacted", index)) for index in range(PARTITIONS)])


def test_a_compacted_topic_is_mirrored_with_its_gaps(tmp_path: Path) -> None:
    """Kafka compacts all the time, and the mirror, which is killed meanwhile, on its own."""
    values = random.Random(17)
    configs = {
        **SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01",
        "min.compaction.lag.ms": "0",
    }  # fmt: skip
    with KafkaNode(tmp_path / "kafka") as node, mirror_of(node.bootstrap, tmp_path / "here") as mirror:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_topics([NewTopic("compacted", PARTITIONS, 1, config=configs)])["compacted"].result()
        producer = Producer({"bootstrap.servers": node.bootstrap, "enable.idempotence": True, "linger.ms": 2})
        written = 6 * 3_000 * 700
        for round_ in range(6):
            for number in range(3_000):
                key = b"key %d" % values.randrange(50)
                value = None if values.random() < 0.05 else b"%d %d" % (round_, number) + values.randbytes(700)
                producer.produce("compacted", value, key, partition=values.randrange(PARTITIONS))
            assert producer.flush(LIMIT_S) == 0
            if round_ % 2:
                mirror.end(signal.SIGKILL)
                mirror.start()
        late = {(index, b"last") for index in range(PARTITIONS)}
        for index in range(PARTITIONS):
            producer.produce("compacted", b"value", b"last", partition=index)
        assert producer.flush(LIMIT_S) == 0
        expected = latest(node.bootstrap)
        assert late < expected.keys()
        assert len(expected) < 2_000

        def is_there(copy: Served) -> bool:
            try:
                found = latest(copy.kafka)
            except KafkaException:
                return False
            return late < found.keys() and {key: found[key] for key in expected if key in found} == expected

        until(lambda: is_there(mirror), lambda: None, "the copy", limit_s=LIMIT_S)
        mirror.end()
        until(lambda: size_of(node.data) < written / 2, lambda: None, "Kafka's cleaner", limit_s=LIMIT_S)
        with mirror_of(node.bootstrap, tmp_path / "late") as second:
            until(lambda: is_there(second), lambda: None, "the copy of what is left", limit_s=LIMIT_S)
            second.end()
        for name, told in (("here", mirror.told), ("late", second.told)):
            assert not [line for line in told if "Traceback" in line]
            assert_sound(tmp_path / name)
