"""The embedded metadata store: one SQLite file in the data directory.

    topics           existing topics, and those being deleted; of mirrored ones also the source (layout 5)
    broker_configs   dynamic broker settings (layout 2)
    counters         the next producer id, and the number of commits (layout 2)
    directories      the data directories at the last startup (layout 3)
    buried           deleted topics that may still have data on disk (layout 3)
    features         levels of features that were changed (layout 4)

Invariants:
1. A write is flushed when the call returns (synchronous=FULL).
2. `user_version` is the layout version. An older layout is migrated step by step in one transaction; a newer one is
   rejected.
3. One connection, used by one worker at a time (`_lock`).
"""

import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar
from uuid import UUID

from warmlog.broker.metadata.store import MetadataError
from warmlog.broker.metadata.topic import Mirror, Topic

# The migrations from each layout version to the next, beginning with an empty file. A released step never changes.
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
    """
CREATE TABLE features (name TEXT PRIMARY KEY, level INTEGER NOT NULL) STRICT;
""",
    """
ALTER TABLE topics ADD COLUMN mirror TEXT;          -- JSON: the fields of `Mirror`
""",
)
LAYOUT_VERSION = len(_STEPS)

_PRODUCER_IDS = "producer_ids"
_CHANGES = "changes"
_COUNT_CHANGE = """
    INSERT INTO counters (name, next) VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET next = next + 1 RETURNING next
"""
T = TypeVar("T")
_MAX_WAL_PAGES = 64  # 256 KiB, taken from the disk reserve when the disk is full
_DISK_MAY_BE_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})  # IOERR: its shared memory cannot grow


