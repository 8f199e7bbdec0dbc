"""Follow docs/tutorial.md: run its commands in order, with a broker on free ports, and check what it says they show.

The installation is tested in tests/packaging/test_installation.py, because it needs a package index.
"""

import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.broker.log.io.eviction import needs_cachestat, needs_eviction
from tests.documents import ROOT, command_directory, run_block, shell_blocks

DOCUMENT = "docs/tutorial.md"
BLOCKS = shell_blocks(DOCUMENT)
COLD = ('pages_total{where="log"}', "read_bytes_total", "read_seconds_count")
LISTEN = "--kafka 127.0.0.1:0 --native 127.0.0.1:0 --http 127.0.0.1:0"


def cold_values(metrics: str) -> dict[str, float]:
    """Map each sample, with its labels, to its value."""
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in metrics.splitlines())}


def resident_percent(shown: str) -> float:
    """Return the share of a log that is resident, from the first line of `warmlog log residency`."""
    found = re.search(r"^numbers-0: .*, ([\d.]+) % resident$", shown, re.MULTILINE)
    assert found is not None, shown
    return float(found[1])


def test_every_block_is_run_by_a_test() -> None:
    sources = Path(__file__).read_text() + (ROOT / "tests" / "packaging" / "test_installation.py").read_text()
    assert list(BLOCKS) == re.findall(r"```sh(?: ([\w-]+))?", (ROOT / DOCUMENT).read_text())
    assert [name for name in BLOCKS if f'"{name}"' not in sources] == []


@pytest.mark.timeout(400)
def test_a_newcomer_sees_what_the_page_says(tmp_path: Path) -> None:
    bin_directory = command_directory(tmp_path)
    command = [*shlex.split(BLOCKS["serve"]), *shlex.split(LISTEN)]
    command[0] = str(bin_directory / command[0])
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=quiet, text=True) as broker:
        try:
            follow(broker, bin_directory, tmp_path)
        finally:
            broker.send_signal(signal.SIGINT)
    assert broker.returncode == 0


def follow(broker: "subprocess.Popen[str]", bin_directory: Path, directory: Path) -> None:
    assert broker.stdout is not None
    durability, ready = broker.stdout.readline(), broker.stdout.readline()
    assert durability.startswith("power cut: ")
    addresses = dict(field.split("=") for field in ready.split()[1:])
    assert ready.startswith("ready ")

    def run(name: str) -> str:
        block = BLOCKS[name].replace("127.0.0.1:9099", addresses["http"])
        return run_block(block, bin_directory, directory, {"WARMLOG_NATIVE": addresses["native"]})

    assert run("produce") == "299998\n299999\n300000\n"
    first, *described = run("group").splitlines()
    assert first == "300000"
    assert described[0].startswith("readers: Empty, consumer, 0 members, 1 partition, lag 0")
    files = run("files")
    assert all(name in files for name in (".log", ".index", ".timeindex", "300,000 records", "0.."))
    written = resident_percent(run("resident"))  # the kernel may take a page of a hundred at any time
    assert written > 90
    warm = cold_values(run("warm"))
    needs_cachestat(directory)
    needs_eviction(directory)
    evicted = run("evict")
    assert re.search(r"\.log .* 0 B +0 ", evicted)
    assert "to read from disk" in run("explain")
    value, shown = run("cold").split("\n", 1)
    assert value == "100001"
    cold = cold_values(shown[: shown.index("numbers-0: ")])
    assert all(cold[f"warmlog_cold_{name}"] > warm.get(f"warmlog_cold_{name}", 0) for name in COLD)
    assert 0 < resident_percent(shown) < written
    assert run("index") == "indexed created: 1 partition\n"
    recent = run("warm-section")
    assert re.search(r"^offset index  warm    warm     11 12 13 +11 12 13 +3 ", recent, re.MULTILINE)
    assert re.search(r"^offset index  plain +0 6 10 11 12 13 +0 6 10 11 12 13 +6 ", recent, re.MULTILINE)
    assert "major faults expected: 3 (plain search: 6)" in recent
    assert re.search(r"^offset index  warm    cold ", run("cold-section"), re.MULTILINE)
    assert re.search(r"^warmlog-tour: 60,000 records; 0 of \d+ pages are in memory\.", run("tour"))
