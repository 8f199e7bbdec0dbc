import os
import subprocess
import sys
from importlib import import_module

import click
import pytest
from click.testing import CliRunner

import warmlog
from warmlog.cli.command_groups import LazyGroup, RootGroup
from warmlog.cli.failure import CannotStart, Failure, OutputClosedError, Stopped
from warmlog.cli.root import COMMANDS, GROUP_COMMANDS, LOG_COMMANDS, TOPIC_COMMANDS, root


def failing(error: BaseException) -> RootGroup:
    """A command line whose only command, `do`, raises the error."""

    def callback() -> None:
        raise error

    group = RootGroup(name="warmlog", table={})
    group.get_command = lambda ctx, cmd_name: click.Command("do", callback=callback)  # type: ignore[method-assign]
    group.table = {"do": ("", "", "")}
    return group


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (Failure("it broke"), 1, "warmlog: it broke\n"),
        (Failure("two\nlines"), 1, "warmlog: two lines\n"),
        (CannotStart("port taken"), 2, "warmlog: port taken\n"),
        (click.UsageError("no such thing"), 2, "warmlog do: no such thing (see `warmlog do --help`)\n"),
        (FileNotFoundError(2, "No such file or directory", "x"), 1, "warmlog: No such file or directory: x\n"),
        (OSError(5, "Input/output error"), 1, "warmlog: [Errno 5] Input/output error\n"),
        (KeyboardInterrupt(), 130, ""),
        (Stopped("at least 3 records"), 130, "at least 3 records\n"),
        (OutputClosedError(), 141, ""),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
        (click.exceptions.Exit(1), 1, ""),
    ],
)
def test_a_failure_is_one_line_and_a_status(error: BaseException, status: int, line: str) -> None:
    result = CliRunner().invoke(failing(error), ["do"])
    assert result.exit_code == status
    assert result.stderr.strip("\n") == line.strip("\n")
    assert result.stdout == ""


def test_an_unknown_command_suggests_the_closest() -> None:
    result = CliRunner().invoke(root, ["topci"])
    assert result.exit_code == 2
    assert result.stderr == "warmlog: No such command 'topci'. Did you mean 'topic'? (see `warmlog --help`)\n"


def test_an_invalid_argument_names_the_command() -> None:
    result = CliRunner().invoke(root, ["completion", "tcsh"])
    assert result.exit_code == 2
    assert result.stderr.startswith("warmlog completion: Invalid value for")
    assert result.stderr.count("\n") == 1


def test_without_a_command_the_help_is_shown() -> None:
    result = CliRunner().invoke(root, [])
    assert result.exit_code == 2
    assert "Usage: warmlog" in result.output


@pytest.mark.parametrize("table", [COMMANDS, TOPIC_COMMANDS, GROUP_COMMANDS, LOG_COMMANDS])
def test_help_lines_of_the_tables_equal_those_of_the_commands(table: dict[str, tuple[str, str, str]]) -> None:
    for name, (module, attribute, help_line) in table.items():
        command = getattr(import_module(module), attribute)
        assert command.name == name
        if not isinstance(command, LazyGroup):
            assert command.get_short_help_str(200) == help_line


def imported_by(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_the_version_and_the_help_load_neither_broker_nor_client_nor_tables() -> None:
    loaded = imported_by(
        "from warmlog.cli.root import root\n"
        "for arguments in (['--help'], ['--version'], ['topic', '--help']):\n"
        "    try: root.main(arguments, prog_name='warmlog')\n"
        "    except SystemExit: pass"
    )
    assert not loaded & {"trio", "anyio", "rich", "broker", "warmlog.client", "msgpack", "msgspec"}


def test_serve_imports_neither_tables_nor_the_client() -> None:
    loaded = imported_by("import warmlog.cli.serve")
    assert not loaded & {"rich", "warmlog.client", "anyio"}


def test_version_is_that_of_the_package() -> None:
    result = CliRunner().invoke(root, ["--version"])
    assert result.exit_code == 0
    assert result.stdout == f"warmlog {warmlog.__version__}\n"


def test_a_closed_pipe_ends_the_command_quietly() -> None:
    """`warmlog completion bash | head -0`, with the pipe closed before anything is written."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "warmlog", "completion", "fish"]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, "")
