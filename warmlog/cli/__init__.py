"""The `warmlog` command: what a person types.

Owns: the way in (`main`). Each command is a module of its own, imported when it is asked for, so that `warmlog serve`
and `warmlog --version` load neither the client nor the tables. Must not know: how anything is stored or sent; that is
behind `broker`, `protocol` and `warmlog.client`.
"""

from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line (the process's own arguments by default) and end the process with its exit status."""
    try:
        from warmlog.cli.root import root  # importing this package alone must not cost click

        root.main(args=arguments, prog_name="warmlog")
    except KeyboardInterrupt:  # so early that no command was there to be interrupted
        raise SystemExit(130) from None
