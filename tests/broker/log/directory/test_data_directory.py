import errno
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from warmlog.broker.log.directory.checkpoint import CLEAN_MARKER, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.directory.identity import parse_properties
from warmlog.broker.log.errors import DataDirectoryError, DirectoryFailedError
from warmlog.broker.log.io.directory_names import PartitionName
from warmlog.broker.log.io.disk import Disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "data"


@pytest.fixture
def directory(path: Path) -> Iterator[DataDirectory]:
    with DataDirectory.open(path, node_id=1) as directory:
        yield directory


def log(
    topic: str, partition: int, *, start: int = 0, base: int = 0, end: int = 10, synced: int = 5
) -> SimpleNamespace:
    return SimpleNamespace(
        topic=topic,
        partition=partition,
        offsets=SimpleNamespace(high_watermark=end, log_start_offset=start),
        durability=SimpleNamespace(recovery_point=synced, checkpoint_epochs=lambda: None),
        old_segments=SimpleNamespace(first_base_offset=base),
    )


def test_a_new_directory_gets_its_identity_and_keeps_it(path: Path) -> None:
    with DataDirectory.open(path, node_id=3) as first:
        assert len(first.cluster_id) == 22
        assert not first.was_clean
    with DataDirectory.open(path, node_id=3) as second:
        assert (second.cluster_id, second.directory_id) == (first.cluster_id, first.directory_id)
    properties = parse_properties((path / "meta.properties").read_text())
    assert properties == {
        "version": "1",
        "cluster.id": first.cluster_id,
        "node.id": "3",
        "directory.id": first.directory_id,
    }


def test_a_cluster_id_can_be_given(path: Path) -> None:
    DataDirectory.open(path, node_id=1, cluster_id="mine").close()
    with pytest.raises(DataDirectoryError, match="belongs to cluster mine, not yours"):
        DataDirectory.open(path, node_id=1, cluster_id="yours")


def test_a_directory_is_served_once_within_a_process(directory: DataDirectory, path: Path) -> None:
    with pytest.raises(DataDirectoryError, match="in use"):
        DataDirectory.open(path, node_id=1)
    assert _locked_elsewhere(path), "the refused second one must not have released the lock"


def test_a_directory_is_served_once_among_processes(directory: DataDirectory, path: Path) -> None:
    assert _locked_elsewhere(path)
    directory.close()
    assert not _locked_elsewhere(path)


def _locked_elsewhere(path: Path) -> bool:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_is_refused, (path,))


def _is_refused(path: Path) -> bool:
    try:
        DataDirectory.open(path, node_id=1).close()
    except DataDirectoryError:
        return True
    return False


def test_closing_twice_is_no_harm(directory: DataDirectory, path: Path) -> None:
    directory.close()
    directory.close()
    DataDirectory.open(path, node_id=1).close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version=0\nbroker.id=1\n", "is of version 0, not 1"),
        ("version=2\nnode.id=1\ncluster.id=x\n", "is of version 2, not 1"),
        ("node.id=1\ncluster.id=x\n", "is of version 0"),
        ("version=1\nnode.id=7\ncluster.id=x\n", "belongs to node 7, this is node 1"),
        ("version=1\nnode.id=1\n", "lacks"),
        ("version=1\ncluster.id=x\n", "lacks"),
    ],
)
def test_a_directory_of_another_version_or_node_is_refused(path: Path, text: str, message: str) -> None:
    path.mkdir(parents=True)
    (path / "meta.properties").write_text(text)
    with pytest.raises(DataDirectoryError, match=message) as caught:
        DataDirectory.open(path, node_id=1)
    assert "\n" not in str(caught.value)
    (path / "meta.properties").unlink()
    DataDirectory.open(path, node_id=1).close()


def test_what_kafka_wrote_is_understood(path: Path) -> None:
    path.mkdir(parents=True)
    text = "#\n#Sat Nov 21 08:00:00 UTC 2026\ncluster.id=abc\\=\\=\ndirectory.id=d\nnode.id=1\nversion=1\n"
    (path / "meta.properties").write_text(text)
    with DataDirectory.open(path, node_id=1) as directory:
        assert (directory.cluster_id, directory.directory_id) == ("abc==", "d")


def test_a_directory_that_cannot_be_written_is_refused_in_one_line(path: Path) -> None:
    class ReadOnlyDisk(Disk):
        def open(self, path: str, flags: int) -> int:
            if flags & os.O_CREAT:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
            return super().open(path, flags)

    with pytest.raises(DataDirectoryError, match="cannot be used: Read-only file system"):
        DataDirectory.open(path, node_id=1, disk=ReadOnlyDisk())


def test_a_file_in_its_place_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("not a directory")
    with pytest.raises(DataDirectoryError, match="cannot be used"):
        DataDirectory.open(path, node_id=1)


