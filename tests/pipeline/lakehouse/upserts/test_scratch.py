"""Directories for intermediate results, of this process, of others, and of killed ones."""

import subprocess
import sys
from pathlib import Path

import pytest

from warmlog.pipeline.lakehouse.upserts.scratch import scratch_directory

HOLDER = """
import sys
from warmlog.pipeline.lakehouse.upserts.scratch import scratch_directory
with scratch_directory() as directory:
    (directory / "part").write_bytes(b"x")
    print(directory, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def test_a_directory_is_deleted_when_it_is_left(temporary: Path) -> None:
    with scratch_directory() as directory:
        assert directory.parent == temporary
    assert list(temporary.iterdir()) == []


def test_the_directory_of_a_running_process_stays_and_that_of_a_killed_one_goes(temporary: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        of_holder = Path(holder.stdout.readline().strip())
        with scratch_directory() as own:
            assert sorted(temporary.iterdir()) == sorted([of_holder, own])
            assert (of_holder / "part").exists()
        holder.kill()
    assert list(temporary.iterdir()) == [of_holder]
    with scratch_directory() as own:
        assert list(temporary.iterdir()) == [own]
