"""`warmlog log repair`: what recovery would do to a data directory, done now, without a broker.

Owns: the options, the lock, and how it is told what was done. Must not know: what is done (`mending`).
"""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import click
import msgspec

from broker.log.descriptions import RecoveryReport
from broker.log.directory.data_directory import META_PROPERTIES, DataDirectory, parse_properties
from broker.log.errors import LogError
from broker.log.io.disk import Disk
from broker.log.io.overlay_disk import RehearsalDisk
from broker.metadata.topic import Topic
from broker.settings.settings import Settings, load_settings
from broker.settings.types import SettingError
from warmlog.cli.failure import CannotStart
from warmlog.cli.options import directories_argument, index_interval_option, json_option
from warmlog.cli.output import Column, counted, print_json, print_line, print_table
from warmlog.cli.progress import Progress
from warmlog.cli.verify import finding_form
from warmlog.inspect.all_checks import Looking, all_findings
from warmlog.inspect.circumstances import broker_is_running
from warmlog.inspect.findings import Finding, Tally
from warmlog.inspect.metadata import StoredMetadata
from warmlog.inspect.paths import is_partition_directory, partition_directories
from warmlog.inspect.repair import MendedDirectory, MendedLog, Wishes, mend


@click.command(short_help="Recover logs without a broker.")
@directories_argument
@click.option("--dry-run", is_flag=True, help="Print what would be done, and write nothing.")
@click.option(
    "--cut-damaged",
    is_flag=True,
    help="Truncate logs at their first damaged batch below the recovery point, too: everything after it is lost.",
)
@click.option("--config", metavar="FILE", type=click.Path(path_type=Path), help="The broker's settings, as for serve.")
@index_interval_option
@json_option("One JSON object: what was done to each directory and log, and what remains.")
@click.pass_context
def repair(
    context: click.Context,
    directories: tuple[Path, ...],
    dry_run: bool,
    cut_damaged: bool,
    config: Path | None,
    index_interval_bytes: int,
    as_json: bool,
) -> None:
    """Recover logs without a broker: truncate torn ends, rebuild indexes and snapshots, remove leftovers.

    DIR is a data directory; give all of a broker's. Afterwards verify finds nothing, and the next startup is a clean
    one. Damage below the recovery point, where everything was flushed once, is reported and kept unless --cut-damaged
    is given. The exit status is 1 if something remains.
    """
    settings = broker_settings(config)
    with Progress("repairing") as progress, ExitStack() as stack:
        looking = Looking(index_interval_bytes=index_interval_bytes, progress=progress.advance)
        wishes = Wishes(settings=settings, looking=looking, clock=wall_clock_ms, cut_damaged=cut_damaged)
        disk = RehearsalDisk() if dry_run else Disk()
        topics = known_topics(directories)
        locked = [stack.enter_context(locked_directory(path, disk, settings)) for path in directories]
        mended = [mend(directory, disk, wishes, topics) for directory in locked]
        left = [] if dry_run else list(all_findings(directories, looking, Tally(), locked=True))
    show(mended, left, dry_run=dry_run, as_json=as_json)
    if left or any(each.failed for each in mended):
        context.exit(1)


def broker_settings(config: Path | None) -> Settings:
    """The settings that a broker would have from this file and the environment."""
    try:
        return load_settings(config, os.environ)
    except SettingError as error:
        raise CannotStart(str(error)) from error


def known_topics(directories: tuple[Path, ...]) -> dict[str, Topic]:
    """The topics that the metadata of any of the directories know. Raises CannotStart for what is no data directory."""
    topics: dict[str, Topic] = {}
    for directory in directories:
        partition_directories(directory)
        if is_partition_directory(directory):
            raise CannotStart(f"{directory}: the directory of a partition; repair takes data directories")
        if broker_is_running(directory):
            raise CannotStart(f"data directory {directory} is in use by a broker")
        topics |= StoredMetadata(directory, running=False).topics or {}
    return topics


