"""Fixtures: run the command in this process with real standard streams, or as a process, against a real broker."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from warmlog.cli import main
from warmlog.testing import Broker


class Done(NamedTuple):
    """The result of a command."""

    status: int
    out: bytes
    err: str

    def json(self) -> list[Any]:
        """Parse the output: one JSON value per line."""
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Done]


@pytest.fixture(autouse=True)
def _no_log_on_a_captured_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep commands from logging to a stream that is closed after the test, while brokers in threads go on."""
    monkeypatch.setattr("warmlog.cli.serve.log_to_stderr", lambda level, *, as_json: None)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One broker for a module; tests use topics of their own."""
    with Broker() as running:
        yield running


@pytest.fixture
def run(
    broker: Broker, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Run:
    """Run `warmlog ARGUMENTS` in this process, with bytes on standard input, against the module's broker."""
    monkeypatch.setenv("WARMLOG_NATIVE", broker.native)

    def run(*arguments: object, stdin: bytes = b"") -> Done:
        (tmp_path / "stdin").write_bytes(stdin)
        with (
            (tmp_path / "stdin").open() as file,
            (tmp_path / "stderr").open("w") as errors,
            monkeypatch.context() as patch,
            pytest.raises(SystemExit) as exit_,
        ):
            patch.setattr(sys, "stdin", file)
            # Descriptor 2 also has what clients of earlier tests write there from their threads: their brokers ended.
            patch.setattr(sys, "stderr", errors)
            main([str(argument) for argument in arguments])
        return Done(int(exit_.value.code or 0), capfdbinary.readouterr().out, (tmp_path / "stderr").read_text())

    return run


@pytest.fixture
def start(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start `warmlog ARGUMENTS` as a process with pipes; killed at the end if it still runs."""
    monkeypatch.setenv("WARMLOG_NATIVE", broker.native)
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "warmlog", *map(str, arguments)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()
