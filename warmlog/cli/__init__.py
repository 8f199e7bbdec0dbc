"""The `warmlog` command: commands and their output.

`root` lists the commands. Each command is a separate module, imported when it runs, so that `warmlog serve` and
`warmlog --version` load neither the client nor tables. Start with `root`, then `command_groups`, `output`, `options`.
"""

from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line with `arguments` (default: the process's) and exit with its status."""
    try:
        from warmlog.cli.root import root  # importing this package must not load click

        root.main(args=arguments, prog_name="warmlog")
    except KeyboardInterrupt:  # interrupted before a command could handle it
        raise SystemExit(130) from None
