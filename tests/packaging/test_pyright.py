"""What pyright finds in programs that use the client: the same as mypy.

Installs pyright from the package index, and the program behind it from npm's.
"""

import json
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.packaging.distribution import ROOT, pip
from tests.warmlog.client.test_types import PROGRAM, WRONG

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


def test_pyright_finds_the_mistakes_and_nothing_else(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv")
    pip("--python", str(tmp_path / "venv"), "install", "pyright")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    settings = {"include": [program.name], "extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [str(tmp_path / "venv" / "bin" / "pyright"), "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = {int(line) for line in re.findall(r"program.py:(\d+):\d+ - error", done.stdout)}
    assert found == WRONG, done.stdout + done.stderr
