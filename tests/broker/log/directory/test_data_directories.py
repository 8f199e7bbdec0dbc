"""Several data directories; names hold the invariants of `broker.log.directory.data_directories`."""

import errno
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from warmlog.broker.log.directory.belonging import METADATA_FILE
from warmlog.broker.log.directory.checkpoint import RECOVERY_POINTS
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.directory.identity import parse_properties
from warmlog.broker.log.errors import DataDirectoryError
from warmlog.broker.log.io.disk import Disk
from warmlog.protocol.partitions import TopicPartition


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return [tmp_path / "a", tmp_path / "b", tmp_path / "c"]


def opened(
    paths: Sequence[Path], known: Mapping[str, str] | None = None, partitions: Collection[TopicPartition] = ()
) -> DataDirectories:
    directories = DataDirectories.open(paths, node_id=1)
    try:
        directories.join(known or {}, partitions)
    except BaseException:
        directories.close()
        raise
    return directories


@pytest.fixture
def directories(paths: list[Path]) -> Iterator[DataDirectories]:
    with opened(paths) as directories:
        yield directories


def log(topic: str, partition: int, synced: int = 5) -> SimpleNamespace:
    return SimpleNamespace(
        topic=topic,
        partition=partition,
        offsets=SimpleNamespace(high_watermark=10, log_start_offset=0),
        durability=SimpleNamespace(recovery_point=synced, checkpoint_epochs=lambda: None),
        old_segments=SimpleNamespace(first_base_offset=0),
    )


def properties(path: Path) -> dict[str, str]:
    return parse_properties((path / "meta.properties").read_text())


def held(directory: DataDirectory | None) -> str:
    assert directory is not None
    return Path(directory.path).name


def test_all_are_of_one_cluster_and_each_has_an_id_of_its_own(directories: DataDirectories, paths: list[Path]) -> None:
    found = [properties(path) for path in paths]
    assert {each["cluster.id"] for each in found} == {directories.cluster_id}
    assert {each["node.id"] for each in found} == {"1"}
    assert [each["directory.id"] for each in found] == [directory.directory_id for directory in directories.live]
    assert len({each["directory.id"] for each in found}) == 3


def test_a_new_partition_goes_where_the_fewest_are(directories: DataDirectories) -> None:
    placed = [held(directories.place("t", index)) for index in range(7)]
    assert placed == ["a", "b", "c", "a", "b", "c", "a"]
    directories.forget("t", 1)
    directories.forget("t", 4)
    assert [held(directories.place("u", index)) for index in range(4)] == ["b", "b", "b", "c"]
    assert held(directories.place("t", 6)) == "a", "who has a place keeps it"


def test_partitions_are_found_where_they_lie(paths: list[Path]) -> None:
    opened(paths).close()
    for path, name in zip(paths, ("t-1", "t-0", "u-0"), strict=True):
        (path / name).mkdir()
    (paths[0] / "t-2").mkdir()
    with opened(paths) as directories:
        assert [held(directories.place("t", index)) for index in range(3)] == ["b", "a", "a"]
        assert held(directories.place("u", 0)) == "c"
        assert directories.holder("v", 0) is None
        assert held(directories.place("v", 0)) == "b"
        (paths[0] / "w-0").mkdir()
        assert held(directories.place("w", 0)) == "a", "put there while the broker ran"


def test_a_partition_in_two_directories_is_refused_by_both_their_names(paths: list[Path]) -> None:
    opened(paths).close()
    (paths[1] / "t-0").mkdir()
    (paths[2] / "t-0").mkdir()
    with pytest.raises(DataDirectoryError, match=f"t-0 lies in two data directories, {paths[1]} and {paths[2]}"):
        opened(paths)
    (paths[1] / "t-0").rename(paths[1] / "t-0.0123456789abcdef0123456789abcdef-delete")
    opened(paths).close()


def write_checkpoints(directories: DataDirectories, logs: list[Any]) -> None:
    for directory, held in directories.by_directory(logs).items():
        directories.write_checkpoints(directory, held)


def test_each_has_the_checkpoints_of_what_lies_in_it(directories: DataDirectories, paths: list[Path]) -> None:
    for index in range(4):
        directories.place("t", index)
    write_checkpoints(directories, [log("t", index, synced=index) for index in range(4)])
    assert (paths[0] / RECOVERY_POINTS).read_text() == "0\n2\nt 0 0\nt 3 3\n"
    assert (paths[2] / RECOVERY_POINTS).read_text() == "0\n1\nt 2 2\n"
    directories.forget("t", 2)
    write_checkpoints(directories, [log("t", index, synced=index) for index in (0, 1, 3)])
    assert (paths[2] / RECOVERY_POINTS).read_text() == "0\n0\n"


def test_what_a_checkpoint_said_of_a_partition_that_is_gone_is_forgotten(paths: list[Path]) -> None:
    with opened(paths) as directories:
        (paths[0] / "t-0").mkdir()
        directories.place("t", 0)
        write_checkpoints(directories, [log("t", 0, synced=9)])
    with opened(paths) as directories:
        assert directories.first.recovery_points == {("t", 0): 9}
        directories.forget("t", 0)
        assert directories.first.recovery_points == {}


def copy_of_the_first(paths: list[Path]) -> None:
    shutil.rmtree(paths[1])
    shutil.copytree(paths[0], paths[1])


def new_first(paths: list[Path]) -> None:
    shutil.rmtree(paths[0])


