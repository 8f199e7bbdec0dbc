"""Clients of other languages, each through the whole of interop/go/story.

Create, produce with every codec, consume in a group, ask for offsets and settings, change, delete.
"""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import interop.kafka_node
from interop.kafka_node import MissingToolError
from tests.interop.clients.programs import GO_DIRECTORY, program, run
from tests.requires import lacks
from tests.warmlog.cli.test_secure import served

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

INTEROP = Path(interop.kafka_node.__file__).parent
PARTITIONS = 5

EXPECTED = {
    "starts": [0] * PARTITIONS,
    "ends": [20] * PARTITIONS,
    "at_time": [3] * PARTITIONS,
    "missing": 0,
    "state": "Empty",
    "listed": True,
    "committed": [20] * PARTITIONS,
    "setting": "12345",
    "altered": "23456",
    "controller": 1,
}
#: What one client asks and another does not.
MORE = {
    "franz": {
        "max_timestamp": [19] * PARTITIONS,
        "lag": 0,
        "moved": 3,
        "kept_after_delete": False,
        "low": 5,
        "log_directories": 1,
    },
    "sarama": {"kept_after_delete": False, "low": 5, "log_directories": 1},
    "kafkago": {"kept_after_delete": False},
    "kafkajs": {"moved": 3, "low": 5},
}

#: (bootstrap, name) -> report
Teller = Callable[[str, str], dict[str, Any]]


@pytest.fixture(scope="session")
def go_programs() -> Path:
    """The directory of the built Go programs."""
    try:
        go = program("go", "golang-go", also=GO_DIRECTORY)
    except MissingToolError as error:
        lacks(error)
    project = INTEROP / "go"
    subprocess.run([go, "build", "-o", "target/", "./franz", "./sarama", "./kafkago"], cwd=project, check=True)
    return project / "target"


@pytest.fixture(scope="session")
def kafkajs() -> list[str]:
    """The command line of the kafkajs program."""
    try:
        node, npm = program("node", "nodejs"), program("npm", "npm")
    except MissingToolError as error:
        lacks(error)
    project = INTEROP / "node"
    installed = project / "node_modules" / ".package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < (project / "package-lock.json").stat().st_mtime:
        subprocess.run([npm, "ci", "--ignore-scripts", "--silent"], cwd=project, check=True)
    return [node, str(project / "story.mjs")]


@pytest.mark.parametrize("client", ["franz", "sarama", "kafkago"])
def test_a_client_of_go_tells_the_whole_story(bootstrap: str, go_programs: Path, client: str) -> None:
    report = json.loads(run([str(go_programs / client), bootstrap, f"story-{client}"]))
    assert report == {**EXPECTED, **MORE[client]}


def test_kafkajs_tells_the_whole_story(bootstrap: str, kafkajs: list[str]) -> None:
    report = json.loads(run([*kafkajs, bootstrap, "story-kafkajs"]))
    assert report == {**EXPECTED, **MORE["kafkajs"]}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a broker that was started with --secure, and the login of its administrator."""
    directory = tmp_path_factory.mktemp("secured")
    with served(directory, "--set", "group.initial.rebalance.delay.ms=0", "--set", "log.retention.ms=-1") as (_, found):
        secrets = directory / "data-secrets"
        login = {
            "STORY_CA": str(secrets / "ca.pem"),
            "STORY_USER": "admin",
            "STORY_PASSWORD": (secrets / "admin.password").read_text().strip(),
        }
        yield found["kafka"], login


@pytest.mark.parametrize("client", ["franz", "sarama", "kafkago"])
def test_a_client_of_go_logs_in(secured: tuple[str, dict[str, str]], go_programs: Path, client: str) -> None:
    bootstrap, login = secured
    report = json.loads(run([str(go_programs / client), bootstrap, f"story-{client}"], environment=login))
    assert report == {**EXPECTED, **MORE[client]}


def test_kafkajs_logs_in(secured: tuple[str, dict[str, str]], kafkajs: list[str]) -> None:
    bootstrap, login = secured
    report = json.loads(run([*kafkajs, bootstrap, "story-kafkajs"], environment=login))
    assert report == {**EXPECTED, **MORE["kafkajs"]}
