"""Directories that Kafka 4.3.1 wrote: they open and read as it reads them, and our indexes are its, byte for byte."""

import base64
import json
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.reader import records_in

CLEAN = (
    "aged-0", "append-time-0", "compacted-0", "empty-0", "gzip-0", "idempotent-0", "index-full-0", "keyed-0", "keyed-1",
    "keyed-2", "keyed-3", "lz4-0", "plain-0", "snappy-0", "sparse-index-0", "transactional-0", "trimmed-0", "zstd-0",
)  # fmt: skip
KILLED = ("killed-0", "killed-lz4-0")
NODE_ID = 1


class Copy:
    """A copy of one of Kafka's data directories, to be opened."""

    def __init__(self, source: Path, target: Path, names: Sequence[str]) -> None:
        target.mkdir()
        for path in source.iterdir():
            if path.is_dir() and path.name in names:
                shutil.copytree(path, target / path.name)
            elif path.is_file():
                shutil.copy(path, target)
        self.path = target
        self.directory = DataDirectory.open(target, node_id=NODE_ID)

    def open(self, name: str, *, clean: bool | None = None) -> PartitionLog:
        topic, _, partition = name.rpartition("-")
        key = (topic, int(partition))
        return PartitionLog.open(
            self.path / name,
            topic=topic,
            partition=int(partition),
            config=LogConfig(index_interval_bytes=4096 if topic == "sparse-index" else 512, segment_index_bytes=4096),
            files=OpenFiles(),
            clock=lambda: 0,
            random=random.Random(1),
            recovery_point=self.directory.recovery_points.get(key, 0),
            log_start_offset=self.directory.log_starts.get(key, 0),
            clean=self.directory.was_clean if clean is None else clean,
        )


@pytest.fixture
def copy(kafka_fixtures: Path, tmp_path: Path, kind: str, name: str) -> Iterator[Copy]:
    copied = Copy(kafka_fixtures / kind, tmp_path / "data", [name])
    yield copied
    copied.directory.close()
    shutil.rmtree(tmp_path)


