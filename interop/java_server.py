"""Servers in Java whose programs Maven fetches: what they need, and waiting until one answers."""

import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from interop.kafka_node import MissingToolError

START_S = 120.0
INTERVAL_S = 0.1


def require_java() -> None:
    """Raise MissingToolError unless a Java runtime and Maven are installed."""
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if missing:
        raise MissingToolError(f"not installed: {', '.join(missing)} (Debian: default-jre-headless and maven)")


def wait_until_it_answers(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait until a server answers at a URL. Raises RuntimeError with the end of its log if it does not."""
    until = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(url):
                return
        except (urllib.error.URLError, ConnectionError) as error:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"no answer from {url}: {log.read_text()[-2000:]}") from error
        time.sleep(INTERVAL_S)
