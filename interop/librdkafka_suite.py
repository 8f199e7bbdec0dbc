"""Fetch, build and run librdkafka's own test suite. Its sources with their tests are part of an npm package."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from interop.kafka_node import MissingToolError

PROJECT = Path(__file__).parent / "librdkafka"
SOURCES = PROJECT / "node_modules" / "@confluentinc" / "kafka-javascript" / "deps" / "librdkafka"
BUILD = Path(__file__).parent.parent / "build" / "librdkafka"
LIMIT_S = 400
TESTS_AT_ONCE = 5
#: The version of Kafka on which tests base their expectations.
KAFKA_VERSION = "3.9.0"
#: The first version with share groups in the suite.
SHARE_VERSION = "4.2.0"
TOOLS = {"npm": "npm", "make": "make", "gcc": "gcc", "g++": "g++"}
_ROW = re.compile(r"^\|\s+(\d{4})_(\w+)\s+\|\s+(PASSED|FAILED|SKIPPED)\s+\|", re.MULTILINE)
_COLOR = re.compile(r"\x1b\[[0-9;]*m")


def listed(name: str = "suite.txt") -> list[str]:
    """Return the numbers in a list of tests."""
    lines = (PROJECT / name).read_text().splitlines()
    return [number for line in lines if not line.startswith("#") for number in line.split()]


def build() -> Path:
    """Fetch and build the suite unless already done; return its directory. Raises MissingToolError."""
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise MissingToolError(f"not installed: {tool} (Debian: {package})")
    tests = BUILD / "tests"
    if not (tests / "test-runner").exists():
        _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], PROJECT)
        shutil.rmtree(BUILD, ignore_errors=True)
        shutil.copytree(SOURCES, BUILD)
        without = [f"--disable-{what}" for what in ("ssl", "sasl", "gssapi", "curl", "debug-symbols")]
        _run(["./configure", *without], BUILD)
        jobs = f"-j{len(os.sched_getaffinity(0))}"
        _run(["make", jobs, "libs"], BUILD)
        _run(["make", jobs, "build"], tests)
    return tests


def run(
    bootstrap: str, directory: Path, numbers: Sequence[str] = (), version: str = KAFKA_VERSION
) -> Mapping[str, str]:
    """Run tests (those in suite.txt unless others are given); return the outcomes of their parts by name.

    The log stays in the directory.
    """
    tests = build()
    configuration = directory / "test.conf"
    configuration.write_text(f"bootstrap.servers={bootstrap}\n")
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": f"{BUILD / 'src'}:{BUILD / 'src-cpp'}",
        "RDKAFKA_TEST_CONF": str(configuration),
        "TESTS": ",".join(numbers or listed()),
        "TEST_KAFKA_VERSION": version,
    }
    # -L: no tests without a broker; -Q: quick; -E: without the library that slows down sockets
    command = ["./test-runner", f"-p{TESTS_AT_ONCE}", "-L", "-Q", "-E"]
    report, log = directory / "report.txt", directory / "suite.log"
    with report.open("wb") as out, log.open("wb") as err:
        subprocess.run(command, cwd=tests, env=environment, stdout=out, stderr=err, timeout=LIMIT_S, check=False)
    text = _COLOR.sub("", report.read_text(errors="replace"))
    return {f"{number}_{name}": outcome for number, name, outcome in _ROW.findall(text)}


def _run(command: list[str], directory: Path) -> None:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stdout[-1000:]}{done.stderr[-3000:]}")
