"""Log what is unusual about the data directories at startup: offline, gone, older copies, open to everybody."""

import logging
import os
import stat
from collections.abc import Iterator, Sequence

from warmlog.broker.log.directory.checkpoint import FIRST_STOP_MS
from warmlog.broker.log.directory.data_directories import DataDirectories
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.directory.receipt import time_of

logger = logging.getLogger(__name__)


def report_directories(directories: DataDirectories, *, is_alone: bool) -> None:
    """Log it. In a cluster, the directories are compared with the store later (`broker.clustered`). Raises OSError."""
    for path, reason in directories.offline.items():
        logger.error("data directory %s is offline until the next start: %s", path, reason)
    for directory in directories.live:
        if (mode := stat.S_IMODE(os.stat(directory.path).st_mode)) & stat.S_IRWXO:
            logger.info("data directory %s: every user of the machine has access (mode %o)", directory.path, mode)
    if is_alone:
        for what in directories.gone.values():
            logger.warning("data directory %s", what)
        for copy in older_copies(directories.live):
            logger.error("%s", copy)


def older_copies(directories: Sequence[DataDirectory]) -> Iterator[str]:
    """Describe the directories that were not part of the latest run; the first one has the metadata.

    Each clean stop marks all directories alike. An older copy looks like a directory that was offline meanwhile.
    """
    stops = {each.path: each.closed_in for each in directories if each.closed_in and each.closed_in >= FIRST_STOP_MS}
    latest = max(stops.values(), default=None)
    what = "" if latest is None else f"another directory was closed at {time_of(latest)}"
    if any(not each.was_clean and (each is directories[0] or each.partitions()) for each in directories):
        latest, what = None, "the broker has run without closing another one since"
    for path, stop in stops.items():
        if stop != latest:
            yield (
                f"data directory {path} was closed at {time_of(stop)}, and {what}: unless it was offline then, it is an"
                " older copy, and records are missing"
            )
