"""Dashboards by Grafana's own types: TypeScript takes the JSON as a literal, and finds fields that are unknown, missing
or of another type. What its types leave open (a panel's options, a target) it cannot see.
"""

import os
import shutil
import subprocess
from collections.abc import Callable

import pytest

from tests.deploy.conftest import Tool
from tests.deploy.files import DASHBOARDS, ROOT

pytestmark = pytest.mark.interop

PROJECT = ROOT / "interop" / "grafana"
OPTIONS = ["--noEmit", "--strict", "--skipLibCheck", "--moduleResolution", "bundler", "--module", "esnext"]

Check = Callable[[str], str]


def program(*texts: str) -> str:
    """A program that is right if the dashboards are. An enumeration is no text to TypeScript, so it is named."""
    lines = ["import {ThresholdsMode, type Dashboard} from '@grafana/schema';"]
    for number, text in enumerate(texts):
        literal = text.replace('"mode": "absolute"', '"mode": ThresholdsMode.Absolute')
        lines.append(f"export const dashboard{number}: Dashboard = {literal};")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def check(tool: Tool, tmp_path_factory: pytest.TempPathFactory) -> Check:
    """What TypeScript says of a program; nothing if it is right."""
    node, npm = tool("node"), tool("npm")
    directory = tmp_path_factory.mktemp("grafana")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(PROJECT / name, directory)
    subprocess.run([npm, "ci", "--ignore-scripts", "--silent"], cwd=directory, check=True, timeout=100)

    def said(text: str) -> str:
        (directory / "checked.ts").write_text(text)
        command = [node, os.path.join("node_modules", "typescript", "bin", "tsc"), *OPTIONS, "checked.ts"]
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=100)
        return done.stdout + done.stderr

    return said


def test_they_are_dashboards(check: Check) -> None:
    assert check(program(*(path.read_text() for path in DASHBOARDS))) == ""


@pytest.mark.parametrize(
    ("right", "wrong"), [('"schemaVersion": 39', '"schemaVersion": "39"'), ('"gridPos"', '"gridPosition"')]
)
def test_mistakes_are_found(check: Check, right: str, wrong: str) -> None:
    text = DASHBOARDS[0].read_text()
    assert right in text
    assert "error TS" in check(program(text.replace(right, wrong)))
