"""Run what README.md shows, with the addresses of a test broker, and check what it claims."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.requires import lacks
from warmlog import Client
from warmlog.broker.settings.settings import FIELDS
from warmlog.testing import Broker

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def run(command: list[str], broker: Broker, cwd: Path) -> str:
    environment = {**os.environ, "WARMLOG_NATIVE": broker.native, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_python_example_runs(warmlog_broker: Broker, tmp_path: Path) -> None:
    (example,) = [block for block in blocks("python") if "anyio.run" in block]
    program = tmp_path / "example.py"
    program.write_text(example.replace("127.0.0.1:9091", warmlog_broker.native))
    assert run([sys.executable, str(program)], warmlog_broker, tmp_path) == "stored at offset 0\n0 b'k' b'v'\n"


def test_the_test_example_runs(warmlog_broker: Broker, tmp_path: Path) -> None:
    (example,) = [block for block in blocks("python") if "def test_" in block]
    (tmp_path / "test_example.py").write_text(example)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", str(tmp_path)]
    assert "1 passed" in run(command, warmlog_broker, tmp_path)


def test_the_shell_example_runs(warmlog_broker: Broker) -> None:
    (example,) = [block for block in blocks("sh") if "warmlog produce" in block]
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines(keepends=True)
    outputs = []
    for line in example.splitlines():
        command = line.split("  #")[0].strip()
        if command.startswith("curl"):
            url = command.split()[1].replace("127.0.0.1:9099", warmlog_broker.http)
            with urlopen(f"http://{url}") as answer:
                outputs.append(answer.read().decode())
        else:
            words = shlex.split(command.replace(".venv/bin/warmlog", f"{sys.executable} -m warmlog"))
            if "<" in words:
                words = ["sh", "-c", shlex.join(words[: words.index("<")]) + f" < {words[-1]}"]
            outputs.append(run(words, warmlog_broker, ROOT))
    _, everything, some, since, described, metrics = outputs
    assert everything == since == "".join(lines)
    assert some == "".join(lines[5:8])
    assert f"{len(lines)} records" in described
    assert "warmlog_request_seconds_bucket" in metrics


def test_the_kcat_example_runs(warmlog_broker: Broker) -> None:
    if shutil.which("kcat") is None:
        lacks("kcat is missing (Debian: apt-get install kcat)")
    (example,) = [block for block in blocks("sh") if "kcat" in block]
    commands = example.replace("127.0.0.1:9092", warmlog_broker.kafka).splitlines()
    produced, consumed, listed = (run(["sh", "-c", command], warmlog_broker, ROOT) for command in commands)
    assert produced == ""
    assert consumed == "0 k1=hello\n1 k2=world\n"
    assert 'topic "greetings" with 1 partitions' in listed


def test_it_is_short() -> None:
    assert len(README.splitlines()) < 120


@pytest.mark.parametrize(
    ("claim", "row", "bound"),
    [("within half a second", "first reply, s", "≤ 0.5"), ("less than 60 MB when idle", "resident, idle, MB", "≤ 60")],
)
def test_its_figures_were_measured(claim: str, row: str, bound: str) -> None:
    assert claim in README
    performance = (ROOT / "docs" / "performance.md").read_text()
    assert re.search(rf"\| {re.escape(row)} +\| warmlog +\|.*\| {re.escape(bound)}: yes", performance)


def test_both_commands_are_targets() -> None:
    targets = re.findall(r"^make (\w+)", "".join(blocks("sh")), re.MULTILINE)
    assert targets == ["run", "test"]
    assert [name for name in targets if f"\n{name}:" not in (ROOT / "Makefile").read_text()] == []


def test_what_it_says_does_not_work_is_not_served() -> None:
    assert re.search(r"^\| Tiered storage \| no\b", README, re.MULTILINE)
    assert not [name for name in FIELDS if "remote.log" in name]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_the_codecs_that_it_names_are_stored(warmlog_broker: Broker, codec: str) -> None:
    assert codec in README
    with Client(warmlog_broker.native) as client:
        client.create_topic(f"in-{codec}", configs={"compression.type": codec})
        client.produce(f"in-{codec}", value=b"v" * 1000)
        assert [record.value for record in client.consume(f"in-{codec}", until_end=True)] == [b"v" * 1000]


def test_the_examples_of_groups_run(tmp_path: Path) -> None:
    (commands,) = [block for block in blocks("sh") if "--group" in block]
    (example,) = [block for block in blocks("python") if "group=" in block]
    with Broker(settings={"group.initial.rebalance.delay.ms": 0}) as broker:
        with Client(broker.native) as client:
            client.produce("words", value=b"a word")
            client.produce("orders", value=b"one")
        consume, describe, reset = (
            run([sys.executable, "-m", *shlex.split(line.split("  #")[0].replace(".venv/bin/", ""))], broker, ROOT)
            for line in commands.splitlines()
        )
        assert consume == "a word\n"
        assert describe.startswith("readers: Empty, consumer, 0 members, 1 partition, lag 0")
        assert reset.split()[-4:] == ["words", "0", "1", "0"]
        program = tmp_path / "example.py"
        program.write_text(example.replace("127.0.0.1:9091", broker.native))
        assert run([sys.executable, str(program)], broker, tmp_path) == "0 b'one'\n"
