"""What compaction left of a broker's logs, judged by Kafka: its tool, its start, its consumer."""

import shutil
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from interop.kafka_node import KafkaNode, consume, create_topics, dump
from tests.interop.storage.judging import files_below, findings
from tests.interop.storage.test_kafka_serves import STORAGE_WARNING, move_in, seen_rows
from warmlog import Client, Message
from warmlog.broker.log.directory.checkpoint import CLEANER_POINTS, read_offsets
from warmlog.broker.log.io.disk import Disk
from warmlog.protocol.records.layout import Codec
from warmlog.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

KEYS = 200
RECORDS = 20_000
SETTINGS = {
    "log.segment.bytes": 65536,
    "log.index.interval.bytes": 512,
    "log.index.size.max.bytes": 8192,
    "log.cleanup.policy": "compact",
    "log.cleaner.backoff.ms": 50,
    "log.cleaner.min.cleanable.ratio": 0.01,
    "log.initial.task.delay.ms": 0,
    "log.segment.delete.delay.ms": 0,
}
TOPICS = [f"by-{codec.name.lower()}" for codec in Codec]


def rows() -> list[Message]:
    """Keys that repeat, and now and then a tombstone."""
    return [
        Message(None if i % 61 == 0 else b"value %d" % i, b"key-%d" % (i * i % KEYS), {"number": b"%d" % i})
        for i in range(RECORDS)
    ]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a broker that compacted until nothing was dirty, stopped cleanly."""
    data = tmp_path_factory.mktemp("broker") / "data"
    with Broker(data_dir=data, settings=SETTINGS) as broker:
        for codec, topic in zip(Codec, TOPICS, strict=True):
            with Client(broker.native, compression=codec.name.lower(), batch_bytes=4096) as client:
                client.produce_many(topic, rows())
        while not is_clean(broker):
            time.sleep(0.1)
    return data


def is_clean(broker: Broker) -> bool:
    with urlopen(f"http://{broker.http}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    values = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}
    assert values["warmlog_cleaner_uncleanable_partitions"] == 0
    runs, ratio = values["warmlog_cleaner_runs_total"], values["warmlog_cleaner_max_dirty_ratio"]
    return runs >= len(TOPICS) and ratio < 0.01 and not values["warmlog_cleaner_running"]


def test_kafka_finds_nothing_wrong_with_compacted_segments(data: Path) -> None:
    logs = files_below(data, ".log")
    found = findings(dump(["--deep-iteration", "--print-data-log", "--files", log] for log in logs))
    assert [each for each in found if "Non-consecutive" not in each and " is followed by " not in each] == []
    assert sum(log.stat().st_size for log in logs) < 0.2 * RECORDS * len(TOPICS) * 60


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_kafka_finds_nothing_wrong_with_their_indexes(data: Path, suffix: str) -> None:
    indexes = files_below(data, suffix)
    assert findings(dump(["--files", path] for path in indexes)) == []
    assert findings(dump(["--index-sanity-check", "--files", path] for path in indexes)) == []


def test_kafka_starts_on_them_and_its_consumer_sees_the_last_record_of_each_key(data: Path, tmp_path: Path) -> None:
    node = KafkaNode(tmp_path / "data")
    configs = {"cleanup.policy": "compact", "internal.segment.bytes": 65536, "min.cleanable.dirty.ratio": 1}
    with node:
        create_topics(node.bootstrap, dict.fromkeys(TOPICS, configs))
    for topic in TOPICS:
        move_in(data / f"{topic}-0", node.data / f"{topic}-0")
    shutil.copy(data / "cleaner-offset-checkpoint", node.data)
    with node:
        partitions = consume(node.bootstrap, *TOPICS)
    last: dict[bytes | None, int] = {message.key: offset for offset, message in enumerate(rows())}
    for partition in partitions:
        assert partition["end_offset"] == RECORDS
        seen = seen_rows(partition)
        assert {row[1]: offset for offset, row in seen.items()} == last
        assert {offset: row[2] for offset, row in seen.items() if offset in set(last.values())} == {
            offset: rows()[offset].value for offset in last.values()
        }
    assert not [line for line in node.log().splitlines() if STORAGE_WARNING.search(line) and "by-" in line]


def test_kafka_goes_on_compacting_what_we_have_compacted(data: Path, tmp_path: Path) -> None:
    """Its cleaner walks our batches, horizons and all, from our checkpoint on."""
    node = KafkaNode(tmp_path / "data")
    configs = {"cleanup.policy": "compact", "internal.segment.bytes": 65536, "min.cleanable.dirty.ratio": 0.001}
    configs["delete.retention.ms"] = 0
    with node:
        create_topics(node.bootstrap, dict.fromkeys(TOPICS, configs))
    for topic in TOPICS:
        move_in(data / f"{topic}-0", node.data / f"{topic}-0")
    cleaned = {(topic, 0) for topic in TOPICS}
    with node:
        while not cleaned <= read_offsets(Disk(), f"{node.data}/{CLEANER_POINTS}").keys():
            time.sleep(0.5)
        partitions = consume(node.bootstrap, *TOPICS)
    last: dict[bytes | None, int] = {message.key: offset for offset, message in enumerate(rows())}
    for partition in partitions:
        assert {row[1]: offset for offset, row in seen_rows(partition).items() if row[2] is not None} == {
            key: offset for key, offset in last.items() if rows()[offset].value is not None
        }
    assert not [line for line in node.log().splitlines() if STORAGE_WARNING.search(line) and "by-" in line]
