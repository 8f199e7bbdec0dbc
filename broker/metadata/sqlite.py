"""The embedded metadata store: one SQLite file in the data directory.

    topics           what is served, and what is being deleted
    broker_configs   settings that were made while the broker ran (layout 2)
    counters         the first number of each kind that was never given (layout 2), and the number of commits
    directories      the data directories that there were at the last start (layout 3)
    buried           topics that were deleted while some of their data could not be reached (layout 3)

Invariants:
1. A commit is on the disk when a call returns (synchronous=FULL).
2. `user_version` is the layout's version. An older one is brought up to date, step by step, in one transaction; a newer
   one is refused, not guessed at.
3. One connection, used by one worker at a time (`_lock`): requests of several kinds come to it.
"""

import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar
from uuid import UUID

from broker.metadata.store import MetadataError
from broker.metadata.topic import Topic

# What leads from each version of the layout to the next, from an empty file on. A step that was released never changes.
_STEPS = (
    """
CREATE TABLE topics (
    name TEXT PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    partitions INTEGER NOT NULL,
    configs TEXT NOT NULL,            -- JSON: {setting: text}
    deleting INTEGER NOT NULL DEFAULT 0
) STRICT;
""",
    """
CREATE TABLE broker_configs (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE counters (name TEXT PRIMARY KEY, next INTEGER NOT NULL) STRICT;
""",
    """
CREATE TABLE directories (id TEXT PRIMARY KEY, path TEXT NOT NULL) STRICT;
CREATE TABLE buried (id TEXT PRIMARY KEY) STRICT;   -- of a topic
""",
)
LAYOUT_VERSION = len(_STEPS)

_PRODUCER_IDS = "producer_ids"
_CHANGES = "changes"
_COUNT_CHANGE = """
    INSERT INTO counters (name, next) VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET next = next + 1 RETURNING next
"""
T = TypeVar("T")
_MAX_WAL_PAGES = 64  # 256 KiB, of what is kept for a full disk; more would only spare some writes of a quiet file
_MAY_WANT_ROOM = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})  # the second: its shared memory cannot grow


