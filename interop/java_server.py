"""Servers in Java whose programs Maven fetches: what they need, and waiting until one answers."""

import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

from interop.kafka_node import MissingToolError

START_S = 120.0
INTERVAL_S = 0.1


class JavaServer:
    """A server in a process of its own. A context manager."""

    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server in `_process`, and wait until it can be used."""
        raise NotImplementedError

    def kill(self) -> None:
        """Kill the server."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def require_java() -> None:
    """Raise MissingToolError unless a Java runtime and Maven are installed."""
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if missing:
        raise MissingToolError(f"not installed: {', '.join(missing)} (Debian: default-jre-headless and maven)")


def wait_until_it_answers(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait until a server answers at a URL. Raises RuntimeError with the end of its log if it does not."""
    _wait(process, lambda: urllib.request.urlopen(url), f"no answer from {url}", log)


def wait_until_it_accepts(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until a server accepts a connection. Raises RuntimeError with the end of its log if it does not."""
    _wait(process, lambda: socket.create_connection(("127.0.0.1", port)), f"port {port} is closed", log)


def _wait(
    process: subprocess.Popen[bytes], reach: Callable[[], AbstractContextManager[Any]], failure: str, log: Path
) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            with reach():
                return
        except OSError as error:  # URLError is one
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{failure}: {log.read_text()[-2000:]}") from error
        time.sleep(INTERVAL_S)
