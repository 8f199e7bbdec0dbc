"""A second build of a checkout compiles what has changed, and what refers to it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.distribution import ROOT

SETTINGS = """
[project]
name = "warmlog"
version = "1"
dynamic = ["readme"]
[tool.setuptools]
packages = ["warmlog", "warmlog.protocol"]
[tool.warmlog.compiled]
cython = []
mypyc = ["warmlog/protocol/first.py", "warmlog/protocol/second.py"]
"""
FIRST = """
class First:
    def __init__(self) -> None:
        self.name = "first"
"""
SECOND = """
from warmlog.protocol.first import First

def name() -> str:
    return First().name
"""
SHOW = "from warmlog.protocol import first, second; print(first.__file__[-3:], second.__file__[-3:], second.name())"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Two modules, of which the second reads an attribute of a class of the first, directly by its offset in memory."""
    for name, text in {
        "setup.py": (ROOT / "setup.py").read_text(),
        "pyproject.toml": SETTINGS,
        "README.md": "",
        "warmlog/__init__.py": "",
        "warmlog/ui/vendor.py": "",
        "warmlog/protocol/__init__.py": "",
        "warmlog/protocol/first.py": FIRST,
        "warmlog/protocol/second.py": SECOND,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run(checkout: Path, *arguments: str) -> str:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=checkout, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler on this machine")
@pytest.mark.interop  # it compiles for some seconds
def test_after_a_change_of_a_class_modules_that_use_it_are_compiled_again(checkout: Path) -> None:
    run(checkout, "setup.py", "-q", "build_ext", "--inplace")
    assert run(checkout, "-c", SHOW) == ".so .so first"
    changed = FIRST.replace("        self", '        self.other = "other"\n        self', 1)
    (checkout / "warmlog/protocol/first.py").write_text(changed)
    run(checkout, "setup.py", "-q", "build_ext", "--inplace")
    assert run(checkout, "-c", SHOW) == ".so .so first"
