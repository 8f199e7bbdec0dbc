"""docs/lakehouse-schemas.md: its commands run as written."""

import sys
from pathlib import Path

import pytest

from tests.documents import ROOT, add_command, command_directory, run_block, shell_blocks
from warmlog.testing import Broker

DOCUMENT = "docs/lakehouse-schemas.md"


def test_the_commands_run_as_written(tmp_path: Path) -> None:
    commands = command_directory(tmp_path)
    add_command(commands, "python", sys.executable)
    (tmp_path / "lake").mkdir()
    with Broker(data_dir=tmp_path / "data") as broker:
        printed = {
            name: run_block(block, commands, tmp_path, {"WARMLOG_NATIVE": broker.native})
            for name, block in shell_blocks(DOCUMENT).items()
        }
    assert "committed 2 records of 2 offsets" in printed["file"]
    text = (ROOT / DOCUMENT).read_text()
    assert printed["query"] == text.split("```text\n")[1].split("```")[0]
    assert "2 rows: nothing wrong" in printed["audit"]


def test_the_arguments_of_the_sink_are_those_of_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("order.json").write_text('{"type": "object", "properties": {"id": {"type": "integer"}}}')
    text = (ROOT / DOCUMENT).read_text()
    exec(text.split("```python\n")[1].split("```")[0], {})
