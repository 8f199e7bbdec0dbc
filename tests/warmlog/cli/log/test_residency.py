"""`warmlog log residency`: maps of resident pages."""

import os
from pathlib import Path

import pytest

from tests.broker.log.io.eviction import evict_files, needs_eviction
from tests.warmlog.cli.conftest import Run
from warmlog.broker.log.io.observed_disk import UnknownResidencyError
from warmlog.broker.log.io.survey import PageSurvey
from warmlog.cli.log.residency import draw_map, percent

PAGE = 4096
LOG = f"{0:020}.log"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with two partitions; pages 0 to 31 of 128 of the first log are resident."""
    needs_eviction(tmp_path)
    for name in ("words-0", "words-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / LOG).write_bytes(os.urandom(128 * PAGE))
        (tmp_path / name / f"{0:020}.index").write_bytes(b"i" * 100)
        (tmp_path / name / f"{0:020}.timeindex").write_bytes(b"")
        (tmp_path / name / f"{0:020}.log.deleted").write_bytes(b"gone")
        evict_files(tmp_path / name)
    with (tmp_path / "words-0" / LOG).open("rb", buffering=0) as log:
        os.posix_fadvise(log.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(log.fileno(), 32 * PAGE, 0)
    return tmp_path


def test_each_file_has_a_map_and_a_share_followed_by_totals(run: Run, data: Path) -> None:
    done = run("log", "residency", data)
    assert (done.status, done.err) == (0, "")
    lines = done.out.decode().splitlines()
    assert lines[0] == "words-0: 512.1 KiB, 25 % resident"
    log, index, times = (line.split() for line in lines[2:5])
    assert log == ["0" * 20, ".log", "512.0", "KiB", "128.0", "KiB", "25", "█" * 16 + "·" * 48]
    assert index == ["0" * 20, ".index", "100", "B", "0", "B", "0", "·"]
    assert times == ["0" * 20, ".timeindex", "0", "B", "0", "B"]
    assert lines[6] == "words-1: 512.1 KiB, 0 % resident"
    assert [line.split()[0] for line in lines[13:17]] == ["log", "index", "timeindex", "all"]
    assert lines[13].split()[1:] == ["2", "1.0", "MiB", "128.0", "KiB", "12"]
    assert "per page" in lines[17]
    assert run("log", "residency", data).out == done.out


def test_a_single_partition(run: Run, data: Path) -> None:
    text = run("log", "residency", data / "words-1").out.decode()
    assert text.startswith("words-1: ")
    assert "words-0" not in text


def test_json_for_scripts(run: Run, data: Path) -> None:
    *files, log, index, times, every = run("log", "residency", data, "--json").json()
    assert [(file["partition"], file["kind"]) for file in files] == [
        (f"words-{number}", kind) for number in (0, 1) for kind in ("log", "index", "timeindex")
    ]
    assert (files[0]["pages"], files[0]["resident_pages"], files[0]["cell_pages"]) == (128, 32, 2)
    assert files[0]["resident_cells"] == [2] * 16 + [0] * 48
    assert (files[0]["size"], files[0]["base_offset"]) == (128 * PAGE, 0)
    assert files[2]["resident_cells"] == []
    assert (log["type"], log["files"], log["resident_pages"]) == ("total", 2, 32)
    assert [total["kind"] for total in (log, index, times, every)] == ["log", "index", "timeindex", "all"]
    assert every["size"] == 2 * (128 * PAGE + 100)


def test_the_hole_at_the_end_of_an_active_index_is_not_counted(run: Run, data: Path) -> None:
    os.truncate(data / "words-0" / f"{0:020}.index", 10 << 20)
    index = run("log", "residency", data / "words-0", "--json").json()[1]
    assert index["pages"] == 1


@pytest.mark.parametrize(
    ("pages", "resident", "block"), [(1, 1, "█"), (1, 0, "·"), (9, 1, "░"), (9, 4, "▒"), (9, 8, "▓"), (9, 9, "█")]
)
def test_the_blocks_of_a_cell(pages: int, resident: int, block: str) -> None:
    assert draw_map(PageSurvey(pages * PAGE, pages, (resident,)), "·░▒▓█") == block


@pytest.mark.parametrize(
    ("resident", "pages", "told"), [(0, 5, "0"), (5, 5, "100"), (1, 3, "33"), (1, 5000, "0.1"), (4999, 5000, "99.9")]
)
def test_a_percentage_is_0_or_100_only_if_exact(resident: int, pages: int, told: str) -> None:
    assert percent(resident, pages) == told


def test_unknown_residency_is_reported(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int, __: int) -> None:
        raise UnknownResidencyError("cachestat: function not implemented; mincore: the file belongs to another user")

    monkeypatch.setattr("warmlog.broker.log.io.survey.choose_query", refuse)
    done = run("log", "residency", data)
    assert done.status == 1
    assert "cachestat: function not implemented" in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("name", ["nowhere", "file", "empty"])
def test_a_path_without_logs_is_reported_in_one_line(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    done = run("log", "residency", tmp_path / name)
    assert (done.status, len(done.err.splitlines())) == (2, 1)
    assert str(tmp_path / name) in done.err
