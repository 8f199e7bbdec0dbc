"""The number of cores that this process may use: those it may run on, and the CPU quota of its control group.

A quota is enforced for a group and for every group above it, so the smallest one counts. Source: cgroups(7), and the
kernel's documentation of `cpu.max` (version 2) and `cpu.cfs_quota_us` (version 1).
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from math import floor, inf
from pathlib import Path
from typing import Final

SELF: Final = Path("/proc/self")
V1_CONTROLLER: Final = "cpu"


def available_cores(process: Path = SELF) -> int:
    """Return the whole cores that the process may use, at least 1. A quota of 2.5 cores is 2."""
    return max(1, floor(min(len(os.sched_getaffinity(0)), cpu_quota(process))))


def cpu_quota(process: Path = SELF) -> float:
    """Return the CPU quota of a process (a directory like /proc/self) in cores; infinity without one."""
    return min((quota for group, top in _groups(process) for quota in _quotas(group, top)), default=inf)


def _groups(process: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the directories of the control groups that may have a quota, with their file systems' mount points."""
    try:
        mounts = (process / "mountinfo").read_text().splitlines()
        memberships = (process / "cgroup").read_text().splitlines()
    except OSError:  # no control groups, or no /proc
        return
    paths = {}
    for line in memberships:
        number, controllers, path = line.split(":", 2)
        if number == "0" or V1_CONTROLLER in controllers.split(","):
            paths["cgroup2" if number == "0" else "cgroup"] = Path(path)
    for line in mounts:
        before, _, after = line.partition(" - ")
        root, top = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind in paths and (kind == "cgroup2" or V1_CONTROLLER in options.split(",")):
            yield _within(paths[kind], Path(root), Path(top)), Path(top)


def _within(path: Path, root: Path, top: Path) -> Path:
    """Return the directory of a group; in a container, the mount point may be the group itself."""
    return top / path.relative_to(root) if path.is_relative_to(root) else top


def _quotas(group: Path, top: Path) -> Iterator[float]:
    """Yield the quotas of a group and those above it."""
    for directory in (group, *group.parents):
        with suppress(OSError, ValueError):  # no limit: no such file, `max` or -1
            quota, period = (directory / "cpu.max").read_text().split()
            yield int(quota) / int(period)
        with suppress(OSError, ValueError):
            quota_us = int((directory / "cpu.cfs_quota_us").read_text())
            if quota_us > 0:
                yield quota_us / int((directory / "cpu.cfs_period_us").read_text())
        if directory == top:
            return
