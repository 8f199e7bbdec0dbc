"""Our reading of Kafka's index files against what Kafka's own dump tool says of them."""

import shutil
from pathlib import Path
from typing import Any

from tests.golden.partitions import GoldenPartition
from warmlog.broker.log.index.offset import OffsetIndex
from warmlog.broker.log.index.time import TimeIndex
from warmlog.broker.log.io.files import OpenFiles


def entries_of(kind: type[OffsetIndex] | type[TimeIndex], file: Path, tmp_path: Path) -> list[Any]:
    copy = shutil.copy(file, tmp_path)
    index = kind(OpenFiles(), str(copy), int(file.stem), capacity_size=file.stat().st_size)
    found = [index.entry_at(slot) for slot in range(index.entries)]
    index.close()
    return found


def test_every_offset_index_entry_is_read_as_kafka_reads_it(golden: GoldenPartition, tmp_path: Path) -> None:
    for file in golden.files(".index"):
        dumped = golden.dumped(file, r"^offset: (?P<offset>\d+) position: (?P<position>\d+)$")
        ours = entries_of(OffsetIndex, file, tmp_path)
        assert [(entry.offset, entry.position) for entry in ours] == [
            (int(entry["offset"]), int(entry["position"])) for entry in dumped
        ]
        assert dumped


def test_every_time_index_entry_is_read_as_kafka_reads_it(golden: GoldenPartition, tmp_path: Path) -> None:
    for file in golden.files(".timeindex"):
        dumped = golden.dumped(file, r"^timestamp: (?P<timestamp>-?\d+) offset: (?P<offset>\d+)$")
        ours = entries_of(TimeIndex, file, tmp_path)
        assert [(entry.timestamp, entry.offset) for entry in ours] == [
            (int(entry["timestamp"]), int(entry["offset"])) for entry in dumped
        ]
        assert dumped
