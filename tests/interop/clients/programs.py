"""Clients that are programs: found or missed, run with a deadline, their output returned."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from interop.kafka_node import MissingToolError

LIMIT_S = 90
#: Where Go's own installer puts it, which is on few people's PATH.
GO_DIRECTORY = "/usr/local/go/bin"


def program(name: str, package: str, *, also: str = "") -> str:
    """The path of a program; MissingToolError, with Debian's package, if there is none."""
    found = shutil.which(name) or shutil.which(name, path=also)
    if found is None:
        raise MissingToolError(f"not installed: {name} (Debian: {package})")
    return found


def run(
    command: Sequence[str],
    *,
    text: str | None = None,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """What a program says on standard output; AssertionError with its complaints if it fails."""
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, timeout=LIMIT_S, cwd=directory, check=False,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip
    assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout[-1000:]}{done.stderr[-3000:]}"
    return done.stdout
