"""Commands of `warmlog pipeline` where the optional libraries are not installed."""

import subprocess
import sys
from pathlib import Path

import pytest

from warmlog import Client
from warmlog.testing import Broker

WITHOUT_LIBRARIES = """
import sys

for name in ("matplotlib", "numpy", "pandas", "pyarrow", "pyspark"):
    sys.modules[name] = None

from warmlog.cli import main

main()
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with one record."""
    directory = tmp_path_factory.mktemp("data")
    with Broker(data_dir=directory) as broker, Client(broker.native) as client:
        client.produce("t", value=b"x")
    return directory


def run_without_libraries(*arguments: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", WITHOUT_LIBRARIES, "pipeline", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("command", "libraries"),
    [
        (("audit",), "pyarrow and numpy"),
        (("compact-report",), "pyarrow"),
        (("replay", "--to-topic", "t"), "pyarrow"),
        (("count", "--engine", "spark"), "pyspark and pyarrow"),
    ],
)
def test_a_missing_library_is_named_in_one_line(data: Path, command: tuple[str, ...], libraries: str) -> None:
    done = run_without_libraries(*command, "--path", data, "--topic", "t")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"warmlog: the pipeline needs {libraries}: install warmlog with its extra `spark`\n"


def test_records_are_counted_without_any_library(data: Path) -> None:
    done = run_without_libraries("count", "--json", "--path", data, "--topic", "t")
    assert (done.returncode, done.stderr) == (0, "")
    assert '"records":1' in done.stdout.replace(" ", "")