class SqliteMetadataStore:
    """Topics in `metadata.sqlite`; see MetadataStore. Raises MetadataError."""

    changes: int

    def __init__(self, path: Path, *, make_room: Callable[[], bool] = lambda: False) -> None:
        """`make_room` is called where the disk is full; it says whether it is worth another try. May raise OSError."""
        self._path = path
        self._make_room = make_room
        self._lock = Lock()
        with self._errors():
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            with self._errors():
                self._with_room(self._prepare)
        except MetadataError:
            self._connection.close()
            raise

    def load(self) -> list[Topic]:
        """All topics that are not being deleted, by name."""
        return self._topics("deleting = 0")

    def deleting(self) -> list[Topic]:
        """Topics whose deletion has begun and not ended."""
        return self._topics("deleting = 1")

    def create_topics(self, topics: Sequence[Topic]) -> None:
        """Keep new topics: all of them, or none."""
        insert = "INSERT INTO topics (name, id, partitions, configs) VALUES (?, ?, ?, ?)"
        self._write(
            [(insert, (topic.name, str(topic.id), topic.partitions, json.dumps(topic.configs))) for topic in topics]
        )

    def begin_delete(self, names: Sequence[str]) -> None:
        """Mark topics as being deleted."""
        self._write([("UPDATE topics SET deleting = 1 WHERE name = ?", (name,)) for name in names])

    def finish_delete(self, names: Collection[str], *, leaving_data: Collection[str] = ()) -> None:
        """Forget topics."""
        bury = "INSERT OR IGNORE INTO buried (id) SELECT id FROM topics WHERE name = ?"
        forget = "DELETE FROM topics WHERE name = ?"
        self._write([*((bury, (name,)) for name in leaving_data), *((forget, (name,)) for name in names)])

    def buried(self) -> frozenset[UUID]:
        """The ids of topics that were forgotten though some of their data still lay about."""
        with self._errors():
            return frozenset(UUID(row[0]) for row in self._connection.execute("SELECT id FROM buried"))

    def directories(self) -> dict[str, str]:
        """The data directories that there were: absolute paths by their ids."""
        with self._errors():
            return dict(self._connection.execute("SELECT id, path FROM directories ORDER BY id").fetchall())

    def set_directories(self, paths: Mapping[str, str]) -> None:
        """Replace the data directories to know at the next start."""
        insert = "INSERT INTO directories (id, path) VALUES (?, ?)"
        self._write([("DELETE FROM directories", ()), *((insert, row) for row in paths.items())])

    def set_configs(self, name: str, configs: Mapping[str, str]) -> None:
        """Replace a topic's settings."""
        self._write([("UPDATE topics SET configs = ? WHERE name = ?", (json.dumps(dict(configs)), name))])

    def set_partitions(self, name: str, partitions: int) -> None:
        """Set a topic's partition count."""
        self._write([("UPDATE topics SET partitions = ? WHERE name = ?", (partitions, name))])

    def broker_configs(self) -> dict[str, str]:
        """The settings that were made while the broker ran."""
        with self._errors():
            return dict(self._connection.execute("SELECT name, value FROM broker_configs ORDER BY name").fetchall())

    def set_broker_configs(self, configs: Mapping[str, str]) -> None:
        """Replace the settings that were made while the broker ran."""
        insert = "INSERT INTO broker_configs (name, value) VALUES (?, ?)"
        self._write([("DELETE FROM broker_configs", ()), *((insert, row) for row in configs.items())])

    def take_producer_ids(self, count: int, *, at_least: int = 0) -> int:
        """The first of `count` producer ids in a row that nobody was given before; none is below `at_least`."""
        raised = """
            INSERT INTO counters (name, next) VALUES (?1, ?2 + ?3)
            ON CONFLICT (name) DO UPDATE SET next = max(next, ?2) + ?3 RETURNING next
        """
        next_id: int
        ((next_id,),) = self._write([(raised, (_PRODUCER_IDS, at_least, count))])
        return next_id - count

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _prepare(self) -> None:
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(f"PRAGMA wal_autocheckpoint = {_MAX_WAL_PAGES}")
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if not 0 <= version <= LAYOUT_VERSION:
            raise MetadataError(
                f"{self._path}: written by another version (layout {version}, this one knows up to {LAYOUT_VERSION})"
            )
        if version < LAYOUT_VERSION:
            steps = "".join(_STEPS[version:])
            self._connection.executescript(f"BEGIN; {steps} PRAGMA user_version = {LAYOUT_VERSION}; COMMIT;")
        found = self._connection.execute("SELECT next FROM counters WHERE name = ?", (_CHANGES,)).fetchone()
        self.changes = 0 if found is None else found[0]

    def _topics(self, condition: str) -> list[Topic]:
        with self._errors():
            rows = self._connection.execute(  # the condition is one of two, both ours
                f"SELECT name, id, partitions, configs FROM topics WHERE {condition} ORDER BY name"  # noqa: S608
            ).fetchall()
            return [
                Topic(name=name, id=UUID(topic_id), partitions=partitions, configs=json.loads(configs))
                for name, topic_id, partitions, configs in rows
            ]

    def _write(self, statements: Sequence[tuple[str, Sequence[object]]]) -> list[Any]:
        """Statements with their rows, all or none of them; what the last one returns. On a full disk once more."""
        with self._errors():
            return self._with_room(lambda: self._run(statements))

    def _with_room(self, step: Callable[[], T]) -> T:
        """Take a step; on a full disk once more, if room can be made."""
        try:
            return step()
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF not in _MAY_WANT_ROOM or not self._make_room():
                raise
            return step()

    def _run(self, statements: Sequence[tuple[str, Sequence[object]]]) -> list[Any]:
        rows: list[Any] = []
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            ((changes,),) = self._connection.execute(_COUNT_CHANGE, (_CHANGES,)).fetchall()
            for statement, row in statements:
                rows = self._connection.execute(statement, row).fetchall()
        self.changes = changes
        return rows

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except (sqlite3.Error, ValueError, OSError) as error:
            raise MetadataError(f"{self._path}: {error}") from error
