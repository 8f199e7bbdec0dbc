"""Whether a data directory is in use, and whether its files are at rest."""

import time
from pathlib import Path

from broker.log.directory.checkpoint import CLEAN_MARKER
from broker.log.directory.data_directory import LOCK_FILE

SETTLED_AFTER_S = 60  # closing a segment (trim, sync) follows its last batch; a slow disk takes seconds, not a minute


def was_clean(data_directory: Path) -> bool:
    """Whether the last broker stopped cleanly and none has started since."""
    return (data_directory / CLEAN_MARKER).exists()


def broker_is_running(data_directory: Path) -> bool:
    """Whether a process holds the directory's lock.

    This reads the kernel's list of locks: trying to take the lock could make a starting broker fail.
    """
    try:
        inode = (data_directory / LOCK_FILE).stat().st_ino
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return False
    return any(line.split()[-3].rpartition(":")[2] == str(inode) for line in locks.splitlines())


def is_left_alone(path: Path) -> bool:
    """Whether a file was last written so long ago that even a running broker is done with its segment."""
    try:
        return time.time() - path.stat().st_mtime > SETTLED_AFTER_S
    except FileNotFoundError:
        return False
