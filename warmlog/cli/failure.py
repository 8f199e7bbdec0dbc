"""How a command fails: one line on standard error and an exit status.

Owns: the exceptions a command raises for that, and the exit statuses' meanings. Must not know: which command failed, or
who prints the line.

| status | meaning |
|---|---|
| 0 | done |
| 1 | the operation failed, or a check found something |
| 2 | it could not start: a wrong option, a bad setting, a data directory in use, a taken port |
| 130 | interrupted (128 + SIGINT), as shells expect |
| 141 | the reader of standard output went away (128 + SIGPIPE), as shells expect |
"""

import click

INTERRUPTED = 130
OUTPUT_CLOSED = 141


class Failure(click.ClickException):
    """The operation failed; `str` is one line for people."""

    exit_code = 1


class CannotStart(Failure):
    """Nothing was begun: a setting, an address, a data directory or a port does not serve."""

    exit_code = 2


class OutputClosedError(Exception):
    """Nobody reads standard output any more (`| head`): stop quietly."""


class Stopped(Exception):  # noqa: N818  # not an error: somebody wanted it so
    """Ctrl-C; `str` is a last line for people, possibly none."""
