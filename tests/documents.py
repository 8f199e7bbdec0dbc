"""The commands that a document shows, to be run as they stand."""

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIMIT_S = 120


def shell_blocks(document: str) -> dict[str, str]:
    """Name to text of the blocks that open with ```sh and a name, also where they are indented in a list."""
    text = (ROOT / document).read_text()
    found = re.findall(r"^ *```sh ([\w-]+)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    return {name: textwrap.dedent(block) for name, block in found}


def add_command(bin_directory: Path, name: str, *command: str) -> None:
    """Let a name stand for a command and its first arguments."""
    script = bin_directory / name
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    script.chmod(0o755)


def command_directory(parent: Path) -> Path:
    """A directory for the path, in which `warmlog` is this one."""
    made = parent / "bin"
    made.mkdir()
    add_command(made, "warmlog", sys.executable, "-m", "warmlog")
    return made


def run_block(block: str, bin_directory: Path, cwd: Path, variables: Mapping[str, object]) -> str:
    """What a block printed; it fails where one of its commands does."""
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    environment |= {"PATH": f"{bin_directory}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    command = ["sh", "-eu", "-c", block]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=cwd, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    return done.stdout
