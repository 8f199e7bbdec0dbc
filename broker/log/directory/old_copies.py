"""Notice that a data directory of a broker by itself is an older copy: each clean stop marks all directories alike."""

from collections.abc import Iterator, Sequence

from warmlog.broker.log.directory.checkpoint import FIRST_STOP_MS
from warmlog.broker.log.directory.data_directory import DataDirectory
from warmlog.broker.log.directory.receipt import time_of


def older_copies(directories: Sequence[DataDirectory]) -> Iterator[str]:
    """Describe the directories that were not part of the latest run; the first one has the metadata.

    Nothing tells an older copy from a directory that was offline during that run.
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
