"""Command groups that import a command only when it runs, and convert failures to exit statuses.

1. Listing the commands of a group (`--help`) imports none of them.
2. Every failure that a user can cause is one line on standard error, without a usage dump or a traceback.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from warmlog.cli.failure import INTERRUPTED, OUTPUT_CLOSED, CannotStart, OutputClosedError, Stopped
from warmlog.cli.output import output_errors
from warmlog.inspect.errors import WrongPathError


class LazyGroup(click.Group):
    """A group whose commands come from a table: name -> (module, attribute, one-line help).

    `removed`: names of commands of earlier versions, each with what to use instead.
    """

    def __init__(
        self, *, table: Mapping[str, tuple[str, str, str]], removed: Mapping[str, str] | None = None, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.table = table
        self._removed = removed or {}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # the base class names it
        """List the names of the commands in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # as above
        """Import the module of a command and return the command; None if there is no such command."""
        if cmd_name not in self.table:
            return None
        module, attribute, _ = self.table[cmd_name]
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command), f"{module}.{attribute} is not a command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # as above
        """Write the list of commands for `--help` from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, _, help_line) in self.table.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; for an unknown name, suggest the closest one."""
        name = args[0]
        if name not in self.table and not name.startswith("-") and not ctx.resilient_parsing:
            if name in self._removed:
                raise click.UsageError(f"{name!r} was removed. {self._removed[name]}", ctx)
            import difflib  # needed only for an unknown name

            near = difflib.get_close_matches(name, self.table, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


class DefaultGroup(LazyGroup):
    """A group that passes arguments without the name of a command to its default command."""

    def __init__(self, *, default: str, **settings: Any) -> None:
        super().__init__(**settings)
        self._default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. `--help` as the only argument shows the group's help."""
        if args and args[0] not in self.table and args[0] not in ctx.help_option_names:
            args = [self._default, *args]
        return super().parse_args(ctx, args)


class RootGroup(LazyGroup):
    """The outermost group: converts every failure to one line and an exit status (see `warmlog.cli.failure`)."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments; `--help` and `--version` print here."""
        with output_errors():  # click would handle them with another exit status
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            with output_errors():
                return super().invoke(ctx)
        except KeyboardInterrupt:  # click would handle it differently
            raise Stopped from None

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: ARG002  # always so here: CliRunner passes it
        windows_expand_args: bool = False,  # noqa: ARG002  # part of the base class's signature
        **extra: Any,
    ) -> NoReturn:
        """Run the command and exit; never returns."""
        try:
            result = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            with output_errors():
                sys.stdout.flush()
            status = result if isinstance(result, int) else 0
        except click.exceptions.Exit as exit_:
            status = exit_.exit_code
        except (click.Abort, KeyboardInterrupt, Stopped) as stop:
            status = INTERRUPTED
            print_stop(str(stop))
        except click.ClickException as failure:
            status = failure.exit_code
            print_failure(failure)
        except OutputClosedError:
            status = close_output()
        except WrongPathError as error:
            status = CannotStart.exit_code
            print_error(str(error))
        except OSError as error:
            status = 1
            print_error(f"{error.strerror}: {error.filename}" if error.filename else str(error))
        raise SystemExit(status)


def print_failure(failure: click.ClickException) -> None:
    """Print the failure as one line, with a reference to `--help` for a usage error.

    A group without a command shows its help instead.
    """
    if type(failure).__name__ == "NoArgsIsHelpError":  # click 8.2 and later; earlier versions print the help themselves
        failure.show()
        return
    context = getattr(failure, "ctx", None)
    path = context.command_path if context is not None else "warmlog"
    hint = f" (see `{path} --help`)" if isinstance(failure, click.UsageError) else ""
    print_error(f"{' '.join(failure.format_message().split())}{hint}", path=path)


def print_stop(last_line: str) -> None:
    """Print the last line of an interrupted command, below the `^C` of a terminal."""
    if sys.stderr.isatty():
        click.echo(err=True)
    if last_line:
        click.echo(last_line, err=True)


def print_error(message: str, *, path: str = "warmlog") -> None:
    """Print one line to standard error."""
    click.echo(f"{path}: {message}", err=True)


def close_output() -> int:
    """Redirect a closed standard output to /dev/null, so that the interpreter's last flush cannot fail.

    Returns the exit status.
    """
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):  # a captured stream without a descriptor
        pass
    return OUTPUT_CLOSED
