"""docs/lakehouse.md: its commands run as written."""

import re
import sys
from pathlib import Path

from tests.documents import ROOT, add_command, command_directory, run_block, shell_blocks
from warmlog.testing import Broker


def test_the_commands_run_as_written(tmp_path: Path) -> None:
    commands = command_directory(tmp_path)
    add_command(commands, "python", sys.executable)
    blocks = shell_blocks("docs/lakehouse.md")
    (tmp_path / "lake").mkdir()
    with Broker(data_dir=tmp_path / "data") as broker:
        printed = {
            name: run_block(block, commands, tmp_path, {"WARMLOG_NATIVE": broker.native})
            for name, block in blocks.items()
        }
    assert "committed 3,000 records of 3,000 offsets" in printed["delta"]
    assert printed["query"] == "3000\n"
    assert "committed 3,000 records of 3,000 offsets" in printed["iceberg"]
    assert "committed 3,000 records of 3,000 offsets" in printed["partitions"]
    assert sorted(printed["partitions"].splitlines()[-2:]) == ["0 1000", "1 2000"]
    text = (ROOT / "docs/lakehouse.md").read_text()
    shown = text.split("```text\n")[1].split("```")[0]
    assert printed["audit"].startswith(shown)
    assert printed["replay"].startswith(text.split("```text\n")[2].split("```")[0])
    assert "3,000 records sent to readings-again" in printed["replay"]
    assert "is a Delta table now: 3,000 rows" in printed["migrate"]
    merged = re.sub(r"\S+ KiB", "KiB", printed["maintain"])
    assert merged.endswith(re.sub(r"\S+ KiB", "KiB", text.split("```text\n")[3].split("```")[0]))
    assert printed["scan"] == text.split("```text\n")[4].split("```")[0]
    assert len(list((tmp_path / "lake" / "readings").glob("*.parquet"))) == 1
