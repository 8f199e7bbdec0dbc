"""docs/pipeline: every example runs as written, but for the address of the broker, and prints what is shown below it.

All in one directory, in the order of the pages: commands in a shell, Python in a new process with nothing set, as a
user's would be.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.documents import ROOT, add_command, command_directory, run_block
from tests.pipeline.session import python_path
from warmlog.pipeline.sink.options import WRITE_TABLE
from warmlog.pipeline.sink.rows import COLUMN_TYPES
from warmlog.pipeline.source.options import READ_TABLE
from warmlog.testing import Broker

pytestmark = pytest.mark.interop  # takes minutes

DOCUMENTS = ROOT / "docs" / "pipeline"
PAGES = ("quickstart", "source", "sink", "jobs")
TIMEOUT_S = 600
MARK = "-- end of example --"


class Example(NamedTuple):
    """A block of code, and the block of text below it that shows what it prints."""

    page: str
    language: str
    code: str
    shown: str | None


def page(name: str) -> str:
    return (DOCUMENTS / f"{name}.md").read_text()


def examples(name: str) -> list[Example]:
    pattern = r"```(sh|python)\n(.*?)```(?:\n\n```text\n(.*?)```)?"
    return [Example(name, *found) for found in re.findall(pattern, page(name), re.DOTALL)]


def all_examples(language: str) -> list[Example]:
    return [example for name in PAGES for example in examples(name) if example.language == language]


def run_python(code: str, directory: Path) -> str:
    """Run a program in a process of its own, with nothing set that concerns Spark; return what it printed."""
    theirs = ("PYSPARK_", "SPARK_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=directory,
        env={**environment, "PYTHONPATH": python_path(), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_example_prints_what_is_shown(can_run_spark: None, tmp_path: Path) -> None:
    commands = command_directory(tmp_path)
    add_command(commands, "python", sys.executable)
    with Broker(data_dir=tmp_path / "data") as broker:

        def addressed(code: str) -> str:
            return code.replace("127.0.0.1:9091", broker.native)

        variables = {"WARMLOG_NATIVE": broker.native}
        printed = [run_block(addressed(one.code), commands, tmp_path, variables) for one in all_examples("sh")]
        assert "3,000 records" in printed[1]
        assert "3 partitions, 3,000 rows: nothing wrong" in printed[1]
        assert (tmp_path / "lake" / "audit.svg").exists()
        assert "[(3000,)]\n" in printed
        program = all_examples("python")
        code = "".join(f"{one.code}print({MARK!r})\n" for one in program)
        parts = run_python(addressed(code), tmp_path).split(f"{MARK}\n")
    assert len(parts) == len(program) + 1
    for example, found in zip(program, parts, strict=False):
        assert not example.shown or found.rstrip() == example.shown.rstrip(), f"{example.page}: {example.code}"


def test_no_example_is_on_another_page() -> None:
    others = [path.stem for path in DOCUMENTS.glob("*.md") if path.stem not in PAGES]
    assert [name for name in others if examples(name)] == []


def test_links_between_pages_lead_somewhere() -> None:
    for path in DOCUMENTS.glob("*.md"):
        for target, anchor in re.findall(r"\]\(([\w./-]*)(?:#([\w-]+))?\)", path.read_text()):
            found = (path.parent / target) if target else path
            assert found.exists(), f"{path.name}: {target}"
            titles = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
            assert not anchor or anchor in anchors, f"{path.name}: {target}#{anchor}"


def test_the_tables_of_options_are_the_codes() -> None:
    read = _first_cells(page("source").split("## Options")[1].split("\n## ")[0])
    assert sorted(read) == sorted(["option", *READ_TABLE])
    columns = _first_cells(page("sink").split("## Columns")[1].split("\n## ")[0])
    assert sorted(columns) == sorted(["column", *COLUMN_TYPES])
    written = _first_cells(page("sink").split("## Options")[1].split("\n## ")[0])
    assert sorted(written) == sorted(["option", *WRITE_TABLE])


def _first_cells(section: str) -> list[str]:
    return [name for row in re.findall(r"^\| ([\w, ]+) \|", section, re.MULTILINE) for name in row.split(", ")]
