"""A rehearsal's disk beside the real one: what is done is seen alike, and the real directory stays as it is."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmlog.broker.log.io.disk import Disk, read_file, replace_file
from warmlog.broker.log.io.overlay_disk import OverlayDisk

NAMES = ("a.log", "b.index", "c.txt")
FLAGS = (os.O_RDWR, os.O_RDWR | os.O_CREAT, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
BEGINNING = {"a.log": b"0123456789" * 20, "b.index": b"entries!"}


def write(disk: Disk, path: str, flags: int, position: int, data: bytes) -> object:
    fd = disk.open(path, flags)
    try:
        disk.pwritev(fd, [data[:2], data[2:]], position)
        return disk.size(fd), disk.pread(fd, 1000, 0)
    finally:
        disk.close(fd)


def truncate(disk: Disk, path: str, size: int) -> object:
    fd = disk.open(path, os.O_RDWR)
    try:
        disk.truncate(fd, size)
        into = bytearray(7)
        return disk.size(fd), disk.read_into(fd, into, 3), bytes(into)
    finally:
        disk.close(fd)


def rename(disk: Disk, path: str, other: str) -> object:
    return disk.rename(path, f"{os.path.dirname(path)}/{other}")


def replace(disk: Disk, path: str, data: bytes) -> object:
    return replace_file(disk, path, data, sync=True)


def listed(disk: Disk, directory: str) -> list[Any]:
    return sorted(disk.scan(directory, stat_suffix=".log"))


names = st.sampled_from(NAMES)
small = st.binary(max_size=40)
places = st.integers(0, 260)
operations = st.one_of(
    st.tuples(st.just(write), names, st.sampled_from(FLAGS), places, small),
    st.tuples(st.just(truncate), names, places),
    st.tuples(st.just(rename), names, names),
    st.tuples(st.just(replace), names, small),
    st.tuples(st.just(lambda disk, path: disk.unlink(path)), names),
    st.tuples(st.just(read_file), names),
)


def outcome(operation: Callable[..., object], disk: Disk, directory: Path, name: str, *rest: object) -> object:
    """What it gives, or the error it raises."""
    try:
        return operation(disk, f"{directory}/{name}", *rest)
    except FileNotFoundError as error:
        return type(error)


@settings(max_examples=30)
@given(steps=st.lists(operations, max_size=12))
def test_it_is_to_whoever_uses_it_as_the_real_one(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]
) -> None:
    real, rehearsed = tmp_path_factory.mktemp("real"), tmp_path_factory.mktemp("rehearsed")
    for directory in (real, rehearsed):
        for name, content in BEGINNING.items():
            (directory / name).write_bytes(content)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in rehearsed.iterdir()}
    disk = OverlayDisk()
    for operation, name, *rest in steps:
        assert outcome(operation, disk, rehearsed, name, *rest) == outcome(operation, Disk(), real, name, *rest)
        assert listed(disk, str(rehearsed)) == listed(Disk(), str(real))
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in rehearsed.iterdir()} == before
    for path, content in disk.contents():
        there = real / Path(path).name
        assert content == (there.read_bytes() if there.exists() else None)


def test_a_mapping_shows_what_is_written_later(tmp_path: Path) -> None:
    path = f"{tmp_path}/x.index"
    disk = OverlayDisk()
    fd = disk.open(path, os.O_RDWR | os.O_CREAT)
    disk.truncate(fd, 16)
    mapping = disk.map(fd, 16)
    disk.pwritev(fd, [b"later"], 4)
    assert mapping[:] == b"\0\0\0\0later" + bytes(7)
    mapping.close()
    disk.close(fd)


def test_directories_are_made_and_removed_in_memory(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").touch()
    disk = OverlayDisk()
    disk.make_directory(f"{tmp_path}/new/deep")
    with pytest.raises(OSError, match="not empty"):
        disk.remove_directory(f"{tmp_path}/old")
    disk.unlink(f"{tmp_path}/old/file")
    disk.remove_directory(f"{tmp_path}/old")
    with pytest.raises(FileNotFoundError):
        disk.scan(f"{tmp_path}/old")
    assert disk.scan(f"{tmp_path}/new/deep") == []
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_lock_is_the_real_one_and_makes_no_file(tmp_path: Path) -> None:
    disk = OverlayDisk()
    fd = disk.open(f"{tmp_path}/.lock", os.O_RDWR | os.O_CREAT)
    assert disk.try_lock(fd)
    disk.close(fd)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".lock").touch()
    fd = disk.open(f"{tmp_path}/.lock", os.O_RDWR | os.O_CREAT)
    inode = (tmp_path / ".lock").stat().st_ino
    assert f":{inode} " not in Path("/proc/locks").read_text()
    disk.close(fd)
    disk = OverlayDisk()
    fd = disk.open(f"{tmp_path}/.lock", os.O_RDWR | os.O_CREAT)
    assert disk.try_lock(fd)
    assert f":{inode} " in Path("/proc/locks").read_text()
    disk.close(fd)
    assert f":{inode} " not in Path("/proc/locks").read_text()


def test_times_and_identities_are_told(tmp_path: Path) -> None:
    (tmp_path / "real").touch()
    disk = OverlayDisk()
    assert disk.modified_ms(f"{tmp_path}/real") == Disk().modified_ms(f"{tmp_path}/real")
    disk.set_modified(f"{tmp_path}/real", 7)
    assert disk.modified_ms(f"{tmp_path}/real") == 7
    assert Disk().modified_ms(f"{tmp_path}/real") != 7
    assert disk.identity(f"{tmp_path}/real") == Disk().identity(f"{tmp_path}/real")
    disk.close(disk.open(f"{tmp_path}/made", os.O_RDWR | os.O_CREAT))
    assert disk.identity(f"{tmp_path}/made") != disk.identity(f"{tmp_path}/real")
    disk.unlink(f"{tmp_path}/real")
    for verb in (disk.modified_ms, disk.identity, disk.unlink):
        with pytest.raises(FileNotFoundError):
            verb(f"{tmp_path}/real")
