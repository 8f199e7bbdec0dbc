"""The small text files: what we write for what we read of Kafka's is what Kafka wrote."""

import shutil
from pathlib import Path

import pytest

from tests.golden.partitions import FIXTURES, GoldenPartition
from warmlog.broker.log.directory.checkpoint import (
    CLEAN_MARKER,
    CLEANER_POINTS,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    read_clean_marker,
    read_epochs,
    read_offsets,
    read_topic_id,
    write_clean_marker,
    write_epochs,
    write_offsets,
    write_topic_id,
)
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.io.disk import Disk

DISK = Disk()


@pytest.mark.parametrize("name", [RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS, CLEANER_POINTS])
def test_offsets_are_written_back_as_kafka_wrote_them_but_in_our_order(name: str, tmp_path: Path) -> None:
    kafka = FIXTURES / "clean" / name
    ours = tmp_path / name
    write_offsets(DISK, str(ours), read_offsets(DISK, str(kafka)))
    assert ours.read_text().splitlines()[:2] == kafka.read_text().splitlines()[:2]
    assert sorted(ours.read_text().splitlines()) == sorted(kafka.read_text().splitlines())
    assert ours.read_text().endswith("\n")
    assert kafka.read_text().endswith("\n")


def test_a_checkpoint_that_a_kill_left_empty_holds_nothing() -> None:
    path = FIXTURES / "killed" / HIGH_WATERMARKS
    assert path.stat().st_size == 0
    assert read_offsets(DISK, str(path)) == {}


def test_leader_epochs_are_written_back_as_kafka_wrote_them(golden: GoldenPartition, tmp_path: Path) -> None:
    kafka = golden.directory / LEADER_EPOCHS
    write_epochs(DISK, str(tmp_path / LEADER_EPOCHS), read_epochs(DISK, str(kafka)))
    assert (tmp_path / LEADER_EPOCHS).read_bytes() == kafka.read_bytes()


def test_topic_ids_are_written_back_as_kafka_wrote_them(golden: GoldenPartition, tmp_path: Path) -> None:
    kafka = golden.directory / PARTITION_METADATA
    topic_id = read_topic_id(DISK, str(kafka))
    assert topic_id is not None
    write_topic_id(DISK, str(tmp_path / PARTITION_METADATA), topic_id, sync=False)
    assert (tmp_path / PARTITION_METADATA).read_bytes() == kafka.read_bytes()


def test_the_clean_shutdown_marker_is_written_back_as_kafka_wrote_it(tmp_path: Path) -> None:
    kafka = FIXTURES / "clean" / CLEAN_MARKER
    epoch = read_clean_marker(DISK, str(kafka))
    assert epoch is not None
    write_clean_marker(DISK, str(tmp_path / CLEAN_MARKER), epoch)
    assert (tmp_path / CLEAN_MARKER).read_bytes() == kafka.read_bytes()


@pytest.mark.parametrize("name", ["clean", "killed", "recovered"])
def test_a_whole_data_directory_of_kafka_opens(name: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(FIXTURES / name, data)
    partitions = sorted(path.name for path in data.iterdir() if path.is_dir())
    with DataDirectory.open(data, node_id=1) as directory:
        assert sorted(f"{found.topic}-{found.partition}" for found in directory.partitions()) == partitions
        assert directory.foreign_names() == []
        assert directory.was_clean == (name != "killed")
        assert directory.cluster_id == "d2FybWxvZ2dvbGRlbg"
