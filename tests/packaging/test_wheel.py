"""The distribution as a user gets it: built from a clean copy of the sources, with a compiler and without."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "protocol", "broker", "warmlog")
NOT_SOURCES = shutil.ignore_patterns("__pycache__", "*.so", "_codec.c")
TELL_TWIN = "from protocol.records import codec; print(codec.__file__); print(codec.compiled)"

BuildWheel = Callable[[dict[str, str]], Path]


@pytest.fixture
def build_wheel(tmp_path: Path) -> BuildWheel:
    """Builds with the given environment on top of ours; needs no registry."""

    def build(environment: dict[str, str]) -> Path:
        source = tmp_path / "source"
        for name in SOURCES:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / name, ignore=NOT_SOURCES)
            else:
                source.mkdir(exist_ok=True)
                shutil.copy(ROOT / name, source)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
        command += ["--wheel-dir", str(tmp_path), str(source)]
        subprocess.run(command, env={**os.environ, **environment}, check=True)
        return next(tmp_path.glob("*.whl"))

    return build


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def run_installed(wheel: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run a program that finds warmlog in the unpacked wheel, ahead of the checkout."""
    target = wheel.parent / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=wheel.parent, capture_output=True, text=True, check=True
    )


def test_without_a_compiler_the_pure_codec_serves_and_one_log_line_says_so(build_wheel: BuildWheel) -> None:
    wheel = build_wheel({"CC": "false"})
    assert not {name for name in names_in(wheel) if name.endswith(".so")}
    said = run_installed(wheel, TELL_TWIN)
    path, compiled = said.stdout.splitlines()
    assert Path(path).is_relative_to(wheel.parent)
    assert compiled == "False"
    assert len(said.stderr.splitlines()) == 1


@pytest.mark.skipif(
    shutil.which("cc") is None and os.environ.get("CI") != "true", reason="no C compiler on this machine"
)
def test_with_a_compiler_the_wheel_holds_the_compiled_codec(build_wheel: BuildWheel) -> None:
    wheel = build_wheel({})
    said = run_installed(wheel, TELL_TWIN)
    path, compiled = said.stdout.splitlines()
    assert Path(path).is_relative_to(wheel.parent)
    assert compiled == "True"
    assert said.stderr == ""


def test_the_wheel_holds_types_license_and_nothing_of_tests(build_wheel: BuildWheel) -> None:
    names = names_in(build_wheel({"CC": "false"}))
    assert {f"{package}/py.typed" for package in ("protocol", "broker", "warmlog")} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0] for name in names} - {"protocol", "broker", "warmlog"} == {
        name.split("/")[0] for name in names if ".dist-info/" in name
    }
