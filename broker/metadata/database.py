"""A SQLite file with a layout.

Invariants:
1. A write is flushed when the call returns (synchronous=FULL).
2. `user_version` is the layout version. An older layout is migrated in one transaction; a newer one is rejected.
3. One connection, used by one thread at a time (`_lock`).
4. Only the owner may read the file and its journal, which SQLite creates with the file's mode.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from warmlog.broker.metadata.errors import MetadataError

T = TypeVar("T")

MAX_WAL_PAGES = 64  # 256 KiB, taken from the disk reserve when the disk is full
_DISK_MAY_BE_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})  # IOERR: its shared memory cannot grow


class Layout(NamedTuple):
    """A layout: `create` makes it in an empty file, `migrate` from an older version."""

    version: int
    create: Callable[[sqlite3.Connection], None]
    migrate: Callable[[Path, sqlite3.Connection, int], None]


def refuse_migration(path: Path, _: sqlite3.Connection, version: int) -> None:
    """Raise MetadataError: no released version has had another layout."""
    raise MetadataError(f"{path}: has layout {version}, which no released version has")


class Database:
    """An open file. Its methods block, and raise MetadataError."""

    def __init__(
        self,
        path: Path,
        layout: Layout,
        *,
        release_reserve: Callable[[], bool] = lambda: False,
        is_exclusive: bool = False,
    ) -> None:
        """Open or create the file at `path`, and migrate it.

        `release_reserve` is called when the disk is full; it returns whether to retry, and may raise OSError.
        `is_exclusive`: lock the file against other processes, including readers.
        """
        self.path = path
        self._layout = layout
        self._release_reserve = release_reserve
        self._lock = Lock()
        with self._errors():
            _make_private(path)
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
        try:
            with self._errors():
                self._retry_when_full(lambda: self._prepare(is_exclusive=is_exclusive))
        except MetadataError:
            self._connection.close()
            raise

    def read(self, query: str, parameters: Sequence[object] = ()) -> list[Any]:
        """Return the rows of a query."""
        with self._errors():
            return self._connection.execute(query, parameters).fetchall()

    def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in one transaction, and return its result. On a full disk it runs again once space is free."""

        def run() -> T:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                return work(self._connection)

        with self._errors():
            return self._retry_when_full(run)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _prepare(self, *, is_exclusive: bool) -> None:
        execute = self._connection.execute
        if is_exclusive:
            execute("PRAGMA locking_mode = EXCLUSIVE")
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        execute(f"PRAGMA wal_autocheckpoint = {MAX_WAL_PAGES}")
        (version,) = execute("PRAGMA user_version").fetchone()
        latest, layout = self._layout.version, self._layout
        if not 0 <= version <= latest:
            raise MetadataError(
                f"{self.path}: has layout {version}, this version of warmlog supports up to {latest}: "
                "use a newer version"
            )
        if 0 < version < latest:
            layout.migrate(self.path, self._connection, version)
        elif not version:
            with self._connection:
                execute("BEGIN IMMEDIATE")
                layout.create(self._connection)
                execute(f"PRAGMA user_version = {latest}")

    def _retry_when_full(self, step: Callable[[], T]) -> T:
        """Run a step; if the disk is full and space can be freed, run it again."""
        try:
            return step()
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF not in _DISK_MAY_BE_FULL or not self._release_reserve():
                raise
            return step()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except (sqlite3.Error, ValueError, OSError) as error:
            in_use = " (is another process using it?)" if "locked" in str(error) else ""
            raise MetadataError(f"{self.path}: {error}{in_use}") from error


def _make_private(path: Path) -> None:
    """Create the file, or restrict its mode and its journal's, so that only the owner can read them."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for each in (path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))):
        if each.exists() and each.stat().st_mode & 0o077:
            each.chmod(0o600)
