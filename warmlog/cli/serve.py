"""`warmlog serve`: run a broker in the foreground.

1. Settings are read before addresses, so that an invalid setting is the first error reported.
2. Two lines are printed and flushed: the possible loss in a power cut with these settings, then
   `ready kafka=H:P native=H:P http=H:P`.
3. Neither tables nor the client are imported, since that would delay the first reply.

The log is written to standard error, as text or as JSON. A JSON line has `time` (ISO 8601, UTC), `level`, `logger`,
`message`, `exception` if there is one, and the fields that the caller passed as `extra`.
"""

import gc
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from warmlog.broker.cluster.local import STORE
from warmlog.cli.command_groups import close_output
from warmlog.cli.failure import CannotStart, Failure
from warmlog.cli.nodes.options import AUTO, MAX_NODES, NodeCount, SharedSocket

if TYPE_CHECKING:
    from warmlog.broker.listening import Addresses
    from warmlog.broker.settings.settings import Settings

Command = TypeVar("Command", bound=Callable[..., Any])

logger = logging.getLogger(__name__)

LOG_LEVELS = ("debug", "info", "warning", "error")
STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
READY = b"READY=1"


# The options of every command that runs a broker.
SERVE_OPTIONS = (
    click.option("--config", metavar="FILE", type=click.Path(path_type=Path), help="Settings in TOML."),
    click.option("--data-dir", metavar="DIR", help="Directory of the logs: the first of log.dirs."),
    click.option("--kafka", metavar="H:P", show_default="127.0.0.1:9092", help="Kafka listener, or none."),
    click.option("--native", metavar="H:P", show_default="127.0.0.1:9091", help="Native listener, or none."),
    click.option(
        "--http", metavar="H:P", default="127.0.0.1:9099", show_default=True, help="Metrics and health, or none."
    ),
    click.option("--set", "assignments", metavar="KEY=VALUE", multiple=True, help="Set one setting; repeatable."),
    click.option(
        "--secure",
        "is_secure",
        is_flag=True,
        help="Require encryption and logins; the first start makes certificates and the user admin.",
    ),
    click.option(
        "--secrets-dir",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="With --secure: directory of certificates and passwords.  [default: the data directory, -secrets]",
    ),
    click.option(
        "--certificate-host",
        "hosts",
        metavar="NAME",
        multiple=True,
        help="With --secure: a further name or address for the certificate; repeatable.",
    ),
    click.option(
        "--log-level",
        type=click.Choice(LOG_LEVELS),
        default="info",
        show_default=True,
        help="Lowest level logged to standard error.",
    ),
    click.option("--log-json", is_flag=True, help="Log one JSON object per line."),
)


def serve_options(command: Command) -> Command:
    """Add the options of every command that runs a broker; `serve_with` takes their values."""
    return reduce(lambda decorated, option: option(decorated), reversed(SERVE_OPTIONS), command)


@click.command(short_help="Run a broker, or several as a cluster on this machine.")
@serve_options
@click.option(
    "--nodes",
    metavar="N|auto",
    type=NodeCount(1, MAX_NODES),
    help="Run a cluster of N brokers, each in a process of its own; auto: one for each available core.",
)
@click.option("--shared", metavar="NAME=FD", type=SharedSocket(), multiple=True, hidden=True)
@click.option("--until-eof", is_flag=True, help="Also stop when standard input ends.")
def serve(nodes: int | str | None, shared: Sequence[tuple[str, int]], **options: Any) -> None:
    """Run a broker until SIGTERM or SIGINT.

    Settings come from the TOML file, then the environment (WARMLOG_LOG_SEGMENT_BYTES sets log.segment.bytes), then
    --set; later ones override earlier ones. An address is HOST:PORT; port 0 chooses a free port, and `none` disables
    the listener.

    When all listeners accept connections, one line is printed: `ready kafka=H:P native=H:P http=H:P`.

    With --nodes, all nodes accept at --kafka and --native, so that clients can bootstrap while any of them lives. Each
    has ports of its own, which clients learn there: 10, 20, ... higher. --http is the address of the first node; the
    others are 10, 20, ... higher. A line for each node precedes the last line.

    --nodes auto keeps the number of nodes that the data directory holds, and runs a broker by itself if there is one
    core, or if the directory has the data of one.

    With --secure, the certificates and the login of the user admin are in --secrets-dir, by default beside the data
    directory: DIR-secrets. The first start prints how clients use them. Grant rights to other users with `warmlog acl`.
    """
    if nodes == AUTO:
        nodes = choose_nodes(**options)
    if nodes is None:
        serve_with(shared=dict(shared), **options)
    else:
        serve_nodes(int(nodes), **options)


