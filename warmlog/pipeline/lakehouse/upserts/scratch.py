"""Directories for intermediate results, below the directory for temporary files.

A process that is killed leaves its directory. Each has a file that its process keeps locked, so that later processes
know which directories are in use, and delete the others.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "warmlog-upsert-"
LOCK = "in-use"


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a new directory, which is deleted afterwards, and delete those of killed processes. Raises OSError."""
    _delete_unused(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name, open(Path(name, f"{LOCK}.new"), "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(lock.name, Path(name, LOCK))  # locked from the moment when others see it
        yield Path(name)


def _delete_unused(parent: Path) -> None:
    for directory in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # in use, of another user, not locked yet, or deleted by another process
            descriptor = os.open(directory / LOCK, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory)
            finally:
                os.close(descriptor)
