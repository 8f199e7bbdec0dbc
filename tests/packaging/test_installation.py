"""What users of the repository and of the sdist do: pip builds in isolation and installs into a new environment.

Needs the package index that pip is configured with: for the build's requirements and the package's dependencies.
"""

import re
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.documents import shell_blocks
from tests.packaging.distribution import (
    INSPECT,
    PACKAGES,
    copy_sources,
    left_out,
    pip,
    quick_compiler,
    user_environment,
)
from tests.requires import lacks

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]  # a build compiles for one to three minutes

LISTEN = ("--kafka", "127.0.0.1:0", "--native", "127.0.0.1:0", "--http", "none")
PRODUCE_AND_CONSUME = """
import sys
from warmlog import Client
with Client(sys.argv[1]) as client:
    client.produce("orders", value=b"one")
    print([record.value for record in client.consume("orders", start="beginning", until_end=True)])
"""


@pytest.fixture(scope="module", autouse=True)
def index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip, or fail in CI, where pip reaches no index."""
    target = str(tmp_path_factory.mktemp("index"))
    try:
        pip("download", "--quiet", "--no-deps", "--no-cache-dir", "--dest", target, "sortedcontainers")
    except AssertionError as error:
        lacks(f"pip reaches no package index: {error}")


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, built in isolation."""
    target = tmp_path_factory.mktemp("sdist")
    source = copy_sources(target / "source")
    command = [sys.executable, "-m", "build", "--sdist", "--outdir", str(target), str(source)]
    done = subprocess.run(command, env=user_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = target.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has pip and nothing else. Read only."""
    path = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(path, with_pip=True, symlinks=True)
    return path


@pytest.fixture
def python(tmp_path: Path, environment: Path) -> Path:
    """The interpreter of a copy of it: only scripts, which are not run, contain its path."""
    shutil.copytree(environment, tmp_path / "venv", symlinks=True)
    return tmp_path / "venv" / "bin" / "python"


def needs_compiler() -> None:
    if shutil.which("cc") is None:
        lacks("no C compiler on this machine (Debian: gcc and libc6-dev)")


def run(python: Path, code: str, *arguments: str) -> str:
    done = subprocess.run(
        [str(python), "-c", code, *arguments],
        env=user_environment(), cwd=python.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def serving(python: Path, data: Path) -> Iterator[str]:
    """The installed command; its native address."""
    command = [str(python.parent / "warmlog"), "serve", "--data-dir", str(data), *LISTEN]
    with subprocess.Popen(command, env=user_environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = next(line for line in process.stdout if line.startswith("ready"))
            found = re.search(r"native=(\S+)", ready)
            assert found, ready
            yield found[1]
        finally:
            process.terminate()
    assert process.returncode == 0


def assert_it_serves(python: Path, data: Path, *, compiled: bool) -> None:
    """Check which modules are compiled, that they come from the environment, and that its broker stores a record."""
    flags, paths = run(python, INSPECT).splitlines()
    assert flags == " ".join([str(compiled)] * 3)
    assert all(Path(path).is_relative_to(python.parents[1]) for path in paths.split())
    with serving(python, data) as address:
        assert run(python, PRODUCE_AND_CONSUME, address).strip() == "[b'one']"


def test_an_installation_of_the_checkout_without_a_compiler_is_pure_and_serves(tmp_path: Path, python: Path) -> None:
    source = copy_sources(tmp_path / "source")
    output = pip("install", "--verbose", str(source), python=python, CC="false")
    assert len(left_out(output)) == 1
    assert_it_serves(python, tmp_path / "data", compiled=False)


def test_a_wheel_of_the_checkouts_sdist_is_compiled_and_serves(tmp_path: Path, python: Path, sdist: Path) -> None:
    """As `make dist` makes it. A wheel of the checkout itself has the same sources: the image has one."""
    needs_compiler()
    options = ["--verbose", "--no-deps", "--wheel-dir", str(tmp_path)]
    output = pip("wheel", *options, str(sdist), python=python, CC=quick_compiler(tmp_path / "cc"))
    assert left_out(output) == []
    (wheel,) = tmp_path.glob("*.whl")
    pip("install", str(wheel), python=python)
    assert_it_serves(python, tmp_path / "data", compiled=True)


def test_an_installation_of_the_sdist_without_a_compiler_is_pure_and_serves(
    tmp_path: Path, python: Path, sdist: Path
) -> None:
    output = pip("install", "--verbose", str(sdist), python=python, CC="false")
    assert len(left_out(output)) == 1
    assert_it_serves(python, tmp_path / "data", compiled=False)


def test_the_sdist_holds_all_sources_and_nothing_of_tests(sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    copy = copy_sources(tmp_path / "source")
    # A source distribution holds no links: `warmlog/broker` is the folder itself there.
    linked = {"broker", "protocol"}
    sources = {
        str(Path("warmlog" if path.relative_to(copy).parts[0] in linked else "", path.relative_to(copy)))
        for path in copy.rglob("*")
        if path.is_file()
    }
    assert sources <= packed
    assert {name.split("/")[0] for name in packed if "/" in name} == {*PACKAGES, "warmlog.egg-info"} - linked


def test_the_installation_of_the_tutorial_gives_the_command(tmp_path: Path) -> None:
    source = copy_sources(tmp_path / "source")
    block = shell_blocks("docs/tutorial.md")["install"]
    command = ["sh", "-eu", "-c", block]
    done = subprocess.run(
        command, env=user_environment(CC="false"), cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("warmlog ")
