"""How the scripts that put a cluster under faults end."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SHOWN = 20  # of what is wrong


def conclude(report: Mapping[str, Any], directory: Path, path: Path | None) -> int:
    """Print a report, append it whole to a file, one object per line, and return the exit status: 1 if it is bad."""
    print(json.dumps({**report, "wrong": report["wrong"][:SHOWN]}, indent=1))
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(report) + "\n")
    if report["wrong"]:
        print(f"logs and directories are in {directory}", file=sys.stderr)
    return 1 if report["wrong"] else 0
