"""`warmlog serve`: a broker in the foreground.

Owns: the options of the command, the two lines it prints, and which failures have which exit status. Must not know: how
a broker is put together; that is `broker.app`. Imported on the way to the first reply, so it imports neither tables nor
the client.

1. A setting's error comes before any other: settings are read before addresses are looked at.
2. Standard output carries two lines, flushed: what a power cut can lose as configured, then `ready kafka=H:P native=H:P
   http=H:P`.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from warmlog.cli.diagnostics import LEVELS, write_log_to_stderr
from warmlog.cli.failure import CannotStart, Failure
from warmlog.cli.groups import close_output
from warmlog.cli.service_manager import tell_ready

if TYPE_CHECKING:
    from broker.app import Addresses
    from broker.settings.settings import Settings


@click.command(short_help="Run a broker.")
@click.option("--config", metavar="FILE", type=click.Path(path_type=Path), help="TOML file with settings.")
@click.option("--data-dir", metavar="DIR", help="Data directory: the first of log.dirs.")
@click.option(
    "--kafka",
    metavar="H:P",
    default="127.0.0.1:9092",
    show_default=True,
    help="Address of the Kafka listener, or none.",
)
@click.option(
    "--native",
    metavar="H:P",
    default="127.0.0.1:9091",
    show_default=True,
    help="Address of the native listener, or none.",
)
@click.option(
    "--http",
    metavar="H:P",
    default="127.0.0.1:9099",
    show_default=True,
    help="Address for metrics and health, or none.",
)
@click.option(
    "--set", "assignments", metavar="KEY=VALUE", multiple=True, help="Set one setting; repeatable, the last one wins."
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="info",
    show_default=True,
    help="Lowest level of log messages on standard error.",
)
@click.option("--log-json", is_flag=True, help="Log in JSON, one object per line.")
def serve(
    config: Path | None,
    data_dir: str | None,
    kafka: str,
    native: str,
    http: str,
    assignments: tuple[str, ...],
    log_level: str,
    log_json: bool,
) -> None:
    """Run a broker until SIGTERM or SIGINT.

    Settings come from the TOML file, then the environment (WARMLOG_LOG_SEGMENT_BYTES sets log.segment.bytes), then
    --set; later ones win. An address is HOST:PORT; port 0 chooses a free port, and `none` disables the listener.

    When all listeners accept connections, one line is printed: `ready kafka=H:P native=H:P http=H:P`.
    """
    write_log_to_stderr(log_level, as_json=log_json)
    settings = read_settings(config, data_dir, assignments)
    run_broker(settings, kafka=kafka, native=native, http=http)


def read_settings(config: Path | None, data_dir: str | None, assignments: tuple[str, ...]) -> "Settings":
    """The settings as they will be in force."""
    from broker.settings.settings import load_settings
    from broker.settings.types import SettingError

    try:
        return load_settings(config, os.environ, assignments, data_dir=data_dir)
    except SettingError as error:
        raise CannotStart(str(error)) from error


def run_broker(settings: "Settings", *, kafka: str, native: str, http: str) -> None:
    """Serve until a signal asks to stop."""
    from broker.app import BrokenError, StartError, run
    from broker.settings.settings import durability_sentence

    def ready(addresses: "Addresses") -> None:
        try:
            click.echo(durability_sentence(settings))
            click.echo(addresses.line())  # echo flushes
        except BrokenPipeError:  # `| head -1` has what it wanted; that is no reason to stop serving
            close_output()
        tell_ready(os.environ)

    try:
        run(settings, kafka=kafka, native=native, http=http, ready=ready)
    except BrokenError as error:
        raise Failure(str(error)) from error
    except StartError as error:
        raise CannotStart(str(error)) from error
