"""A temporary directory in memory, for tests that write thousands of small files and flush each of them.

Import `tmp_path` into a test module or a conftest, where it replaces pytest's: what these tests check is the order of
system calls and what is left of the files after each, which is the same on every file system. Three of four seconds
went into flushes of the disk. Where there is no file system in memory with room, the directory is on the disk.
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SHARED_MEMORY = Path("/dev/shm")  # the files are removed after each test
ROOM = 2 << 30


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest) -> Iterator[Path]:
    if not SHARED_MEMORY.is_dir() or shutil.disk_usage(SHARED_MEMORY).free < ROOM:
        yield request.getfixturevalue("tmp_path_factory").mktemp("test")
        return
    directory = Path(tempfile.mkdtemp(prefix="warmlog-test-", dir=SHARED_MEMORY))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
