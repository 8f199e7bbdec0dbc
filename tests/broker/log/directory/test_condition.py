"""A broker notices what is unusual about its data directories."""

import logging
import shutil
import stat
from pathlib import Path

import pytest

from warmlog.broker.log.directory.condition import report_directories
from warmlog.broker.log.directory.data_directories import DataDirectories


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return [tmp_path / "a", tmp_path / "b"]


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
        (
            f"data directory {paths[1]}: every user of the machine has access (mode 755);"
            f" to restrict it: chmod 750 {paths[1]}"
        )
    ]
    assert stat.S_IMODE(paths[1].stat().st_mode) == 0o755
