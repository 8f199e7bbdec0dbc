"""The file of a local store: its keys at the latest revision, in SQLite.

    keys      every key without a lease; one with a lease ends with the process that keeps the lease's time
    numbers   cluster_id, drawn when the file is created; revision; openings, how often the file was opened

Invariants:
1. A write is flushed when the call returns (synchronous=FULL).
2. One process has the file open.
3. `user_version` is the layout version; another one is rejected.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import randbits
from typing import NamedTuple

from warmlog.broker.cluster.store import NO_LEASE, Changes, Deleted, Event, KeyValue, StoreError

LAYOUT_VERSION = 1
MAX_WAL_PAGES = 256  # 1 MiB

_TABLES = """
BEGIN;
CREATE TABLE keys (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, create_revision INTEGER NOT NULL, mod_revision INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE numbers (name TEXT PRIMARY KEY, number INTEGER NOT NULL) STRICT;
INSERT INTO numbers VALUES ('cluster_id', 0), ('revision', 1), ('openings', 0);
PRAGMA user_version = 1;
COMMIT;
"""
_PUT = "INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?)"
_DELETE = "DELETE FROM keys WHERE key = ?"
_SET_NUMBER = "UPDATE numbers SET number = ? WHERE name = ?"


class Contents(NamedTuple):
    """What a file contains. `openings` includes the current one."""

    cluster_id: int
    revision: int
    openings: int
    items: tuple[KeyValue, ...]


class Journal:
    """An open file. Its methods block, and raise StoreError; call them from one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open or create a file."""
        self._path = path
        with self._errors():
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
        try:
            with self._errors():
                self.contents = self._open()
        except StoreError:
            self._connection.close()
            raise

    def write(self, changes: Sequence[Changes]) -> None:
        """Write changes, which follow those written before."""
        with self._errors():
            self._connection.execute("BEGIN")
            for each in changes:
                for event in each.events:
                    self._write(event)
            self._connection.execute(_SET_NUMBER, (changes[-1].revision, "revision"))
            self._connection.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _write(self, event: Event) -> None:
        if isinstance(event, Deleted) or event.lease != NO_LEASE:
            self._connection.execute(_DELETE, (event.key,))
        else:
            self._connection.execute(_PUT, (event.key, event.value, event.create_revision, event.mod_revision))

    def _open(self) -> Contents:
        execute = self._connection.execute
        execute("PRAGMA locking_mode = EXCLUSIVE")
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        execute(f"PRAGMA wal_autocheckpoint = {MAX_WAL_PAGES}")
        (version,) = execute("PRAGMA user_version").fetchone()
        if version not in {0, LAYOUT_VERSION}:
            raise StoreError(f"{self._path}: has layout {version}, this version of warmlog knows {LAYOUT_VERSION}")
        if not version:
            self._connection.executescript(_TABLES)
            execute(_SET_NUMBER, (randbits(63), "cluster_id"))
        # The keys with a lease have ended with the previous process: that is a change, and has a revision.
        execute("UPDATE numbers SET number = number + 1 WHERE name IN ('openings', 'revision')")
        numbers = dict(execute("SELECT name, number FROM numbers").fetchall())
        rows = execute("SELECT key, value, create_revision, mod_revision FROM keys").fetchall()
        items = tuple(KeyValue(*row) for row in rows)
        return Contents(numbers["cluster_id"], numbers["revision"], numbers["openings"], items)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            in_use = " (is another process using it?)" if "locked" in str(error) else ""
            raise StoreError(f"{self._path}: {error}{in_use}") from error