def locked_directory(path: Path, disk: Disk, settings: Settings) -> DataDirectory:
    """Take the directory as a broker would. Raises CannotStart if one has it, or if it cannot be understood."""
    try:
        return DataDirectory.open(path, node_id=node_of(path, settings), disk=disk)
    except LogError as error:
        raise CannotStart(str(error)) from error


def node_of(path: Path, settings: Settings) -> int:
    """The node whose directory it is; where nobody has written it down, the broker's."""
    try:
        properties = parse_properties((path / META_PROPERTIES).read_text(encoding="latin-1"))
    except FileNotFoundError:
        return settings.node_id
    node_id = properties.get("node.id", "")
    return int(node_id) if node_id.isascii() and node_id.isdecimal() else settings.node_id


def wall_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def show(mended: list[MendedDirectory], left: list[Finding], *, dry_run: bool, as_json: bool) -> None:
    """Print what was done."""
    if as_json:
        forms = [msgspec.to_builtins(each) for each in mended]
        print_json({"dry_run": dry_run, "directories": forms, "left": [finding_form(finding) for finding in left]})
        return
    rows = [(f"{log.topic}-{log.partition}", what) for each in mended for log in each.logs for what in deeds(log)]
    if rows:
        print_table([Column("log"), Column("would be done" if dry_run else "done")], rows)
    for each in mended:
        print_line(summary(each))
    for finding in left:
        print_line(f"left: {finding.line()}")


def summary(mended: MendedDirectory) -> str:
    """What was done to a directory as a whole, in one line."""
    did = [f"{counted(len(mended.logs), 'log')} recovered" if mended.logs else "no log recovered"]
    if mended.untouched:
        did.append(f"{counted(mended.untouched, 'sound one')} left alone")
    if mended.removed:
        did.append(f"removed: {', '.join(mended.removed)}")
    if mended.checkpoints:
        did.append(f"written: {', '.join(mended.checkpoints)}")
    return f"{mended.directory}: {'; '.join(did)}"


def deeds(log: MendedLog) -> Iterator[str]:
    """What was done to a log, a line each."""
    if log.error is not None:
        yield f"FAILED: {log.error}"
    if log.removed:
        yield f"snapshots that contradict the log removed: {', '.join(log.removed)}"
    if log.epochs_rewritten:
        yield "leader epochs made anew from the batches"
    if log.recovery is not None:
        yield from recovery_deeds(log.recovery)
    if log.indexes:
        yield f"indexes rebuilt: {segments(log.indexes)}"
    if log.transaction_indexes:
        yield f"transaction indexes rebuilt: {segments(log.transaction_indexes)}"
    if log.topic_id_rewritten:
        yield "topic id written"


def recovery_deeds(report: RecoveryReport) -> Iterator[str]:
    """What recovery did."""
    yield f"{report.scanned_bytes:,} bytes checked from offset {report.recovery_point} on"
    if report.truncated_bytes:
        yield f"{report.truncated_bytes:,} bytes cut at offset {report.truncated_at}: {report.truncation_reason}"
    if report.removed_segments:
        yield f"removed: {segments(report.removed_segments)}"
    if report.rebuilt_indexes or report.rebuilt_time_indexes:
        yield f"indexes rebuilt: {segments(sorted({*report.rebuilt_indexes, *report.rebuilt_time_indexes}))}"
    if report.removed_snapshots:
        yield f"snapshots removed: {', '.join(map(str, report.removed_snapshots))}"
    if report.rebuilt_epochs:
        yield "leader epochs made anew"
    if report.leftovers:
        yield f"leftovers removed: {', '.join(report.leftovers)}"


def segments(bases: "tuple[int, ...] | list[int]") -> str:
    """`segments 0, 8`."""
    return f"segment{'' if len(bases) == 1 else 's'} {', '.join(map(str, bases))}"
