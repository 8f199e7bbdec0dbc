"""Command groups that know their commands' names without importing them.

Owns: lazy loading, the one place where failures become exit statuses, and what is printed when a command fails. Must
not know: what any command does.

1. Listing the commands of a group (`--help`) imports none of them.
2. Whatever a user can cause ends in one line on standard error: no usage dump, no traceback.
"""

import difflib
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
    """A group whose commands are named in a table: name -> (module, attribute, one-line help)."""

    def __init__(self, *, table: Mapping[str, tuple[str, str, str]], **settings: Any) -> None:
        super().__init__(**settings)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # the base class names it
        """Every command's name, in the table's order: the order in which a newcomer needs them."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # as above
        """Import the module of that command; None if there is no such command."""
        if cmd_name not in self.table:
            return None
        module, attribute, _ = self.table[cmd_name]
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command), f"{module}.{attribute} is not a command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # as above
        """The list of commands in `--help`, from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, _, help_line) in self.table.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, and name the nearest one where there is none of that name."""
        name = args[0]
        if name not in self.table and not name.startswith("-") and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, self.table, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


class RootGroup(LazyGroup):
    """The outermost group: turns every failure into one line and an exit status (see `warmlog.cli.failure`)."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse; `--help` and `--version` print here."""
        with output_errors():  # before click sees them: it would choose a status of its own
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            with output_errors():
                return super().invoke(ctx)
        except KeyboardInterrupt:  # before click sees it, too
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
            say(str(error))
        except OSError as error:
            status = 1
            say(f"{error.strerror}: {error.filename}" if error.filename else str(error))
        raise SystemExit(status)


def print_failure(failure: click.ClickException) -> None:
    """One line for the failure, and where to read on when it was a matter of usage.

    A group called bare shows its help instead.
    """
    if type(failure).__name__ == "NoArgsIsHelpError":  # click 8.2 and later; earlier ones print it themselves
        failure.show()
        return
    context = getattr(failure, "ctx", None)
    path = context.command_path if context is not None else "warmlog"
    hint = f" (see `{path} --help`)" if isinstance(failure, click.UsageError) else ""
    say(f"{' '.join(failure.format_message().split())}{hint}", path=path)


def print_stop(last_line: str) -> None:
    """After Ctrl-C: end the line on which a terminal has put `^C`, and say what there is to say."""
    if sys.stderr.isatty():
        click.echo(err=True)
    if last_line:
        click.echo(last_line, err=True)


def say(message: str, *, path: str = "warmlog") -> None:
    """One line on standard error."""
    click.echo(f"{path}: {message}", err=True)


def close_output() -> int:
    """Make the interpreter's own last flush of standard output harmless, once its reader is gone.

    Gives the exit status.
    """
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):  # a captured stream without descriptor has nothing to be made harmless
        pass
    return OUTPUT_CLOSED
