"""A small data directory as a broker of ours leaves it after a clean stop, made without one: to be damaged.

Topics: `plain` (two partitions, several segments, idempotent producers), `squeezed` (compacted, with gaps), and
`transactional`, a directory that Kafka wrote and that was moved in.
"""

import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.broker.stored_topics import stored_topics
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.directory.checkpoint import write_topic_id
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.metadata.topic import Topic
from warmlog.broker.partitions.epochs import assign_epoch
from warmlog.protocol.records.builder import build_batch

SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100, segment_index_bytes=4096)
CONFIGS = {"index.interval.bytes": "100", "segment.index.bytes": "4096"}
START_MS = 1_700_000_000_000
APPENDS = 12
SQUEEZED_OFFSETS = (0, 1, 4, 9, 10, 15)


def make_directory(data: Path, kafkas: Path) -> Path:
    """Make it; `kafkas` is a data directory that Kafka left."""
    with DataDirectory.open(data, node_id=1) as directory:
        topics = [
            Topic(name="plain", partitions=2, configs=CONFIGS),
            Topic(name="transactional", partitions=1, configs=CONFIGS),
            Topic(name="squeezed", partitions=1, configs=CONFIGS | {"cleanup.policy": "compact"}),
        ]
        with stored_topics(data) as stored:
            stored.create(*topics)
        logs = [written(data, "plain", 0), written(data, "plain", 1), squeezed(data)]
        shutil.copytree(kafkas / "transactional-0", data / "transactional-0")
        (data / "transactional-0" / "leader-epoch-checkpoint").unlink()
        logs.append(opened(data, "transactional", 0))
        for topic in topics:
            for index in range(topic.partitions):
                write_topic_id(Disk(), f"{data}/{topic.name}-{index}/partition.metadata", topic.id, sync=False)
        close(directory, logs)
    return data


def opened(data: Path, topic: str, partition: int, *, config: LogConfig = SMALL, clean: bool = True) -> PartitionLog:
    """Open a partition's log as a broker does, with a fixed clock."""
    log = PartitionLog.open(
        data / f"{topic}-{partition}",
        topic=topic,
        partition=partition,
        config=config,
        files=OpenFiles(),
        clock=lambda: START_MS + 100_000,
        random=random.Random(1),
        clean=clean,
    )
    assign_epoch(log, records_lost=not clean)
    return log


def written(data: Path, topic: str, partition: int) -> PartitionLog:
    """A log of several segments, written by two idempotent producers and another one."""
    log = opened(data, topic, partition)
    for number in range(APPENDS):
        producer, turn = number % 3, number // 3
        rows = [(START_MS + 1000 * number + i, b"key", b"value %d" % (number + 7 * partition), ()) for i in range(2)]
        identity = {"producer_id": producer + 10 * partition, "producer_epoch": 1, "base_sequence": 2 * turn}
        log.appends.append(build_batch(rows, **(identity if producer else {})))
    return log


def squeezed(data: Path) -> PartitionLog:
    """A log with gaps from compaction."""
    directory = data / "squeezed-0"
    directory.mkdir()
    batches = [
        build_batch([(START_MS + offset, b"key %d" % offset, b"v", ())], base_offset=offset, leader_epoch=0)
        for offset in SQUEEZED_OFFSETS
    ]
    (directory / f"{0:020}.log").write_bytes(b"".join(batches))
    opened(data, "squeezed", 0, clean=False).close()
    return opened(data, "squeezed", 0, config=replace(SMALL, cleanup_policy="compact"))


def close(directory: DataDirectory, logs: Sequence[PartitionLog]) -> None:
    """Stop cleanly."""
    for log in logs:
        log.close()
    directory.write_checkpoints(logs)
    directory.mark_clean()


def tree(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Return content and modification time of every file, and of every directory, by path."""
    return {
        str(path.relative_to(directory)): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in sorted([directory, *directory.rglob("*")])
    }


def long_segment(data: Path) -> Path:
    """Add a partition without a topic, with one segment of 8 MiB; return its offset index."""
    log = opened(data, "long", 0, config=LogConfig(index_interval_bytes=100))
    for number in range(16):
        log.appends.append(build_batch([(START_MS + number, None, bytes(1 << 19), ())]))
    log.close()
    return data / "long-0" / f"{0:020}.index"
