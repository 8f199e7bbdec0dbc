"""`warmlog log repair`: recover data directories without starting a broker."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import click
import msgspec

from warmlog.broker.log.descriptions import RecoveryReport
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.directory.identity import META_PROPERTIES, parse_properties
from warmlog.broker.log.errors import LogError
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.overlay_disk import OverlayDisk
from warmlog.broker.metadata.topic import Topic
from warmlog.broker.settings.loading import load_settings
from warmlog.broker.settings.settings import Settings
from warmlog.broker.settings.types import SettingError
from warmlog.cli.failure import CannotStart
from warmlog.cli.log.verify import finding_json
from warmlog.cli.options import directories_argument, index_interval_option, json_option
from warmlog.cli.output import Column, counted, print_json, print_line, print_table
from warmlog.cli.progress import Progress
from warmlog.inspect.broker_state import broker_is_running
from warmlog.inspect.checks.directories import CheckOptions, check_directories
from warmlog.inspect.findings import Finding, Tally
from warmlog.inspect.metadata import StoredMetadata
from warmlog.inspect.paths import is_partition_directory, partition_directories
from warmlog.inspect.repair import DirectoryRepair, LogRepair, RepairOptions, repair_directory


@click.command(short_help="Recover a data directory without starting a broker.")
@directories_argument
@click.option("--dry-run", is_flag=True, help="Show the repairs without writing anything.")
@click.option(
    "--cut-damaged",
    is_flag=True,
    help="Also truncate logs at damage below the recovery point: all later records are lost.",
)
@click.option("--config", metavar="FILE", type=click.Path(path_type=Path), help="The broker's settings, as for serve.")
@index_interval_option
@json_option("One JSON object: the actions for each directory and log, and the remaining findings.")
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
    """Recover a data directory without starting a broker.

    DIR is a data directory; name all directories of a broker. Torn ends are truncated, indexes and snapshots rebuilt,
    leftovers removed; afterwards `log verify` has no findings, and the next start is clean. Damage below the recovery
    point, in flushed records, is reported but not truncated unless --cut-damaged is given. The exit status is 1 if
    findings remain.
    """
    settings = broker_settings(config)
    with Progress("repairing") as progress, ExitStack() as stack:
        checks = CheckOptions(index_interval_bytes=index_interval_bytes, progress=progress.advance)
        options = RepairOptions(settings=settings, checks=checks, clock=wall_clock_ms, cut_damaged=cut_damaged)
        disk = OverlayDisk() if dry_run else Disk()
        topics = known_topics(directories)
        locked = [stack.enter_context(locked_directory(path, disk, settings)) for path in directories]
        repairs = [repair_directory(directory, disk, options, topics) for directory in locked]
        left = [] if dry_run else list(check_directories(directories, checks, Tally(), locked=True))
    show(repairs, left, dry_run=dry_run, as_json=as_json)
    if left or any(each.failed for each in repairs):
        context.exit(1)


def broker_settings(config: Path | None) -> Settings:
    """Read the settings as a broker does, from this file and the environment. Raises CannotStart."""
    try:
        return load_settings(config, os.environ)
    except SettingError as error:
        raise CannotStart(str(error)) from error


def known_topics(directories: tuple[Path, ...]) -> dict[str, Topic]:
    """Read the topics from the metadata of all directories. Raises CannotStart if one is not an idle data directory."""
    topics: dict[str, Topic] = {}
    for directory in directories:
        partition_directories(directory)
        if is_partition_directory(directory):
            raise CannotStart(
                f"{directory}: this is the directory of a partition; give the data directory that contains it"
            )
        if broker_is_running(directory):
            raise CannotStart(f"data directory {directory} is in use by a broker; stop it first")
        topics |= StoredMetadata(directory, running=False).topics or {}
    return topics


def locked_directory(path: Path, disk: Disk, settings: Settings) -> DataDirectory:
    """Lock the directory as a broker does. Raises CannotStart if it is in use or invalid."""
    try:
        return DataDirectory.open(path, node_id=node_id_of(path, settings), disk=disk)
    except LogError as error:
        raise CannotStart(str(error)) from error


def node_id_of(path: Path, settings: Settings) -> int:
    """Return the node id stored in the directory, or without one the node id in the settings."""
    try:
        properties = parse_properties((path / META_PROPERTIES).read_text(encoding="latin-1"))
    except FileNotFoundError:
        return settings.node_id
    node_id = properties.get("node.id", "")
    return int(node_id) if node_id.isascii() and node_id.isdecimal() else settings.node_id


def wall_clock_ms() -> int:
    """Return the current time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def show(repairs: list[DirectoryRepair], left: list[Finding], *, dry_run: bool, as_json: bool) -> None:
    """Print the actions and the remaining findings."""
    if as_json:
        directories = [msgspec.to_builtins(each) for each in repairs]
        print_json(
            {"dry_run": dry_run, "directories": directories, "left": [finding_json(finding) for finding in left]}
        )
        return
    rows = [(f"{log.topic}-{log.partition}", what) for each in repairs for log in each.logs for what in actions(log)]
    if rows:
        print_table([Column("log"), Column("would be done" if dry_run else "done")], rows)
    for each in repairs:
        print_line(summary(each))
    for finding in left:
        print_line(f"left: {finding.line()}")


def summary(done: DirectoryRepair) -> str:
    """Format the actions for a directory as one line."""
    parts = [f"{counted(len(done.logs), 'log')} recovered" if done.logs else "no log recovered"]
    if done.untouched:
        parts.append(f"{counted(done.untouched, 'sound log')} left unchanged")
    if done.removed:
        parts.append(f"removed: {', '.join(done.removed)}")
    if done.checkpoints:
        parts.append(f"written: {', '.join(done.checkpoints)}")
    return f"{done.directory}: {'; '.join(parts)}"


def actions(log: LogRepair) -> Iterator[str]:
    """Yield the actions for a log, one line each."""
    if log.error is not None:
        yield f"FAILED: {log.error}"
    if log.removed:
        yield f"snapshots contradicting the log removed: {', '.join(log.removed)}"
    if log.epochs_rewritten:
        yield "leader epochs rebuilt from the batches"
    if log.recovery is not None:
        yield from recovery_actions(log.recovery)
    if log.indexes:
        yield f"indexes rebuilt: {segments(log.indexes)}"
    if log.transaction_indexes:
        yield f"transaction indexes rebuilt: {segments(log.transaction_indexes)}"
    if log.topic_id_rewritten:
        yield "topic id written"


def recovery_actions(report: RecoveryReport) -> Iterator[str]:
    """Yield the actions of recovery."""
    yield f"{report.scanned_bytes:,} bytes checked from offset {report.recovery_point}"
    if report.truncated_bytes:
        yield f"{report.truncated_bytes:,} bytes truncated at offset {report.truncated_at}: {report.truncation_reason}"
    if report.removed_segments:
        yield f"removed: {segments(report.removed_segments)}"
    if report.rebuilt_indexes or report.rebuilt_time_indexes:
        yield f"indexes rebuilt: {segments(sorted({*report.rebuilt_indexes, *report.rebuilt_time_indexes}))}"
    if report.removed_snapshots:
        yield f"snapshots removed: {', '.join(map(str, report.removed_snapshots))}"
    if report.rebuilt_epochs:
        yield "leader epochs rebuilt"
    if report.leftovers:
        yield f"leftovers removed: {', '.join(report.leftovers)}"


def segments(bases: "tuple[int, ...] | list[int]") -> str:
    """Format base offsets as `segments 0, 8`."""
    return f"segment{'' if len(bases) == 1 else 's'} {', '.join(map(str, bases))}"
