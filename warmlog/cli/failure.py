"""Report a command's failure: one line on standard error and an exit status.

| status | meaning |
|---|---|
| 0 | success |
| 1 | the operation failed, or a check has findings |
| 2 | the command could not start: invalid option or setting, data directory in use, port taken |
| 130 | interrupted (128 + SIGINT) |
| 141 | standard output was closed by its reader (128 + SIGPIPE) |
"""

import click

INTERRUPTED = 130
OUTPUT_CLOSED = 141


class Failure(click.ClickException):
    """The operation failed; `str()` is one line for the user."""

    exit_code = 1


class CannotStart(Failure):
    """The command could not start: a setting, an address, a data directory or a port cannot be used."""

    exit_code = 2


class OutputClosedError(Exception):
    """The reader of standard output has closed it (`| head`): stop without a message."""


class Stopped(Exception):  # noqa: N818  # not an error: requested by the user
    """Ctrl-C was pressed; `str()` is the last line to print, possibly empty."""
