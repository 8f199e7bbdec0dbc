"""Pages about tables, whose commands run as written beside a broker."""

import sys
from pathlib import Path

from tests.documents import ROOT, add_command, command_directory, run_block, shell_blocks
from warmlog.testing import Broker


def printed_by(page: str, directory: Path) -> dict[str, str]:
    """Run the named commands of a page in a directory with `lake`; return what each block has printed."""
    commands = command_directory(directory)
    add_command(commands, "python", sys.executable)
    (directory / "lake").mkdir(exist_ok=True)
    with Broker(data_dir=directory / "data") as broker:
        return {
            name: run_block(block, commands, directory, {"WARMLOG_NATIVE": broker.native})
            for name, block in shell_blocks(page).items()
        }


def shown_in(page: str) -> list[str]:
    """Return the outputs that a page shows, in order."""
    return [part.split("```")[0] for part in (ROOT / page).read_text().split("```text\n")[1:]]
