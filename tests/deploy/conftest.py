"""The outside tools that judge the files of deploy/: a missing one skips a test, and fails it in CI."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.deploy.containers import IMAGE
from tests.deploy.files import ROOT
from tests.deploy.podman import RUN, Podman, PodmanError, base_image, make_base, podman_at
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


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    """An engine that holds the base image and has been seen to run it."""
    directory = Path(tempfile.mkdtemp(prefix="podman-"))  # podman takes no longer path than 50 characters
    name, suite = base_image((ROOT / "Dockerfile").read_text())
    with podman_at(directory, f"warmlog-{os.getpid()}") as engine:
        make_base(engine, directory, name, suite)
        try:
            engine("run", *RUN, "--rm", name, "true")
        except (PodmanError, subprocess.TimeoutExpired) as error:
            lacks(f"podman cannot run a container on this machine (mounts, namespaces, cgroups?): {error}")
        yield engine
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def image(podman: Podman) -> str:
    """The name of the image that users build, built as they build it."""
    podman.build(IMAGE, "--pull=never", ".")
    return IMAGE
