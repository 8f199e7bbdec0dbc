"""A broker notices that a data directory is an older copy, however it was stopped, until somebody accepts it."""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from warmlog.broker.log.directory.accepted_loss import ACCEPT_LOSS
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.directory.names import RUNS
from warmlog.broker.log.directory.runs import begin_run
from warmlog.broker.log.errors import DirectoryFailedError
from warmlog.broker.log.io.disk import Disk

FIRST, SECOND, THIRD = 1_800_000_000_000, 1_800_000_060_000, 1_800_000_120_000
STOPPED = 1_800_000_030_000


class CutDisk(Disk):
    """Ends the process before the nth replacement of a file of runs, or fails each in one directory."""

    def __init__(self, cut_at: int | None = None, failing: str | None = None) -> None:
        self.left = cut_at
        self.failing = failing

    def rename(self, source: str, target: str) -> None:
        if target.endswith(RUNS):
            if self.failing is not None and target.startswith(self.failing):
                raise OSError(30, "Read-only file system", target)
            if self.left == 0:
                raise KeyboardInterrupt
            self.left = None if self.left is None else self.left - 1
        super().rename(source, target)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return [tmp_path / "a", tmp_path / "b"]


def run(paths: Sequence[Path], now_ms: int, *, stopped_ms: int | None = None, disk: Disk | None = None) -> list[str]:
    """Start, and stop cleanly at a time or be killed; return the directories that are offline."""
    with DataDirectories.open(paths, node_id=1) as directories:
        directories.join({}, [])
        begin_run(directories, now_ms, disk)
        directories.unmark_clean()
        for each in directories.live if stopped_ms is not None else ():
            each.mark_clean(stopped_ms or 0)
        return list(directories.offline)


def put_back(copy: Path, path: Path) -> None:
    shutil.rmtree(path)
    shutil.copytree(copy, path)


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.clear()
    return found


@pytest.mark.parametrize("stopped_ms", [None, STOPPED])
@pytest.mark.parametrize("old", [0, 1])
def test_a_copy_from_before_a_later_run_is_named(
    old: int, stopped_ms: int | None, paths: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(paths, FIRST, stopped_ms=stopped_ms)
    shutil.copytree(paths[old], tmp_path / "copy")
    run(paths, SECOND)
    assert reports(caplog) == []
    put_back(tmp_path / "copy", paths[old])
    run(paths, THIRD)
    (text,) = reports(caplog)
    assert text.startswith(
        f"data directory {paths[old]} is an older copy: the run of 2027-01-15T08:00:00.000Z was the last one to use it,"
        " but the run of 2027-01-15T08:01:00.000Z has used the directory, too."
    )


def test_an_older_copy_is_named_by_every_start_until_the_loss_is_accepted(
    paths: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(paths, FIRST)
    shutil.copytree(paths[1], tmp_path / "copy")
    run(paths, SECOND)
    put_back(tmp_path / "copy", paths[1])
    run(paths, THIRD)
    (first,) = reports(caplog)
    run(paths, THIRD)
    assert reports(caplog) == [first]
    (paths[1] / ACCEPT_LOSS).touch()
    run(paths, THIRD)
    assert reports(caplog) == [f"data directory {paths[1]}: serving an older copy, because it has a file {ACCEPT_LOSS}"]
    assert not (paths[1] / ACCEPT_LOSS).exists()
    run(paths, THIRD)
    assert reports(caplog) == []


def test_the_newest_directory_is_no_older_copy_when_it_is_back(
    paths: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(paths, FIRST)
    shutil.copytree(paths[1], tmp_path / "older")
    run(paths, SECOND)
    shutil.copytree(paths[1], tmp_path / "newest")
    put_back(tmp_path / "older", paths[1])
    run(paths, THIRD)
    put_back(tmp_path / "newest", paths[1])
    assert len(reports(caplog)) == 1
    run(paths, THIRD)
    assert reports(caplog) == []
    put_back(tmp_path / "newest", paths[1])
    run(paths, THIRD)
    assert len(reports(caplog)) == 1


def test_a_directory_that_was_offline_is_no_older_copy(
    paths: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(paths, FIRST)
    paths[1].rename(tmp_path / "unmounted")
    run(paths[:1], SECOND, stopped_ms=STOPPED + 60_000)
    (tmp_path / "unmounted").rename(paths[1])
    run(paths, THIRD)
    assert reports(caplog) == []


def test_a_copy_of_an_offline_directory_is_found_after_the_newest_was_used(
    paths: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The clock stands still, or goes back: runs are counted on."""
    run(paths, THIRD)
    shutil.copytree(paths[1], tmp_path / "copy")
    run(paths[:1], FIRST)
    run(paths, FIRST)
    put_back(tmp_path / "copy", paths[1])
    run(paths, FIRST)
    (text,) = reports(caplog)
    assert f"{paths[1]} is an older copy" in text


@pytest.mark.parametrize("cut_at", range(4))
def test_a_start_that_is_killed_makes_no_directory_look_old(
    cut_at: int, paths: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    run(paths, FIRST)
    with pytest.raises(KeyboardInterrupt):
        run(paths, SECOND, disk=CutDisk(cut_at))
    run(paths, THIRD)
    assert reports(caplog) == []


def test_a_directory_that_cannot_be_written_goes_offline_and_does_not_look_old_later(
    paths: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    run(paths, FIRST)
    assert run(paths, SECOND, disk=CutDisk(failing=f"{paths[1]}/")) == [str(paths[1])]
    assert reports(caplog) == [
        f"data directory {paths[1]} is offline until the next startup: Read-only file system: {paths[1] / RUNS}"
    ]
    run(paths, THIRD)
    assert reports(caplog) == []
    with pytest.raises(DirectoryFailedError, match="cannot be used: Read-only file system"):
        run(paths, THIRD, disk=CutDisk(failing=f"{paths[0]}/"))


def test_a_copy_of_a_running_broker_is_suspected_after_a_clean_stop(
    paths: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run(paths, FIRST)
    (paths[1] / "words-0").mkdir()
    shutil.copytree(paths[1], tmp_path / "copy")
    for path in paths:
        (path / ".kafka_cleanshutdown").write_text(f'{{"version":0,"brokerEpoch":{STOPPED}}}')
    put_back(tmp_path / "copy", paths[1])
    run(paths, SECOND)
    (text,) = reports(caplog)
    assert text.startswith(f"data directory {paths[1]} was not closed by the clean stop that closed {paths[0]}: ")
    run(paths, THIRD)
    assert reports(caplog) == []


def test_a_damaged_file_is_a_finding_and_replaced(paths: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    run(paths, FIRST)
    (paths[1] / RUNS).write_text("rubbish")
    run(paths, SECOND)
    run(paths, THIRD)
    assert reports(caplog) == []
    assert "rubbish" not in (paths[1] / RUNS).read_text()