def metadata_elsewhere(paths: list[Path]) -> None:
    (paths[1] / METADATA_FILE).touch()


def another_cluster(paths: list[Path]) -> None:
    shutil.rmtree(paths[1])
    DataDirectory.open(paths[1], node_id=1, cluster_id="other").close()


def a_file_in_its_place(paths: list[Path]) -> None:
    shutil.rmtree(paths[0])
    shutil.rmtree(paths[1])
    shutil.rmtree(paths[2])
    paths[0].write_text("")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (copy_of_the_first, "have the same directory.id"),
        (new_first, r"/a is new, but .*/b belongs to a broker already"),
        (metadata_elsewhere, r"lies in .*/b, which is not the first of log\.dirs \(.*/a is\)"),
        (another_cluster, r"/b belongs to cluster other, not"),
        (a_file_in_its_place, r"/a cannot be used"),
    ],
)
def test_directories_that_do_not_go_together_are_refused(
    paths: list[Path], change: Callable[[list[Path]], None], message: str
) -> None:
    opened(paths).close()
    change(paths)
    with pytest.raises(DataDirectoryError, match=message) as caught:
        opened(paths)
    assert "\n" not in str(caught.value)


def test_one_directory_given_twice_is_refused(paths: list[Path], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(paths[0])
    with pytest.raises(DataDirectoryError, match="in use"):
        opened([paths[0], tmp_path / "link"])
    opened(paths).close()


def test_a_directory_of_an_older_kafka_gets_an_id(paths: list[Path]) -> None:
    paths[0].mkdir()
    (paths[0] / "meta.properties").write_text("version=1\ncluster.id=abc\nnode.id=1\n")
    with opened(paths[:1]) as directories:
        assert properties(paths[0])["directory.id"] == directories.first.directory_id != ""


class RefusingDisk(Disk):
    """Does not open files of a name."""

    def __init__(self, refused: str) -> None:
        self._refused = refused

    def open(self, path: str, flags: int) -> int:
        if path.endswith(self._refused):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return super().open(path, flags)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: (path / "meta.properties").unlink(), "it has no meta.properties: put the file back (its"),
        (shutil.rmtree, "it does not exist, and had partitions before"),
        (lambda path: (shutil.rmtree(path), path.mkdir()), "it is empty, and had partitions before"),
        (lambda path: (shutil.rmtree(path), path.write_text("")), "Not a directory"),
    ],
)
def test_what_is_wrong_with_a_directory_that_had_partitions_is_named(
    paths: list[Path], spoil: Callable[[Path], object], reason: str
) -> None:
    with opened(paths) as directories:
        known = directories.remembered()
    (paths[1] / "words-0").mkdir()
    spoil(paths[1])
    with opened(paths, known, [("words", 0)]) as directories:
        assert list(directories.offline) == [str(paths[1])]
        assert directories.offline[str(paths[1])].startswith(reason)


def test_a_file_that_cannot_be_read_is_named(paths: list[Path]) -> None:
    with opened(paths):
        pass
    disk = RefusingDisk(f"b/{RECOVERY_POINTS}")
    with DataDirectories.open(paths, node_id=1, disk=disk) as directories:
        directories.join({}, [])
        assert directories.offline == {str(paths[1]): f"Permission denied: {paths[1] / RECOVERY_POINTS}"}
    with pytest.raises(DataDirectoryError, match=rf"{paths[0]} cannot be used: Permission denied: {paths[0]}/meta"):
        DataDirectories.open(paths, node_id=1, disk=RefusingDisk("a/meta.properties"))


def test_a_first_directory_that_has_the_metadata_is_not_taken_for_a_new_one(paths: list[Path]) -> None:
    with opened(paths):
        (paths[0] / METADATA_FILE).touch()
    (paths[0] / "meta.properties").unlink()
    with pytest.raises(DataDirectoryError, match=rf"{paths[0]} has no meta\.properties: put the file back"):
        opened(paths)


def test_a_partition_that_the_checkpoints_name_and_no_directory_has_is_lost(paths: list[Path]) -> None:
    keys = [("words", index) for index in range(4)]
    with opened(paths) as directories:
        for key in keys[:3]:
            directory = directories.place(*key)
            (Path(directory.path) / f"words-{key[1]}").mkdir()
            directory.add_new([key])
    lost, moved = paths[0] / "words-0", paths[1] / "words-1"
    lost.rmdir()
    moved.rename(paths[2] / moved.name)
    with opened(paths, {}, keys) as directories:
        assert directories.lost == {
            keys[0]: f"{lost} is missing: put it back, or accept the loss with: mkdir -p {lost} && touch"
            f" {lost}/.accept-loss"
        }
        assert [directories.is_offline(*key) for key in keys] == [True, False, False, False]
        assert directories.forget_unknown() is False
        directories.forget(*keys[0])
        assert not directories.is_offline(*keys[0])


def test_a_partition_that_is_created_during_the_stop_is_in_the_checkpoint(tmp_path: Path) -> None:
    """Two threads replace the same checkpoint: neither fails, and the partition stays."""
    with DataDirectories.open([tmp_path], node_id=1) as directories, ThreadPoolExecutor(2) as pool:
        (directory,) = directories.live
        for number in range(50):
            adding = pool.submit(directory.add_new, [("t", number)])
            closing = pool.submit(directory.write_checkpoints, [])
            adding.result()
            closing.result()
            directory.add_new([("t", number)])
            assert directory.mentions([("t", number)])
