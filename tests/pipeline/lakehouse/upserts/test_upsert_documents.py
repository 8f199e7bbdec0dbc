"""docs/lakehouse-upserts.md: its commands run as written."""

import sys
from pathlib import Path

from tests.documents import ROOT, add_command, command_directory, run_block, shell_blocks
from warmlog.testing import Broker

DOCUMENT = "docs/lakehouse-upserts.md"


def test_the_commands_run_as_written(tmp_path: Path) -> None:
    commands = command_directory(tmp_path)
    add_command(commands, "python", sys.executable)
    (tmp_path / "lake").mkdir()
    with Broker(data_dir=tmp_path / "data") as broker:
        printed = {
            name: run_block(block, commands, tmp_path, {"WARMLOG_NATIVE": broker.native})
            for name, block in shell_blocks(DOCUMENT).items()
        }
    assert "3 rows inserted, 0 rows updated, 0 rows deleted" in printed["upsert"]
    assert "1 row inserted, 1 row updated, 0 rows deleted" in printed["upsert"]
    texts = [part.split("```")[0] for part in (ROOT / DOCUMENT).read_text().split("```text\n")[1:]]
    assert printed["query"] == texts[0]
    assert texts[1] in printed["envelope"]
    assert "1 partition, 1 row: nothing wrong" in printed["envelope"]
    assert printed["audit"].startswith(texts[2])