def choose_nodes(
    *,
    config: Path | None,
    data_dir: str | None,
    assignments: tuple[str, ...],
    log_level: str,
    log_json: bool,
    is_secure: bool,
    **_: Any,
) -> int | None:
    """Return the number of nodes for --nodes auto, or None for a broker by itself. Raises CannotStart."""
    from warmlog.cli.nodes.automatic import automatic_count
    from warmlog.cli.nodes.cores import available_cores

    log_to_stderr(log_level, as_json=log_json)
    return automatic_count(read_settings(config, data_dir, assignments, is_secure=is_secure), available_cores())


def serve_with(
    *,
    config: Path | None,
    data_dir: str | None,
    kafka: str | None,
    native: str | None,
    http: str,
    assignments: tuple[str, ...],
    log_level: str,
    log_json: bool,
    is_secure: bool = False,
    secrets_dir: Path | None = None,
    hosts: tuple[str, ...] = (),
    until_eof: bool = False,
    shared: Mapping[str, int] | None = None,
) -> None:
    """Run a broker with the values of `serve_options`. Raises CannotStart, Failure.

    `shared`: listening sockets inherited from `serve --nodes`, by the names of their listeners.
    """
    _check_secure(is_secure=is_secure, secrets_dir=secrets_dir, hosts=hosts)
    log_to_stderr(log_level, as_json=log_json)
    settings = read_settings(config, data_dir, assignments, is_secure=is_secure)
    if data_dir is not None:
        warn_of_replaced_directory(settings, read_settings(config, None, assignments, is_secure=is_secure))
    if os.path.exists(settings.data_paths[0] / STORE):  # False if unreadable, which the broker reports
        raise CannotStart(f"{settings.data_paths[0]}: holds the nodes of a cluster; serve it with --nodes")
    if is_secure:
        settings = read_settings(
            config, data_dir, secured(settings, kafka, native, http, hosts, secrets_dir, assignments)
        )
    else:
        warn_if_open(settings)
    run_broker(settings, kafka=kafka, native=native, http=http, until_eof=until_eof, shared=shared or {})


def serve_nodes(
    count: int,
    *,
    config: Path | None,
    data_dir: str | None,
    assignments: tuple[str, ...],
    log_level: str,
    log_json: bool,
    is_secure: bool,
    secrets_dir: Path | None,
    hosts: tuple[str, ...],
    until_eof: bool,
    kafka: str | None,
    native: str | None,
    http: str,
) -> None:
    """Run a cluster of brokers on this machine. Raises CannotStart, Failure."""
    _check_secure(is_secure=is_secure, secrets_dir=secrets_dir, hosts=hosts)
    log_to_stderr(log_level, as_json=log_json)
    settings = read_settings(config, data_dir, assignments, is_secure=is_secure)
    if data_dir is not None:
        warn_of_replaced_directory(settings, read_settings(config, None, assignments, is_secure=is_secure))
    with importing():
        from warmlog.broker.settings.documentation import durability_sentence
        from warmlog.broker.settings.listeners import DEFAULT_KAFKA, DEFAULT_NATIVE
        from warmlog.cli.nodes.node import Node
        from warmlog.cli.nodes.plan import Plan
        from warmlog.cli.nodes.shared_listeners import SharedListeners
        from warmlog.cli.nodes.supervisor import run_nodes

    for option, given in (("--kafka", kafka), ("--native", native)):
        if settings.listeners and given is not None:
            raise CannotStart(f"{option}: cannot be combined with the setting `listeners`; add it there")
    addresses = {"kafka": kafka or DEFAULT_KAFKA, "native": native or DEFAULT_NATIVE, "http": http}
    Plan(settings=settings, count=count, addresses=addresses, options=(), logs_json=log_json).check()
    if is_secure:
        assignments = secured(settings, kafka, native, http, hosts, secrets_dir, assignments, has_nodes=True)
        settings = read_settings(config, data_dir, assignments)
    else:
        warn_if_open(settings)
    options = ["--log-level", log_level, *(["--log-json"] if log_json else [])]
    options += [] if config is None else ["--config", str(config)]
    options += [word for assignment in assignments for word in ("--set", assignment)]

    def ready(nodes: Sequence[Node], shared: SharedListeners) -> None:
        try:
            click.echo(durability_sentence(settings))
            for node in nodes:
                click.echo(f"{node.name} {node.line}")
            click.echo(f"ready {shared.line(nodes[0].addresses['http'])}")
        except BrokenPipeError:
            close_output()
        notify_ready(os.environ)

    plan = Plan(settings=settings, count=count, addresses=addresses, options=tuple(options), logs_json=log_json)
    run_nodes(plan, ready, until_eof=until_eof)


def _check_secure(*, is_secure: bool, secrets_dir: Path | None, hosts: tuple[str, ...]) -> None:
    """Raise CannotStart for options that need --secure."""
    for option, given in (("--secrets-dir", secrets_dir), ("--certificate-host", hosts)):
        if given and not is_secure:
            raise CannotStart(f"{option}: needs --secure")


