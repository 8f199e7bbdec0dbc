"""What the stores of brokers and clusters say about the partitions of a topic."""

import shutil
from pathlib import Path

import pytest

from tests.broker.stored_topics import stored_topics
from tests.warmlog.cli.nodes.running import nodes
from warmlog.broker.metadata.topic import Topic
from warmlog.client.blocking import Client
from warmlog.inspect.catalog import data_directories, known_topics
from warmlog.inspect.errors import InspectError
from warmlog.inspect.kraft import METADATA_DIRECTORY, MetadataLog
from warmlog.testing import Broker


def counts(*directories: Path) -> dict[str, int]:
    return {name: topic.partitions for name, topic in known_topics(directories).items()}


def test_a_brokers_store_is_read_while_it_runs_and_after(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker, Client(broker.native) as client:
        client.create_topic("orders", partitions=3)
        assert counts(tmp_path) == {"orders": 3}
        client.alter_topic("orders", partitions=5)
        assert counts(tmp_path) == {"orders": 5}
        topic_id = client.topic("orders").topic_id
    (topic,) = known_topics([tmp_path]).values()
    assert (topic.topic_id, topic.partitions, topic.replicas) == (topic_id, 5, {})


def test_the_store_of_nodes_is_read_while_they_run_and_after(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with nodes(directory, 3) as running:
        with Client(running.native) as client:
            client.create_topic("alone", partitions=4)
            client.create_topic("copied", partitions=2, replication_factor=3)
        found = known_topics([directory / "nodes" / "2"])
        assert running.stop() == 0
    assert found == known_topics(data_directories(str(directory)))
    assert {name: (topic.partitions, topic.replicas) for name, topic in found.items()} == {
        "alone": (4, {}),
        "copied": (2, {0: 3, 1: 3}),
    }


def test_the_directories_of_a_path(tmp_path: Path) -> None:
    for name in ("a,b", "c", "n/nodes/1", "n/nodes/2", "single/nodes/1"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "single" / "metadata.sqlite").touch()

    def named(path: str) -> list[str]:
        return [str(each.relative_to(tmp_path)) for each in data_directories(path)]

    assert named(f"{tmp_path}/a,b") == ["a,b"]
    assert named(f"{tmp_path}/c, {tmp_path}/gone,{tmp_path}/n") == ["c", "gone", "n/nodes/1", "n/nodes/2"]
    assert named(f"{tmp_path}/single") == ["single"]


def test_kafkas_metadata_are_read_from_the_log_and_from_a_snapshot(kafka_fixtures: Path, tmp_path: Path) -> None:
    """Topic `a` was grown from three partitions to seven, `gone` was deleted, `b` came after the snapshot."""
    stored = kafka_fixtures / "metadata_log"
    assert counts(stored) == {"a": 7, "b": 5}
    shutil.copytree(stored, tmp_path / "copy")
    (snapshot,) = (tmp_path / "copy" / METADATA_DIRECTORY).glob("*.checkpoint")
    snapshot.unlink()
    assert counts(tmp_path / "copy") == {"a": 7, "b": 5}
    shutil.copytree(stored, tmp_path / "alone")
    (log,) = (tmp_path / "alone" / METADATA_DIRECTORY).glob("*.log")
    log.unlink()
    assert counts(tmp_path / "alone") == {"a": 7, "gone": 2}


def test_replicas_of_kafkas_partitions_are_counted() -> None:
    topic_id = bytes(range(16))
    log = MetadataLog.__new__(MetadataLog)
    log.names, log.replicas = {}, {}
    log._apply(b"\x01\x02\x00" + b"\x02t" + topic_id + b"\x00")
    for partition, count in ((0, 1), (1, 2)):
        replicas = bytes([count + 1]) + b"".join(at.to_bytes(4) for at in range(count))
        log._apply(b"\x01\x03\x02" + partition.to_bytes(4) + topic_id + replicas + bytes(30))
    (found,) = log.replicas.values()
    assert found == {0: 1, 1: 2}
    log._apply(b"\x01\x05\x02" + (0).to_bytes(4) + topic_id + b"\x02\x01\x04\x00\x00\x00\x07\x02\x0d\x04" + bytes(12))
    assert found == {0: 3, 1: 2}
    log._apply(b"\x01\x09\x00" + topic_id + b"\x00")
    assert (log.names, log.replicas) == ({}, {})


def test_a_store_that_is_damaged_is_named(tmp_path: Path) -> None:
    with stored_topics(tmp_path) as stored:
        stored.create(Topic(name="t", partitions=1))
    (tmp_path / "metadata.sqlite").write_bytes(b"nothing")
    with pytest.raises(InspectError, match=f"{tmp_path}/metadata.sqlite"):
        known_topics([tmp_path])
