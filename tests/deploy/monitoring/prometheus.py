"""Run a real Prometheus with the files of deploy/.

Only the intervals are changed, so that a test need not wait a quarter of a minute for each scrape, and the targets,
which have a file of their own.
"""

import json
import re
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from typing import Any

from tests.deploy.files import DEPLOY

LIMIT_S = 60
INTERVAL = "1s"
WINDOW = "60s"  # the value of Grafana's $__rate_interval: four scrapes of 15 s, and as long as `until` waits


class Prometheus:
    """The HTTP API of a Prometheus server."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer. Raises OSError, AssertionError."""
        url = f"http://{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=LIMIT_S) as reply:
            answer = json.load(reply)
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[float]:
        """Return the current values of an expression."""
        return [float(each["value"][1]) for each in self.get("query", query=expression)["result"]]

    def rules(self) -> list[dict[str, Any]]:
        """Return every rule with its state."""
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]


def free_address() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


def faster(text: str) -> str:
    """Return prometheus.yml with the intervals of a test."""
    changed, count = re.subn(r"^( +(?:scrape|evaluation)_interval:) \w+", rf"\1 {INTERVAL}", text, flags=re.MULTILINE)
    assert count == 2
    return changed


@contextmanager
def prometheus(
    path: str, directory: Path, targets: Sequence[str], *, pending_s: int | None = None
) -> Iterator[Prometheus]:
    """Run Prometheus with the files of deploy/ within the block.

    `pending_s` replaces the time after which an alert that is true fires.
    """
    directory.mkdir()
    shutil.copy(DEPLOY / "alertmanagers.yml", directory)
    rules = (DEPLOY / "alerts.yml").read_text()
    if pending_s is not None:
        rules = re.sub(r"^( +for:) \w+", rf"\1 {pending_s}s", rules, flags=re.MULTILINE)
    (directory / "alerts.yml").write_text(rules)
    (directory / "prometheus.yml").write_text(faster((DEPLOY / "prometheus.yml").read_text()))
    (directory / "targets.yml").write_text(json.dumps([{"targets": list(targets)}]))
    address = free_address()
    command = [path, f"--config.file={directory / 'prometheus.yml'}", f"--storage.tsdb.path={directory / 'data'}",
               f"--web.listen-address={address}", "--log.level=warn"]  # fmt: skip
    with (directory / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield Prometheus(address)
        finally:
            process.terminate()


def until(condition: Callable[[], bool], meanwhile: Callable[[], object], report: Callable[[], object]) -> None:
    """Call `meanwhile` until a condition holds; fail with a report if it does not within the time limit."""
    deadline = monotonic() + LIMIT_S
    while not condition():
        assert monotonic() < deadline, report()
        meanwhile()


def value_of(server: Prometheus, expression: str) -> list[float]:
    """Evaluate an expression with Grafana's variables filled in; no values while Prometheus does not answer yet."""
    filled = expression.replace("$__rate_interval", WINDOW).replace("$instance", ".*")
    assert "$" not in filled
    try:
        return server.query(filled)
    except urllib.error.HTTPError as error:
        if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
            return []
        raise
    except urllib.error.URLError as error:
        if isinstance(error.reason, ConnectionError):
            return []
        raise
