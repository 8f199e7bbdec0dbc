"""The distribution as a user gets it: built from a clean copy of the sources, with a compiler and without."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "protocol", "broker", "warmlog")
NOT_SOURCES = shutil.ignore_patterns("__pycache__", "*.so", "_*.c")
TELL_TWIN = "from protocol.records import codec; print(codec.__file__); print(codec.compiled)"
TELL_MODULE = "from broker.log import append; print(append.__file__)"
pytestmark = pytest.mark.timeout(600)  # a build takes a minute of a quiet machine's
SERVE = """
from warmlog import Client
from warmlog.testing import Broker
with Broker() as broker, Client(broker.native) as client:
    client.produce("orders", value=b"one")
    print([record.value for record in client.consume("orders", start="beginning", until_end=True)])
"""


def build_wheel(target: Path, environment: dict[str, str]) -> Path:
    """Build from a clean copy with the given environment on top of ours; needs no registry."""
    source = target / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=NOT_SOURCES)
        else:
            shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    command += ["--wheel-dir", str(target), str(source)]
    subprocess.run(command, env={**os.environ, **environment}, check=True)
    return next(target.glob("*.whl"))


@pytest.fixture(scope="module")
def pure_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel from a machine whose compiler fails."""
    return build_wheel(tmp_path_factory.mktemp("pure"), {"CC": "false"})


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def run_installed(wheel: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run a program that finds warmlog in the unpacked wheel, ahead of the checkout."""
    target = wheel.parent / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    environment = {name: value for name, value in os.environ.items() if name != "WARMLOG_PURE"}
    environment["PYTHONPATH"] = str(target)
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=wheel.parent, capture_output=True, text=True, check=True
    )


def test_without_a_compiler_the_pure_codec_serves_and_one_log_line_says_so(pure_wheel: Path) -> None:
    assert not {name for name in names_in(pure_wheel) if name.endswith(".so")}
    said = run_installed(pure_wheel, TELL_TWIN)
    path, compiled = said.stdout.splitlines()
    assert Path(path).is_relative_to(pure_wheel.parent)
    assert compiled == "False"
    assert len(said.stderr.splitlines()) == 1


def test_without_a_compiler_a_broker_serves_all_the_same(pure_wheel: Path) -> None:
    assert run_installed(pure_wheel, TELL_MODULE).stdout.strip().endswith(".py")
    assert run_installed(pure_wheel, SERVE).stdout.strip() == "[b'one']"


@pytest.mark.skipif(
    shutil.which("cc") is None and os.environ.get("CI") != "true", reason="no C compiler on this machine"
)
def test_with_a_compiler_the_wheel_holds_what_is_compiled(tmp_path: Path) -> None:
    wheel = build_wheel(tmp_path, {})
    module = run_installed(wheel, TELL_MODULE).stdout.strip()
    assert Path(module).is_relative_to(wheel.parent)
    assert module.endswith(".so")
    assert run_installed(wheel, SERVE).stdout.strip() == "[b'one']"
    said = run_installed(wheel, TELL_TWIN)
    path, compiled = said.stdout.splitlines()
    assert Path(path).is_relative_to(wheel.parent)
    assert compiled == "True"
    assert said.stderr == ""


def test_the_wheel_holds_types_license_and_nothing_of_tests(pure_wheel: Path) -> None:
    names = names_in(pure_wheel)
    assert {f"{package}/py.typed" for package in ("protocol", "broker", "warmlog")} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0] for name in names} - {"protocol", "broker", "warmlog"} == {
        name.split("/")[0] for name in names if ".dist-info/" in name
    }
