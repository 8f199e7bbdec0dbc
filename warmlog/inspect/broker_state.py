"""Determine whether a broker serves a data directory, whether it stopped cleanly, and whether a file is idle."""

import time
from pathlib import Path

from warmlog.broker.log.directory.checkpoint import CLEAN_MARKER
from warmlog.broker.log.directory.identity import LOCK_FILE

IDLE_AFTER_S = 60  # sealing a segment (trim, fsync) follows its last batch within seconds, even on a slow disk


def was_clean(data_directory: Path) -> bool:
    """Return whether the last broker stopped cleanly and none has started since."""
    return (data_directory / CLEAN_MARKER).exists()


def broker_is_running(data_directory: Path) -> bool:
    """Return whether a process holds the directory's lock.

    Reads the kernel's list of locks: trying to take the lock could make a starting broker fail.
    """
    try:
        inode = (data_directory / LOCK_FILE).stat().st_ino
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return False
    return any(line.split()[-3].rpartition(":")[2] == str(inode) for line in locks.splitlines())


def is_idle(path: Path) -> bool:
    """Return whether a file was last written so long ago that even a running broker has finished with it."""
    try:
        return time.time() - path.stat().st_mtime > IDLE_AFTER_S
    except FileNotFoundError:
        return False
