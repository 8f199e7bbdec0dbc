"""The runs of a standalone broker and the data directories that they used, to detect older copies.

A run is identified by its start time. Each data directory has a file with the latest run that used each directory:

    DIR/warmlog-runs.json    {"version": 0, "runs": {"<directory.id>": 1800000000000, ...}}

    a has      b has      at the next startup
    a:7 b:7    a:7 b:7    both are the newest
    a:7 b:6    a:6 b:6    b was offline in run 7: nothing is missing
    a:7 b:7    a:6 b:6    b is a copy from before run 7: records that run 7 wrote there are missing

An older copy is served, and its entries stay: every startup reports it until the newest one is back, or an operator
accepts the loss (`accepted_loss`), after which it counts as the newest.
Copies from the latest run are not detected, nor is a whole set of directories of one earlier time (a restored backup),
since nothing contradicts it. A broker in a cluster validates its directories in another way (`broker.cluster.history`).

Invariants:
1. The files are durable before any log is opened, so that no record is written in a run that they do not contain.
2. A directory's own entry is durable before another directory has it: a crash in between makes no directory look old.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import DecodeError, Struct
from msgspec.json import Decoder, Encoder

from warmlog.broker.log.directory.accepted_loss import ACCEPT_LOSS, forget_acceptance, is_loss_accepted
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.directory.names import RUNS, reason_of
from warmlog.broker.log.directory.receipt import time_of
from warmlog.broker.log.errors import DirectoryFailedError
from warmlog.broker.log.io.disk import Disk, read_file, replace_file

logger = logging.getLogger(__name__)

VERSION = 0
NEVER = 0


class Runs(Struct, frozen=True):
    """The content of the file."""

    version: int = VERSION
    runs: dict[str, int] = {}


_encode = Encoder().encode
_decode: Callable[[bytes], Runs] = Decoder(Runs).decode


def begin_run(directories: DataDirectories, now_ms: int, disk: Disk | None = None) -> None:
    """Report older copies, and record in all data directories that a run begins. Blocking.

    A directory that cannot be written goes offline; raises DirectoryFailedError if it is the first one.
    """
    disk = disk or Disk()
    earlier: dict[DataDirectory, Runs | None] = {}
    accepted: set[DataDirectory] = set()

    def read(directory: DataDirectory) -> None:
        if is_loss_accepted(disk, directory.path):
            accepted.add(directory)
        earlier[directory] = _read(disk, directory)

    _each(directories, read)
    latest = _latest(earlier.values())
    copies = {
        directory: own
        for directory, known in earlier.items()
        if directory not in accepted and (own := _older(directory, known, latest)) is not None
    }
    for directory, own in copies.items():
        _report(directory, own, latest[directory.directory_id])
    _report_unclosed([directory for directory in earlier if directory not in copies], latest)
    run = max(now_ms, *(each + 1 for each in latest.values()), NEVER)

    def record(directory: DataDirectory, used: Mapping[str, int]) -> None:
        runs = {**latest, **used}
        if directory in copies:
            runs[directory.directory_id] = copies[directory]
        data = _encode(Runs(runs=runs))
        directory.with_reserve(lambda: replace_file(disk, directory.partition_path(RUNS), data, sync=True))
        directory.sync_names()

    def uses(directory: DataDirectory) -> dict[str, int]:
        return {} if directory in copies else {directory.directory_id: run}

    _each(directories, lambda directory: record(directory, uses(directory)))
    used = {directory_id: run for directory in directories.live for directory_id in uses(directory)}
    if len(directories.live) > 1:
        _each(directories, lambda directory: record(directory, used))
    for directory in accepted.intersection(directories.live):
        logger.warning(
            "data directory %s: serving an older copy, because it has a file %s", directory.path, ACCEPT_LOSS
        )
    _each(directories, lambda directory: forget_acceptance(disk, directory.path))


def _each(directories: DataDirectories, work: Callable[[DataDirectory], None]) -> None:
    """Call a function for each live directory; one that fails goes offline."""
    for directory in list(directories.live):
        try:
            work(directory)
        except OSError as error:
            reason = reason_of(error, directory.path)
            if directory is directories.first:
                raise DirectoryFailedError(directory.path, reason) from error
            directories.take_offline(directory, reason)
            logger.error("data directory %s is offline until the next startup: %s", directory.path, reason)  # noqa: TRY400


def _latest(runs: Iterable[Runs | None]) -> dict[str, int]:
    """Return the latest run that used each directory, by id."""
    latest: dict[str, int] = {}
    for known in runs:
        for directory_id, run in known.runs.items() if known else ():
            latest[directory_id] = max(run, latest.get(directory_id, NEVER))
    return latest


def _older(directory: DataDirectory, known: Runs | None, latest: Mapping[str, int]) -> int | None:
    """Return the run that a directory is a copy from; None if it is, or without a readable file may be, the newest."""
    newest = latest.get(directory.directory_id, NEVER)
    own = newest if known is None else known.runs.get(directory.directory_id, NEVER)
    return own if own < newest else None


def _report(directory: DataDirectory, own: int, newest: int) -> None:
    last = f"the run of {time_of(own)} was the last one to use it" if own else f"it has no {RUNS}"
    logger.error(
        "data directory %s is an older copy: %s, but the run of %s has used the directory, too. Records are missing,"
        " and their offsets are assigned again. Stop the broker and put the newest one back; or keep this one, and end"
        " this message, with: touch %s/%s",
        directory.path,
        last,
        time_of(newest),
        directory.path,
        ACCEPT_LOSS,
    )


def _report_unclosed(directories: Sequence[DataDirectory], latest: Mapping[str, int]) -> None:
    """Warn of directories that their run's clean stop has not closed: they may be copies made from a running broker."""
    runs = {directory: latest.get(directory.directory_id, NEVER) for directory in directories}
    last = max(runs.values(), default=NEVER)
    closed = [each for each, run in runs.items() if NEVER < run == last and (each.closed_in or NEVER) >= run]
    for directory, run in runs.items():
        if closed and run == last and not directory.was_clean and directory.partitions():
            logger.warning(
                "data directory %s was not closed by the clean stop that closed %s: some of its logs had failed or were"
                " offline, or it is a copy that was made while the broker ran, and records are missing",
                directory.path,
                closed[0].path,
            )


def _read(disk: Disk, directory: DataDirectory) -> Runs | None:
    """Read the file; None, and a finding, if it cannot be parsed. Raises OSError."""
    path = directory.partition_path(RUNS)
    try:
        return _decode(read_file(disk, path))
    except FileNotFoundError:
        return Runs()
    except DecodeError as error:
        directory.findings.append(f"{path}: {error}")
        return None
