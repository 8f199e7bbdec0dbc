"""Run every program of docs/python.md and docs/testing.md as it is written, with the address of a test broker."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import ROOT
from warmlog.testing import Broker


def programs(page: str) -> dict[str, str]:
    """Return the Python programs of a page by name."""
    return dict(re.findall(r"```python (\w+)\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL))


PYTHON = programs("python.md")
TESTING = programs("testing.md")
PRINTED = {
    "blocking": "partition 0, offset 0\n0 b'customer-7' b'two apples'\n",
    "async": "0 b'customer-7' b'two apples'\n",
    "many": "100000 stored\n100002\n",
    "start": "[b'a', b'b', b'c']\n[b'c']\n{0: 3}\n",
    "seek": "b'a' lag 2\nb'c'\n",
    "format": "0 customer-7 Order(fruit='apple', count=2)\n1 None Order(fruit='pear', count=0)\n",
    "pattern": "['orders-eu', 'orders-us']\n",
    "rebalance": "sum: 12\n",
    "group": "done: b'one'\ndone: b'two'\ndone: b'three'\n0 records behind\n",
    "commit": "stored: b'one'\nstored: b'two'\nstored: b'three'\n",
    "errors": "no such topic: ",
    "admin": "[(0, 0, 0), (1, 1, ",
    "broker": "3 partitions\n",
    "jobs": "sent, delivery 1 b'to: ada'\nsent, delivery 1 b'to: charles'\n",
    "workers": "20 pictures\n",
}


def run(*arguments: object) -> str:
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", [name for name, code in {**PYTHON, **TESTING}.items() if "def test_" not in code])
def test_a_program_prints_what_the_page_says(warmlog_broker: Broker, tmp_path: Path, name: str) -> None:
    program = tmp_path / f"{name}.py"
    program.write_text((PYTHON.get(name) or TESTING[name]).replace("127.0.0.1:9091", warmlog_broker.native))
    assert run(program).startswith(PRINTED[name])


def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    tests = {name: code for name, code in TESTING.items() if "def test_" in code}
    assert len(tests) == 4
    for name, code in tests.items():
        (tmp_path / f"test_{name}.py").write_text(code)
    passed = run("-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path)
    assert "4 passed" in passed


@pytest.mark.parametrize("page", ["python.md", "testing.md"])
def test_every_program_has_a_name_of_its_own(page: str) -> None:
    found = re.findall(r"```python(.*)", (ROOT / "docs" / page).read_text())
    assert len(found) == len({name.strip() for name in found} - {""})