def test_the_clean_marker_is_good_until_logs_are_opened(path: Path) -> None:
    with DataDirectory.open(path, node_id=1) as directory:
        directory.mark_clean()
    with DataDirectory.open(path, node_id=1) as directory:
        assert directory.was_clean
    assert (path / CLEAN_MARKER).exists()
    with DataDirectory.open(path, node_id=1) as directory:
        assert directory.was_clean
        directory.unmark_clean()
        assert not (path / CLEAN_MARKER).exists()
    with DataDirectory.open(path, node_id=1) as directory:
        assert not directory.was_clean


def test_checkpoints_are_found_by_the_next_start(directory: DataDirectory, path: Path) -> None:
    directory.write_checkpoints(
        [log("a", 0), log("b", 3, start=7, base=2, end=20, synced=9), log("c", 0, start=4, base=4)]
    )
    directory.close()
    with DataDirectory.open(path, node_id=1) as again:
        assert again.recovery_points == {("a", 0): 5, ("b", 3): 9, ("c", 0): 5}
        assert again.log_starts == {("b", 3): 7}
        assert again.high_watermarks == {("a", 0): 10, ("b", 3): 20, ("c", 0): 10}
        assert again.findings == []


def test_a_checkpoint_that_cannot_be_read_is_as_good_as_none(directory: DataDirectory, path: Path) -> None:
    directory.close()
    (path / RECOVERY_POINTS).write_text("0\n1\nnonsense\n")
    (path / LOG_STARTS).write_bytes(b"\xff\xfe\xfd\n")
    (path / HIGH_WATERMARKS).write_text("0\n1\na 0 3\n")
    with DataDirectory.open(path, node_id=1) as again:
        assert again.recovery_points == {}
        assert again.log_starts == {}
        assert again.high_watermarks == {("a", 0): 3}
        assert len(again.findings) == 2


def test_partitions_deleted_ones_and_foreign_names_are_told_apart(directory: DataDirectory, path: Path) -> None:
    for name in (
        "words-0",
        "words-10",
        "a-b-1",
        "gone-0.0123-delete",
        "old-1.0123-stray",
        "__cluster_metadata-0",
        "music",
        "lost+found",
    ):
        (path / name).mkdir()
    for name in (
        "notes.txt",
        "words-9",
        "metadata.sqlite",
        "metadata.sqlite-wal",
        RECOVERY_POINTS,
        RECOVERY_POINTS + ".tmp",
    ):
        (path / name).write_text("")
    assert directory.partitions() == [
        PartitionName(topic="a-b", partition=1),
        PartitionName(topic="words", partition=0),
        PartitionName(topic="words", partition=10),
    ]
    assert directory.deleted_directories() == ["gone-0.0123-delete"]
    assert directory.foreign_names() == ["__cluster_metadata-0", "music", "notes.txt", "words-9"]


class FullDisk(Disk):
    """Has room for nothing but what the reserve gives up."""

    def __init__(self, reserve: Path) -> None:
        self.reserve = reserve

    def pwritev(self, fd: int, buffers: "Sequence[bytes | bytearray | memoryview]", position: int) -> int:
        if self.reserve.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().pwritev(fd, buffers, position)


def test_what_must_be_written_on_a_full_disk_has_its_room(path: Path) -> None:
    with DataDirectory.open(path, node_id=1, reserve_bytes=1 << 16, disk=FullDisk(path / ".reserve")) as directory:
        directory.fill_reserve()
        assert directory.reserve.held_bytes == 1 << 16
        assert directory.foreign_names() == []
        directory.write_checkpoints([log("a", 0)])
        assert directory.reserve.held_bytes == 1 << 15, "what was not needed is reserved again"
        assert directory.space_status.is_short
        directory.fill_reserve()
        assert directory.reserve.held_bytes == 1 << 16
        directory.mark_clean()
    with DataDirectory.open(path, node_id=1) as directory:
        assert directory.recovery_points == {("a", 0): 5}
        assert not (path / ".reserve").exists()


@pytest.mark.parametrize("probe", [False, True])
def test_a_look_says_how_much_room_there_is_and_leaves_nothing(directory: DataDirectory, probe: bool) -> None:
    before = sorted(os.listdir(directory.path))
    assert directory.measure_space(probe=probe).usable_bytes > 0
    assert sorted(os.listdir(directory.path)) == before


def test_a_look_at_what_is_not_there_any_more_says_so(directory: DataDirectory, path: Path) -> None:
    path.rename(path.with_name("moved"))
    for _ in range(2):
        with pytest.raises(DirectoryFailedError, match="no longer exists"):
            directory.measure_space(probe=False)
        path.mkdir(exist_ok=True)
