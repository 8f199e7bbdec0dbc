"""A broker notices what is unusual about its data directories."""

import logging
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from warmlog.broker.log.directory.condition import older_copies, report_directories
from warmlog.broker.log.directory.data_directories import DataDirectories

FIRST_STOP, SECOND_STOP = 1_800_000_000_000, 1_800_000_060_000


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return [tmp_path / "a", tmp_path / "b"]


def found(paths: Sequence[Path]) -> list[str]:
    with DataDirectories.open(paths, node_id=1) as directories:
        directories.join({}, [])
        return list(older_copies(directories.live))


def close(paths: Sequence[Path], stop_ms: int | None) -> None:
    """Start, and stop cleanly at a time, or not at all."""
    with DataDirectories.open(paths, node_id=1) as directories:
        directories.join({}, [])
        directories.unmark_clean()
        for each in directories.live if stop_ms is not None else ():
            each.mark_clean(stop_ms)


def test_directories_of_one_stop_are_no_copies(paths: list[Path]) -> None:
    close(paths, FIRST_STOP)
    assert found(paths) == []


def test_a_new_directory_is_no_copy(paths: list[Path]) -> None:
    close(paths[:1], FIRST_STOP)
    assert found(paths) == []


@pytest.mark.parametrize("old", [0, 1])
def test_a_directory_of_an_earlier_stop_is_named(old: int, paths: list[Path], tmp_path: Path) -> None:
    close(paths, FIRST_STOP)
    shutil.copytree(paths[old], tmp_path / "copy")
    close(paths, SECOND_STOP)
    shutil.rmtree(paths[old])
    (tmp_path / "copy").rename(paths[old])
    (text,) = found(paths)
    assert text.startswith(
        f"data directory {paths[old]} was closed at 2027-01-15T08:00:00.000Z, and another directory was closed at "
        "2027-01-15T08:01:00.000Z: unless"
    )


def test_a_directory_of_a_stop_before_a_crash_is_named(paths: list[Path], tmp_path: Path) -> None:
    close(paths, FIRST_STOP)
    shutil.copytree(paths[1], tmp_path / "copy")
    close(paths, None)
    assert found(paths) == []
    shutil.rmtree(paths[1])
    (tmp_path / "copy").rename(paths[1])
    (text,) = found(paths)
    assert f"{paths[1]} was closed at 2027-01-15T08:00:00.000Z, and the broker has run" in text


def test_a_directory_that_was_emptied_is_named(paths: list[Path]) -> None:
    with DataDirectories.open(paths, node_id=1) as directories:
        directories.join({}, [])
        known = directories.remembered()
        (second,) = [each for each in directories.live if each is not directories.first]
    shutil.rmtree(paths[1])
    with DataDirectories.open(paths, node_id=1) as directories:
        directories.join(known, [])
        text = f"{paths[1]} was emptied or replaced (directory.id was {second.directory_id})"
        assert directories.gone == {second.directory_id: text}


def test_a_directory_that_the_broker_creates_is_its_users_alone(paths: list[Path]) -> None:
    with DataDirectories.open(paths, node_id=1) as directories:
        directories.join({}, [])
    assert [stat.filemode(path.stat().st_mode) for path in paths] == ["drwx------"] * 2


def test_a_directory_to_which_everybody_has_access_stays_so_and_is_named(
    paths: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    paths[1].mkdir()
    paths[1].chmod(0o755)
    caplog.set_level(logging.INFO)
    with DataDirectories.open(paths, node_id=1) as directories:
        directories.join({}, [])
        report_directories(directories, is_alone=True)
    assert [record.getMessage() for record in caplog.records if "access" in record.getMessage()] == [
        f"data directory {paths[1]}: every user of the machine has access (mode 755)"
    ]
    assert stat.S_IMODE(paths[1].stat().st_mode) == 0o755