class SqliteMetadataStore:
    """A MetadataStore in `metadata.sqlite`. All methods raise MetadataError."""

    changes: int

    def __init__(self, path: Path, *, make_room: Callable[[], bool] = lambda: False) -> None:
        """Open or create the file at `path`.

        `make_room` is called when the disk is full; it returns whether to try again, and may raise OSError.
        """
        self._path = path
        self._make_room = make_room
        self._lock = Lock()
        with self._errors():
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            with self._errors():
                self._retry_when_full(self._prepare)
        except MetadataError:
            self._connection.close()
            raise

    def load(self) -> list[Topic]:
        """Return all topics that are not being deleted, by name."""
        return self._topics("deleting = 0")

    def deleting(self) -> list[Topic]:
        """Return topics whose deletion has begun but not finished."""
        return self._topics("deleting = 1")

    def create_topics(self, topics: Sequence[Topic]) -> None:
        """Store new topics, all or none."""
        insert = "INSERT INTO topics (name, id, partitions, configs, mirror) VALUES (?, ?, ?, ?, ?)"
        rows = [
            (topic.name, str(topic.id), topic.partitions, json.dumps(topic.configs), _mirror_text(topic.mirror))
            for topic in topics
        ]
        self._write([(insert, row) for row in rows])

    def begin_delete(self, names: Sequence[str]) -> None:
        """Mark topics as being deleted."""
        self._write([("UPDATE topics SET deleting = 1 WHERE name = ?", (name,)) for name in names])

    def finish_delete(self, names: Collection[str], *, leaving_data: Collection[str] = ()) -> None:
        """Forget topics, and bury the ids of those in `leaving_data`."""
        bury = "INSERT OR IGNORE INTO buried (id) SELECT id FROM topics WHERE name = ?"
        forget = "DELETE FROM topics WHERE name = ?"
        self._write([*((bury, (name,)) for name in leaving_data), *((forget, (name,)) for name in names)])

    def buried(self) -> frozenset[UUID]:
        """Return the ids of deleted topics that may still have data on disk."""
        with self._errors():
            return frozenset(UUID(row[0]) for row in self._connection.execute("SELECT id FROM buried"))

    def directories(self) -> dict[str, str]:
        """Return the data directories at the last startup: absolute paths by directory id."""
        with self._errors():
            return dict(self._connection.execute("SELECT id, path FROM directories ORDER BY id").fetchall())

    def set_directories(self, paths: Mapping[str, str]) -> None:
        """Replace the data directories that the next startup compares with."""
        insert = "INSERT INTO directories (id, path) VALUES (?, ?)"
        self._write([("DELETE FROM directories", ()), *((insert, row) for row in paths.items())])

    def set_configs(self, name: str, configs: Mapping[str, str]) -> None:
        """Replace a topic's settings."""
        self._write([("UPDATE topics SET configs = ? WHERE name = ?", (json.dumps(dict(configs)), name))])

    def set_partitions(self, name: str, partitions: int) -> None:
        """Set a topic's partition count."""
        self._write([("UPDATE topics SET partitions = ? WHERE name = ?", (partitions, name))])

    def set_mirror(self, name: str, mirror: Mirror) -> None:
        """Replace what is stored of a mirrored topic's source."""
        self._write([("UPDATE topics SET mirror = ? WHERE name = ?", (_mirror_text(mirror), name))])

    def broker_configs(self) -> dict[str, str]:
        """Return the dynamic broker settings, as text by name."""
        with self._errors():
            return dict(self._connection.execute("SELECT name, value FROM broker_configs ORDER BY name").fetchall())

    def set_broker_configs(self, configs: Mapping[str, str]) -> None:
        """Replace all dynamic broker settings."""
        insert = "INSERT INTO broker_configs (name, value) VALUES (?, ?)"
        self._write([("DELETE FROM broker_configs", ()), *((insert, row) for row in configs.items())])

    def feature_levels(self) -> dict[str, int]:
        """Return the levels of features that were changed, by name."""
        with self._errors():
            return dict(self._connection.execute("SELECT name, level FROM features ORDER BY name").fetchall())

    def set_feature_levels(self, levels: Mapping[str, int]) -> None:
        """Store levels of features; those of others stay."""
        insert = "INSERT INTO features (name, level) VALUES (?, ?) ON CONFLICT DO UPDATE SET level = excluded.level"
        self._write([(insert, row) for row in levels.items()])

    def take_producer_ids(self, count: int, *, at_least: int = 0) -> int:
        """Allocate `count` consecutive new producer ids, none below `at_least`, and return the first."""
        raised = """
            INSERT INTO counters (name, next) VALUES (?, ? + ?)
            ON CONFLICT (name) DO UPDATE SET next = max(next, ?) + ? RETURNING next
        """
        next_id: int
        ((next_id,),) = self._write([(raised, (_PRODUCER_IDS, at_least, count, at_least, count))])
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
                f"{self._path}: has layout {version}, this version of warmlog supports up to {LAYOUT_VERSION}: "
                "use a newer version"
            )
        if version < LAYOUT_VERSION:
            steps = "".join(_STEPS[version:])
            self._connection.executescript(f"BEGIN; {steps} PRAGMA user_version = {LAYOUT_VERSION}; COMMIT;")
        found = self._connection.execute("SELECT next FROM counters WHERE name = ?", (_CHANGES,)).fetchone()
        self.changes = 0 if found is None else found[0]

    def _topics(self, condition: str) -> list[Topic]:
        with self._errors():
            rows = self._connection.execute(  # the condition is a constant of this module
                f"SELECT name, id, partitions, configs, mirror FROM topics WHERE {condition} ORDER BY name"  # noqa: S608
            ).fetchall()
            return [
                Topic(
                    name=name,
                    id=UUID(topic_id),
                    partitions=partitions,
                    configs=json.loads(configs),
                    mirror=_mirror(mirror),
                )
                for name, topic_id, partitions, configs, mirror in rows
            ]

    def _write(self, statements: Sequence[tuple[str, Sequence[object]]]) -> list[Any]:
        """Run statements with their parameters in one transaction; return the rows of the last one."""
        with self._errors():
            return self._retry_when_full(lambda: self._run(statements))

    def _retry_when_full(self, step: Callable[[], T]) -> T:
        """Run a step; if the disk is full and space can be freed, run it again."""
        try:
            return step()
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF not in _DISK_MAY_BE_FULL or not self._make_room():
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


def _mirror_text(mirror: Mirror | None) -> str | None:
    return None if mirror is None else json.dumps(asdict(mirror))


def _mirror(text: str | None) -> Mirror | None:
    if text is None:
        return None
    fields = json.loads(text)
    promoted_at = fields.pop("promoted_at")
    return Mirror(**fields, promoted_at=None if promoted_at is None else tuple(promoted_at))
