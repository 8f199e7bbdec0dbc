"""Limit the disk reads of one process to a rate, with the block I/O controller of cgroups, version 1.

Reads from the page cache are not limited. Needs root and `/sys/fs/cgroup/blkio`; ThrottleError reports which is
missing.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.native import SetupError

CONTROLLER = Path("/sys/fs/cgroup/blkio")
LIMIT, BYTES = "blkio.throttle.read_bps_device", "blkio.throttle.io_service_bytes"


class ThrottleError(SetupError):
    """The disk cannot be throttled here; `str()` has the reason."""


@dataclass(frozen=True, slots=True)
class ThrottledDisk:
    """A disk as seen by one process in its own control group."""

    group: Path
    device: str

    def read_bytes(self) -> int:
        """Return the bytes that the process has read from the disk since it was limited."""
        lines = (line.split() for line in (self.group / BYTES).read_text().splitlines())
        return sum(int(line[2]) for line in lines if line[:2] == [self.device, "Read"])


@contextmanager
def throttled(pid: int, directory: Path, bytes_per_s: int) -> Iterator[ThrottledDisk]:
    """Limit the reads of all threads of a process from the disk of a directory. Raises ThrottleError."""
    device = disk_of(directory)
    group = CONTROLLER / f"warmlog-benchmark-{pid}"
    home = CONTROLLER / _group_of(pid)
    try:
        group.mkdir()
        try:
            (group / LIMIT).write_text(f"{device} {bytes_per_s}\n")
            (group / "cgroup.procs").write_text(f"{pid}\n")
        except OSError:
            group.rmdir()
            raise
    except OSError as error:
        raise ThrottleError(f"the disk cannot be throttled: {error} (root and cgroup v1's blkio are needed)") from error
    try:
        yield ThrottledDisk(group, device)
    finally:
        with suppress(OSError):  # it may have ended
            (home / "cgroup.procs").write_text(f"{pid}\n")
        with suppress(OSError):
            group.rmdir()


def disk_of(directory: Path) -> str:
    """Return MAJOR:MINOR of a directory's whole disk: partitions cannot be throttled. Raises ThrottleError."""
    number = directory.stat().st_dev
    entry = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not entry.exists():
        raise ThrottleError(f"the disk cannot be throttled: {directory} is not on a block device")
    whole = entry.resolve().parent if (entry / "partition").exists() else entry
    return (whole / "dev").read_text().strip()


def _group_of(pid: int) -> str:
    """Return the current control group of a process. Raises ThrottleError."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "blkio" in controllers.split(","):
            return path.lstrip("/")
    raise ThrottleError("the disk cannot be throttled: there is no block-I/O controller of cgroups, version 1")