def seen(kafka_fixtures: Path, kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((kafka_fixtures / "seen" / kind / f"{name}.json").read_text())
    return found


def expected_records(seen: dict[str, Any]) -> list[tuple[Any, ...]]:
    def plain(text: str | None) -> bytes | None:
        return None if text is None else base64.b64decode(text)

    return [(row["offset"], row["timestamp"], plain(row["key"]), plain(row["value"])) for row in seen["records"]]


def read_records(log: PartitionLog, max_bytes: int = 1000) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    offset = log.offsets.log_start_offset
    while offset < log.offsets.log_end_offset:
        piece = log.reads.read(offset, max_bytes, min_one_batch=True).slice
        assert piece is not None
        data = piece.read_all()
        found += [(r.offset, r.timestamp, r.key, r.value) for r in records_in(data, from_offset=offset)]
        offset = next_offset(data)
    return found


def next_offset(data: bytes) -> int:
    return max(header.next_offset for _, header in headers(data))


@pytest.mark.parametrize(
    ("kind", "name"), [("clean", name) for name in CLEAN] + [("recovered", name) for name in KILLED]
)
def test_a_cleanly_stopped_log_reads_as_kafka_reads_it(kafka_fixtures: Path, copy: Copy, kind: str, name: str) -> None:
    kafka = seen(kafka_fixtures, kind, name)
    log = copy.open(name)
    assert copy.directory.was_clean
    assert log.recovery is None
    assert (log.offsets.log_start_offset, log.offsets.log_end_offset) == (
        kafka["log_start_offset"],
        kafka["end_offset"],
    )
    assert read_records(log) == expected_records(kafka)
    log.close()


@pytest.mark.parametrize("kind", ["clean"])
@pytest.mark.parametrize("name", CLEAN)
def test_every_offset_is_found(kafka_fixtures: Path, copy: Copy, name: str) -> None:
    log = copy.open(name)
    offsets = [row[0] for row in expected_records(seen(kafka_fixtures, "clean", name))]
    for asked in range(log.offsets.log_start_offset, log.offsets.log_end_offset):
        piece = log.reads.read(asked, 1, min_one_batch=True).slice
        assert piece is not None
        found = [record.offset for record in records_in(piece.read_all(), from_offset=asked)]
        following = next((offset for offset in offsets if offset >= asked), None)
        assert not found or found[0] == following


@pytest.mark.parametrize("kind", ["clean"])
@pytest.mark.parametrize("name", sorted(set(CLEAN) - {"transactional-0"}))  # whose markers have times of their own
def test_times_are_found_as_a_reader_of_every_record_finds_them(kafka_fixtures: Path, copy: Copy, name: str) -> None:
    log = copy.open(name)
    rows = expected_records(seen(kafka_fixtures, "clean", name))
    for _, time, *_ in rows[::5]:
        found = log.reads.offset_for_time(time)
        assert found is not None
        assert (found.offset, found.timestamp) == next((row[0], row[1]) for row in rows if row[1] >= time)


@pytest.mark.parametrize("kind", ["clean"])
@pytest.mark.parametrize("name", CLEAN)
def test_kafkas_indexes_pass_our_checks_and_ours_are_the_same_bytes(copy: Copy, name: str) -> None:
    log = copy.open(name)
    for segment in log.reads.describe().segments[:-1]:
        index, times = (copy.path / name / f"{segment.base_offset:020d}{kind}" for kind in (".index", ".timeindex"))
        inode, before = index.stat().st_ino, (index.read_bytes(), times.read_bytes())
        assert segment.offset_index_entries * 8 == len(before[0])
        assert index.stat().st_ino == inode, "describing found nothing to rebuild"
        log.reads.rebuild_indexes(segment.base_offset)
        assert index.stat().st_ino != inode
        assert (index.read_bytes(), times.read_bytes()) == before


@pytest.mark.parametrize("kind", ["clean"])
@pytest.mark.parametrize("name", CLEAN)
def test_recovering_and_stopping_leaves_kafkas_bytes(copy: Copy, name: str) -> None:
    def contents() -> dict[str, bytes]:
        directory = copy.path / name
        return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "leader-epoch-checkpoint"}

    before = contents()
    copy.open(name, clean=False).close()
    assert contents() == before


@pytest.mark.parametrize("kind", ["killed"])
@pytest.mark.parametrize("name", KILLED)
def test_a_killed_log_is_recovered_as_kafka_recovers_it(kafka_fixtures: Path, copy: Copy, name: str) -> None:
    log = copy.open(name)
    assert not copy.directory.was_clean
    assert log.recovery is not None
    assert (log.recovery.truncated_bytes, log.recovery.truncated_at) == (75, 120)
    assert (log.epochs.current, log.epochs.epoch_of(119)) == (0, 0)
    kafka = seen(kafka_fixtures, "recovered", name)
    assert log.offsets.log_end_offset == kafka["end_offset"]
    assert read_records(log) == expected_records(kafka)
    log.close()
    for path in (kafka_fixtures / "recovered" / name).glob("*"):
        if path.suffix in {".log", ".index", ".timeindex"}:
            assert (copy.path / name / path.name).read_bytes() == path.read_bytes(), path.name


def test_kafkas_data_directory_is_understood(kafka_fixtures: Path, tmp_path: Path) -> None:
    everything = [path.name for path in (kafka_fixtures / "clean").iterdir()]
    directory = Copy(kafka_fixtures / "clean", tmp_path / "data", everything).directory
    assert directory.findings == []
    assert directory.foreign_names() == []
    names = {f"{each.topic}-{each.partition}" for each in directory.partitions()}
    assert names == {*CLEAN, "__consumer_offsets-0", "__transaction_state-0"}
    assert directory.recovery_points["plain", 0] == 204
    assert directory.log_starts == {("trimmed", 0): 77}
    directory.close()
