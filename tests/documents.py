"""Check Markdown documents: run the commands that they show, and look up their links."""

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
    """Return the blocks that open with ```sh and a name, by name; they may be indented in a list."""
    text = (ROOT / document).read_text()
    found = re.findall(r"^ *```sh ([\w-]+)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    return {name: textwrap.dedent(block) for name, block in found}


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub makes of a Markdown document's headings."""
    headings = re.findall(r"^#+ +(.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def missing_links(document: Path) -> list[str]:
    """Return the relative links of a Markdown document whose file or heading does not exist."""
    text = document.read_text()
    missing = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        file = document.parent / path if path else document
        if target.startswith(("http:", "https:")):
            continue
        if not file.exists() or (anchor and anchor not in anchors(file.read_text())):
            missing.append(target)
    return missing


def long_lines(document: Path, limit: int = 120) -> list[str]:
    """Return the lines of prose that are longer than `limit`; tables, code and images cannot be wrapped."""
    text = re.sub(r"^ *```.*?^ *```$", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [line for line in text.splitlines() if len(line) > limit and not line.startswith(("|", "!["))]


def add_command(bin_directory: Path, name: str, *command: str) -> None:
    """Create a script that runs a command with its first arguments."""
    script = bin_directory / name
    script.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    script.chmod(0o755)


def command_directory(parent: Path) -> Path:
    """Create a directory for PATH in which `warmlog` is the code under test."""
    made = parent / "bin"
    made.mkdir()
    add_command(made, "warmlog", sys.executable, "-m", "warmlog")
    return made


def run_block(block: str, bin_directory: Path, cwd: Path, variables: Mapping[str, object]) -> str:
    """Run a block and return its output; fail if one of its commands fails."""
    environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    environment |= {"PATH": f"{bin_directory}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    command = ["sh", "-eu", "-c", block]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=cwd, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    return done.stdout
