"""Each supported Python: a wheel without compiled modules, in a project that has packages named like ours.

What the pages about Python show runs there as it is written, with each version that is on this machine. Needs the
package index that pip is configured with.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packaging.distribution import copy_sources, pip, user_environment
from tests.test_python_documents import PYTHON, TESTING

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
RUN_PROGRAMS = """
import sys
from pathlib import Path
import broker, protocol
from warmlog.testing import Broker

assert broker.OWNER == protocol.OWNER == "user"
for path in sorted(Path().glob("program_*.py")):
    with Broker() as running:
        code = path.read_text().replace("127.0.0.1:9091", running.native)
        exec(compile(code, path, "exec"), {"__name__": "__main__"})
print("all run on %d.%d" % sys.version_info[:2])
"""


def interpreters() -> dict[str, Path]:
    """Return the supported Pythons of this machine by version: those of pyenv, else those in PATH."""
    pythons = {version: interpreter(version) for version in VERSIONS}
    return {version: python for version, python in pythons.items() if python is not None}


def interpreter(version: str) -> Path | None:
    """Return one of pyenv, else that in PATH if it runs: a shim of pyenv is there for versions that are not."""
    if installed := sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python")):
        return installed[-1]
    python = shutil.which(f"python{version}")
    return Path(python) if python is not None and runs_as(python, version) else None


def runs_as(python: str, version: str) -> bool:
    command = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() == version


def run(directory: Path, *command: object) -> str:
    done = subprocess.run(
        [*map(str, command)], cwd=directory, env=user_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("version", "python"), interpreters().items(), ids=interpreters())
def test_what_the_pages_show_runs(tmp_path: Path, version: str, python: Path) -> None:
    source = copy_sources(tmp_path / "source")
    pip("wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(source), python=python, CC="false")
    (wheel,) = tmp_path.glob("*.whl")
    run(tmp_path, python, "-m", "venv", "--without-pip", tmp_path / "venv")
    inside = tmp_path / "venv" / "bin" / "python"
    pip("--python", str(inside), "install", str(wheel), "pytest", "confluent-kafka", python=python)

    project = tmp_path / "project"
    for name in ("broker", "protocol"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text('OWNER = "user"\n')
    for name, code in [*PYTHON.items(), *TESTING.items()]:
        kind = "test" if "def test_" in code else "program"
        (project / f"{kind}_{name}.py").write_text(code)
    assert f"all run on {version}" in run(project, inside, "-c", RUN_PROGRAMS)
    assert "4 passed" in run(project, inside, "-m", "pytest", "-q", "-p", "no:cacheprovider")
