"""MirrorMaker 2 copies topics and the offsets of groups into warmlog, from Kafka and from warmlog."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from interop.kafka_node import launch
from tests.clients.committing import commit
from tests.clients.waiting import until
from tests.interop.clients.conftest import SETTINGS
from tests.warmlog.cli.test_secure import properties, served
from warmlog.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC = "mirrored"
GROUP = "mirrored-readers"
PARTITIONS = 2
COUNT = 500
END = 2 * COUNT // PARTITIONS  # of each partition when all is written
RETENTION_MS = "3153600000001"  # a hundred years: the records here are old
START_LIMIT_S = 120  # its workers join a group each, one after the other, before anything is copied
STEP_S = 1.0

#: All of a mirror's periods are as short as they can be; replication factors are those of one broker. Its workers load
#: plugins that are declared as services; by default, each of them scans every class of every jar as well.
MIRROR = """
clusters=source,target
source.bootstrap.servers={source}
target.bootstrap.servers={target}
source->target.enabled=true
source->target.topics=mirrored.*
source->target.groups=mirrored-.*
source->target.sync.group.offsets.enabled=true
source->target.sync.group.offsets.interval.seconds=1
source->target.emit.checkpoints.interval.seconds=1
source->target.refresh.topics.interval.seconds=1
source->target.refresh.groups.interval.seconds=1
source->target.sync.topic.configs.interval.seconds=1
source->target.emit.heartbeats.interval.seconds=1
source->target.offset.lag.max=0
replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
offset-syncs.topic.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
config.storage.replication.factor=1
offset.flush.interval.ms=1000
source.plugin.discovery=service_load
target.plugin.discovery=service_load
"""

Record = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]


@pytest.fixture(params=["kafka", "warmlog"])
def source(request: pytest.FixtureRequest) -> str:
    address: str = request.getfixturevalue(request.param)
    return address


@pytest.fixture
def target(java_tools: None) -> Iterator[str]:
    with Broker(settings=SETTINGS) as broker:
        yield broker.kafka


@contextmanager
def mirror(source: str, target: str, directory: Path, more: str = "") -> Iterator[None]:
    """Run MirrorMaker 2 from one cluster to another. `more`: further settings."""
    settings = directory / "mirror.properties"
    settings.write_text(MIRROR.format(source=source, target=target) + more)
    main = ["org.apache.kafka.connect.mirror.MirrorMaker", str(settings)]
    with (directory / "mirror.log").open("w") as log:
        process = subprocess.Popen([*launch(), *main], stdout=log, stderr=log)
        try:
            yield
            assert process.poll() is None, (directory / "mirror.log").read_text()
        finally:
            process.kill()
            process.wait()


def consumer(bootstrap: str, group: str, **login: str) -> Consumer:
    return Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, **login})


def fill(bootstrap: str, **login: str) -> None:
    """Create the topic and write records to both partitions. `login`: the client's settings for it."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **login})
    topic = NewTopic(TOPIC, PARTITIONS, 1, config={"retention.ms": RETENTION_MS})
    admin.create_topics([topic])[TOPIC].result()
    write(bootstrap, range(COUNT), **login)


def write(bootstrap: str, numbers: range, **login: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd", **login})
    for number in numbers:
        producer.produce(
            TOPIC,
            f"value {number}".encode(),
            str(number).encode(),
            partition=number % PARTITIONS,
            timestamp=1_700_000_000_000 + number,
            headers=[("number", str(number).encode())],
        )
    assert producer.flush(30) == 0


def plain(message: Message) -> Record:
    return message.key(), message.value(), message.timestamp()[1], list(message.headers() or [])


def read(bootstrap: str, topic: str, count: int, **login: str) -> list[list[Record]]:
    """Read so many records of a topic, as soon as there are so many; by partition."""
    reading = consumer(bootstrap, "reading", **login)
    reading.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
    found: list[list[Record]] = [[] for _ in range(PARTITIONS)]

    def step() -> None:
        for message in reading.consume(count, STEP_S):
            if message.error() is None:
                found[message.partition()].append(plain(message))

    until(lambda: sum(map(len, found)) >= count, step, f"{count} records of {topic}", limit_s=START_LIMIT_S)
    reading.close()
    return found


def test_mirror_maker_copies_topics_settings_and_the_offsets_of_groups(
    source: str, target: str, tmp_path: Path
) -> None:
    fill(source)
    copy = f"source.{TOPIC}"
    with mirror(source, target, tmp_path):
        assert read(target, copy, COUNT) == read(source, TOPIC, COUNT)
        write(source, range(COUNT, 2 * COUNT))
        assert read(target, copy, 2 * COUNT) == read(source, TOPIC, 2 * COUNT)

        admin = AdminClient({"bootstrap.servers": target})
        resource = ConfigResource(ResourceType.TOPIC, copy)
        settings = admin.describe_configs([resource])[resource].result()
        assert settings["retention.ms"].value == RETENTION_MS

        commit(source, GROUP, TopicPartition(TOPIC, 0, END))
        group = consumer(target, GROUP)
        beats = consumer(target, "beats")
        beats.assign([TopicPartition("heartbeats", 0, OFFSET_BEGINNING)])

        def committed() -> int:
            (found,) = group.committed([TopicPartition(copy, 0)])
            return int(found.offset)

        until(lambda: committed() == END, lambda: beats.poll(STEP_S), "the group's offset", limit_s=START_LIMIT_S)
        group.close()
        beats.close()


def test_mirror_maker_copies_between_clusters_that_ask_for_logins(java_tools: None, tmp_path: Path) -> None:
    directories = {name: tmp_path / name for name in ("source", "target")}
    for directory in directories.values():
        directory.mkdir()
    with served(directories["source"]) as (_, source), served(directories["target"]) as (_, target):
        more = "".join(
            f"{name}.{key}={value}\n"
            for name, directory in directories.items()
            for key, value in properties(directory / "data-secrets").items()
        )
        here, there = (login(directory / "data-secrets") for directory in directories.values())
        fill(source["kafka"], **here)
        with mirror(source["kafka"], target["kafka"], tmp_path, more):
            copied = read(target["kafka"], f"source.{TOPIC}", COUNT, **there)
        assert copied == read(source["kafka"], TOPIC, COUNT, **here)


def login(secrets: Path) -> dict[str, str]:
    """Return the settings by which a client of librdkafka logs in as admin."""
    return {
        "security.protocol": "SASL_SSL", "ssl.ca.location": str(secrets / "ca.pem"), "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "admin", "sasl.password": (secrets / "admin.password").read_text().strip(),
    }  # fmt: skip