def read_settings(
    config: Path | None, data_dir: str | None, assignments: tuple[str, ...], *, is_secure: bool = False
) -> "Settings":
    """Read the settings from all sources. Raises CannotStart.

    `is_secure`: `assignments` will be applied after those of --secure.
    """
    if is_secure:
        from warmlog.cli.security.secure import OF_HTTP

        assignments = (*OF_HTTP, *assignments)
    with importing():
        from warmlog.broker.settings.loading import load_settings
        from warmlog.broker.settings.types import SettingError

    try:
        return load_settings(config, os.environ, assignments, data_dir=data_dir)
    except SettingError as error:
        raise CannotStart(str(error)) from error


def warn_of_replaced_directory(settings: "Settings", given: "Settings") -> None:
    """Warn if --data-dir replaces a data directory. `given`: the settings without that option."""
    replaced, now = given.data_paths[0], settings.data_paths
    if given.data_dirs != type(given)().data_dirs and replaced.resolve() != now[0].resolve():
        logger.warning(
            "--data-dir replaces %s, the first of log.dirs=%s: the data directories are %s",
            replaced,
            given.data_dirs,
            ",".join(map(str, now)),
        )


def secured(
    settings: "Settings",
    kafka: str | None,
    native: str | None,
    http: str,
    hosts: tuple[str, ...],
    directory: Path | None,
    assignments: tuple[str, ...],
    *,
    has_nodes: bool = False,
) -> tuple[str, ...]:
    """Return the settings for encryption and logins, followed by `assignments`.

    Raises CannotStart, Failure.
    """
    with importing():
        from warmlog.cli.security.secure import introduction, names_of, secure, warn_of_replaced

    files = secure(
        settings,
        kafka=kafka,
        native=native,
        http=http,
        hosts=hosts,
        directory=directory,
        has_nodes=has_nodes,
        kept=names_of(assignments),
    )
    warn_of_replaced(settings, files.assignments, kept=assignments)
    if files.is_new:
        for line in introduction(files, is_terminal=sys.stdout.isatty()):
            click.echo(line)
    return (*files.assignments, *assignments)


def warn_if_open(settings: "Settings") -> None:
    """Warn if data that was served with --secure is now open to everyone."""
    data = settings.data_paths[0].absolute()
    directory = data.with_name(f"{data.name}-secrets")
    if directory.is_dir() and not settings.authorizer_class_name:
        logger.warning("%s was served with --secure before; now everyone may do everything: add --secure", data)


def run_broker(
    settings: "Settings",
    *,
    kafka: str | None,
    native: str | None,
    http: str,
    until_eof: bool,
    shared: Mapping[str, int],
) -> None:
    """Serve until a signal arrives or, if `until_eof`, standard input ends. Raises CannotStart, Failure."""
    with importing():
        from warmlog.broker.app import run
        from warmlog.broker.settings.documentation import durability_sentence
        from warmlog.broker.start_errors import BrokenError, StartError
        from warmlog.protocol.records import codec

    if codec.missing is not None:
        logger.warning("no compiled record codec; using the slower one in pure Python: %s", codec.missing)

    def ready(addresses: "Addresses") -> None:
        try:
            click.echo(durability_sentence(settings))
            click.echo(addresses.line())  # echo flushes
        except BrokenPipeError:  # a closed standard output (`| head -1`) does not stop the broker
            close_output()
        notify_ready(os.environ)

    try:
        run(settings, kafka=kafka, native=native, http=http, ready=ready, until_eof=until_eof, shared=shared)
    except BrokenError as error:
        raise Failure(str(error)) from error
    except StartError as error:
        raise CannotStart(str(error)) from error


@contextmanager
def importing() -> Iterator[None]:
    """Import with garbage collection disabled, which would take a tenth of the time.

    Objects that exist afterwards are also exempt from later collections: modules and classes are never freed.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def notify_ready(environ: Mapping[str, str]) -> None:
    """Notify systemd that all listeners accept connections, for `Type=notify`. A failure is only logged.

    Source: sd_notify(3). $NOTIFY_SOCKET names a datagram socket; a leading @ means Linux's abstract namespace.
    """
    address = environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.connect(address)
            sock.send(READY)
    except OSError as error:
        logger.warning("cannot notify the service manager at %s: %s", environ["NOTIFY_SOCKET"], error)


# -- log lines -----------------------------------------------------------------------------------------------------


def log_to_stderr(level: str, *, as_json: bool) -> None:
    """Send log records of `level` (one of LOG_LEVELS) and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def format_time(created: float) -> str:
    """Format a time in seconds as ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextLines(logging.Formatter):
    """`2026-11-20T10:00:00.000Z INFO warmlog.broker.app message`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802  # the base class's
        """Format the time in UTC, so that logs of several machines can be compared."""
        return format_time(record.created)


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Encode the record; values that JSON cannot represent are written as text."""
        import json  # only for --log-json

        fields: dict[str, Any] = {
            "time": format_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        fields.update({name: value for name, value in vars(record).items() if name not in STANDARD_FIELDS})
        return json.dumps(fields, default=str, ensure_ascii=False)
