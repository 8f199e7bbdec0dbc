"""Kafka itself over directories that we wrote: it finds nothing to repair, and its consumer reads every record."""

import base64
import re
import shutil
from pathlib import Path

import pytest

from interop.kafka_node import KafkaNode, consume, create_topics
from tests.interop.storage.directories import Row, Written

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

#: What belongs to Kafka's own idea of the topic: its id, and the epochs that it gave out itself.
KEPT = {"partition.metadata", "leader-epoch-checkpoint"}
#: Who in Kafka speaks of files that it had to repair or give up.
STORAGE_WARNING = re.compile(
    r" (WARN|ERROR) (LogLoader|LogSegment|LocalLog|UnifiedLog|LogManager|\w*Index|ReplicaManager) "
)


@pytest.fixture(scope="module")
def kafkas_own(written: list[Written], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory of Kafka's, with empty topics of the same names and settings."""
    node = KafkaNode(tmp_path_factory.mktemp("kafka") / "data")
    with node:
        create_topics(node.bootstrap, {each.topic: settings_of(each) for each in written})
    return node.data


@pytest.fixture
def moved(written: list[Written], kafkas_own: Path, tmp_path: Path) -> KafkaNode:
    """A stopped Kafka with our files in the directories of its topics."""
    data = shutil.copytree(kafkas_own, tmp_path / "data")
    for each in written:
        move_in(each.directory, data / each.directory.name)
    return KafkaNode(data)


def settings_of(each: Written) -> dict[str, object]:
    return {
        "internal.segment.bytes": each.config.segment_bytes,
        "index.interval.bytes": each.config.index_interval_bytes,
        "segment.index.bytes": each.config.segment_index_bytes,
        "retention.ms": -1,
    }


def move_in(ours: Path, kafkas: Path) -> None:
    """Replace what Kafka has in a partition's directory with what we have."""
    for file in kafkas.iterdir():
        if file.name not in KEPT:
            file.unlink()
    for file in ours.iterdir():
        if file.name not in KEPT:
            shutil.copy(file, kafkas)


def seen_rows(partition: dict[str, object]) -> dict[int, Row]:
    """The rows that the Java consumer saw, by offset."""
    records = partition["records"]
    assert isinstance(records, list)
    return {
        record["offset"]: (
            record["timestamp"],
            unpacked(record["key"]),
            unpacked(record["value"]),
            tuple((name, unpacked(value)) for name, value in record["headers"]),
        )
        for record in records
    }


def unpacked(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def contents(data: Path, written: list[Written]) -> dict[str, bytes]:
    """The content of every log and its indexes, by partition and file."""
    return {
        f"{each.directory.name}/{path.name}": path.read_bytes()
        for each in written
        for path in sorted((data / each.directory.name).iterdir())
        if path.suffix in {".log", ".index", ".timeindex", ".txnindex"}
    }


def complaints(node: KafkaNode, written: list[Written]) -> list[str]:
    """What Kafka's storage warned of in our partitions (its cleaner races with itself as a broker stops: not meant)."""
    return [
        line
        for line in node.log().splitlines()
        if STORAGE_WARNING.search(line) and any(each.topic in line for each in written)
    ]


def test_kafka_serves_our_directories_as_they_are(moved: KafkaNode, written: list[Written]) -> None:
    with moved as node:
        partitions = consume(node.bootstrap, *(each.topic for each in written))
    for each, partition in zip(written, partitions, strict=True):
        assert partition["topic"] == each.topic
        assert partition["end_offset"] == max(each.rows) + 1
        assert seen_rows(partition) == each.rows
    assert complaints(moved, written) == []
    assert contents(moved.data, written) == contents(written[0].directory.parent, written)


def test_kafka_serves_only_what_was_committed_of_our_transactions(moved: KafkaNode, written: list[Written]) -> None:
    (each,) = [each for each in written if each.uncommitted]
    with moved as node:
        (partition,) = consume(node.bootstrap, each.topic, isolation="read_committed")
    stable = each.stable_offset
    expected = {offset: row for offset, row in each.rows.items() if offset < stable and offset not in each.uncommitted}
    assert partition["end_offset"] == stable < max(each.rows)
    assert seen_rows(partition) == expected


def test_kafka_recovers_our_logs_whole_and_makes_our_indexes_anew(moved: KafkaNode, written: list[Written]) -> None:
    for each in written:
        for index in (moved.data / each.directory.name).glob("*index"):
            index.unlink()
    (moved.data / ".kafka_cleanshutdown").unlink()
    (moved.data / "recovery-point-offset-checkpoint").unlink()
    with moved:
        pass
    assert not [line for line in complaints(moved, written) if "orrupt" in line]
    assert contents(moved.data, written) == contents(written[0].directory.parent, written)
