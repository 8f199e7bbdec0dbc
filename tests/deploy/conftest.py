"""The outside tools that judge the files of deploy/: a missing one skips a test, and fails it in CI."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.requires import lacks

Tool = Callable[[str], str]
PACKAGES = {
    "node": "nodejs",
    "npm": "npm",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "systemd-analyze": "systemd",
}


@pytest.fixture(scope="session")
def tool() -> Tool:
    """The path of a tool by its name."""

    def find(name: str) -> str:
        path = shutil.which(name)
        if path is None:
            lacks(f"{name} is missing (apt: {PACKAGES[name]})")
        return path

    return find


@pytest.fixture(scope="session")
def schemas() -> Path:
    """See its README."""
    return Path(__file__).parent.parent / "fixtures" / "schemas"
