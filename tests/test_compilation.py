"""Which of a checkout's compiled modules are used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from warmlog import compilation
from warmlog.compilation import SUFFIX, stale_modules

MODULES = ("broker/log/segments/tail", "broker/log/appends/appender", "protocol/records/codec")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Two modules of mypyc, one of Cython and one that is not compiled, each library newer than its source."""
    for module in (*MODULES, "broker/app"):
        (tmp_path / module).parent.mkdir(parents=True, exist_ok=True)
        change(tmp_path / f"{module}.py", at=1)
    for library in (*MODULES, *(f"{module}__mypyc" for module in MODULES[:2])):
        change(tmp_path / f"{library}{SUFFIX}", at=2)
    return tmp_path


def change(path: Path, *, at: int) -> None:
    path.touch()
    os.utime(path, (at, at))


def test_libraries_newer_than_their_sources_are_used(checkout: Path) -> None:
    assert stale_modules(str(checkout)) == set()
    change(checkout / "broker/app.py", at=3)
    assert stale_modules(str(checkout)) == set()


def test_after_an_edit_of_one_module_of_mypyc_all_of_them_run_as_python(checkout: Path) -> None:
    change(checkout / "broker/log/segments/tail.py", at=3)
    assert stale_modules(str(checkout)) == {"warmlog.broker.log.segments.tail", "warmlog.broker.log.appends.appender"}


def test_after_an_edit_of_a_module_of_cython_it_runs_as_python(checkout: Path) -> None:
    change(checkout / "protocol/records/codec.py", at=3)
    assert stale_modules(str(checkout)) == {"warmlog.protocol.records.codec"}


def test_what_modules_of_cython_include_counts_as_their_source(checkout: Path) -> None:
    change(checkout / "protocol/records/reading.pxd", at=3)
    assert stale_modules(str(checkout)) == {"warmlog.protocol.records.codec"}


def run(program: str, root: Path, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "WARMLOG_PURE"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=clean | {"PYTHONPATH": str(root)} | environment, cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkout in which one module of mypyc is compiled."""
    root = Path(compilation.ROOT)
    library = root / "warmlog/protocol" / f"frame{SUFFIX}"
    if not library.exists():
        pytest.skip("nothing is compiled here")
    for name in ("warmlog/__init__.py", "warmlog/compilation.py", "setup.py", *all_of(root, "protocol/*.py")):
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((root / name).read_bytes())
    (tmp_path / "broker").mkdir()
    (tmp_path / "warmlog/protocol").symlink_to("../protocol")
    for path in root.glob(f"protocol/frame*{SUFFIX}"):
        (tmp_path / "protocol" / path.name).write_bytes(path.read_bytes())
    return tmp_path


def all_of(root: Path, pattern: str) -> list[str]:
    return [str(path.relative_to(root)) for path in root.glob(pattern)]


FRAME = "from warmlog.protocol import frame; print(frame.__file__.endswith('.so'), getattr(frame, 'EDIT', 0))"


def test_the_next_run_after_an_edit_runs_the_edit(copy: Path) -> None:
    assert run(FRAME, copy) == "True 0"
    with (copy / "protocol/frame.py").open("a") as source:
        source.write("EDIT = 1\n")
    assert run(FRAME, copy) == "False 1"


def test_no_library_is_used_on_request(copy: Path) -> None:
    assert run(FRAME, copy, WARMLOG_PURE="0") == "True 0"
    assert run(FRAME, copy, WARMLOG_PURE="1") == "False 0"


def test_a_module_without_a_source_in_python_is_missing_on_request(copy: Path) -> None:
    (copy / "protocol/frame.py").unlink()
    asked = "\ntry: import warmlog.protocol.frame\nexcept ModuleNotFoundError as error: print(error.name)"
    assert run(asked, copy, WARMLOG_PURE="1") == "warmlog.protocol.frame"
