"""Data directories of version 0.2 (metadata of layout 5) are taken over with all that is in them."""

import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from warmlog.testing import Broker

FIXTURES = Path(__file__).parents[1] / "fixtures" / "layout5"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text())
RECORDS: int = EXPECTED["records"]
SETTINGS = dict(each.split("=") for each in EXPECTED["settings"])
WAIT_S = 30.0


@pytest.fixture(params=["clean", "killed"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(FIXTURES / f"{request.param}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / str(request.param)


def topic_ids(path: Path) -> dict[str, str]:
    """Return what the tables of layout 5 say."""
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT name, id FROM topics").fetchall())


def ids_on_disk(directory: Path) -> dict[str, str]:
    found = {}
    for path in directory.glob("*/partition.metadata"):
        fields = dict(line.split(": ") for line in path.read_text().splitlines())
        found[path.parent.name] = fields["topic_id"]
    return found


def records(broker: Broker, topic: str, partitions: int) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    reader = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": "reader",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    for index in range(partitions):
        reader.assign([TopicPartition(topic, index, 0)])
        values = []
        while (message := reader.poll(WAIT_S)) is not None and message.error() is None:
            values.append(message.value())
        found[index] = values
    reader.close()
    return found


def config(admin: AdminClient, kind: ResourceType, name: str, setting: str) -> str:
    resource = ConfigResource(kind, name)
    return str(admin.describe_configs([resource])[resource].result(WAIT_S)[setting].value)


def check(broker: Broker, audit: list[bytes], tx: list[bytes]) -> None:
    """Check everything that the broker of 0.2 has left."""
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    topics = admin.list_topics(timeout=WAIT_S).topics
    assert {name: len(topic.partitions) for name, topic in topics.items()} == {
        "__consumer_offsets": 2,
        "__transaction_state": 2,
        "audit": 1,
        "orders": 3,
    }
    written = [b"%d" % number for number in range(RECORDS)]
    assert records(broker, "orders", 3) == {index: written[index::3] for index in range(3)}
    assert records(broker, "audit", 1) == {0: [*audit, *tx]}
    assert config(admin, ResourceType.TOPIC, "orders", "retention.ms") == "-1"
    assert config(admin, ResourceType.TOPIC, "audit", "min.cleanable.dirty.ratio") == "0.3"
    assert config(admin, ResourceType.BROKER, "1", "log.retention.ms") == "777777777"
    assert config(admin, ResourceType.BROKER, "1", "log.segment.bytes") == "1048576"
    group = Consumer({"bootstrap.servers": broker.kafka, "group.id": "g"})
    assert group.committed([TopicPartition("orders", 0)], timeout=WAIT_S)[0].offset == 4
    group.close()


def test_a_directory_of_0_2_is_taken_over(directory: Path) -> None:
    before = topic_ids(directory / "metadata.sqlite")
    on_disk = ids_on_disk(directory)
    tx: list[bytes] = []
    for number in range(3):
        with Broker(data_dir=directory, settings=SETTINGS) as broker:
            check(broker, [b"committed"], tx)
            writer = Producer({"bootstrap.servers": broker.kafka, "transactional.id": "tx"})
            writer.init_transactions(WAIT_S)  # the one that is open is aborted
            writer.begin_transaction()
            writer.produce("audit", b"later %d" % number, key=b"k%d" % number)
            writer.commit_transaction(WAIT_S)
            tx.append(b"later %d" % number)
            admin = AdminClient({"bootstrap.servers": broker.kafka})
            admin.create_topics([NewTopic("new", 1, 1)])["new"].result(WAIT_S)
            admin.delete_topics(["new"])["new"].result(WAIT_S)
            ends = admin.list_offsets({TopicPartition("orders", 0): OffsetSpec.latest()})
            assert ends[TopicPartition("orders", 0)].result(WAIT_S).offset == RECORDS // 3
    assert topic_ids(directory / "metadata.sqlite.layout5") == before
    later = ids_on_disk(directory)
    assert {name: later[name] for name in on_disk if not name.endswith("-delete")} == {
        name: topic_id for name, topic_id in on_disk.items() if not name.endswith("-delete")
    }


@pytest.mark.interop  # takes many seconds
def test_the_copy_leads_back_to_0_2(directory: Path) -> None:
    """What 0.2 would read is what it has written, whatever later versions have done."""
    before = topic_ids(directory / "metadata.sqlite")
    with Broker(data_dir=directory, settings=SETTINGS) as broker:
        check(broker, [b"committed"], [])
    for suffix in ("-wal", "-shm"):
        (directory / f"metadata.sqlite{suffix}").unlink(missing_ok=True)
    (directory / "metadata.sqlite.layout5").rename(directory / "metadata.sqlite")
    assert topic_ids(directory / "metadata.sqlite") == before
    with Broker(data_dir=directory, settings=SETTINGS) as broker:
        check(broker, [b"committed"], [])
