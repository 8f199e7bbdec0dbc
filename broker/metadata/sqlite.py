"""The embedded metadata store: one SQLite file in the data directory.

Invariants:
1. A commit is on the disk when a call returns (synchronous=FULL).
2. `user_version` is the layout's version; another one is refused, not guessed at.
3. One connection, handed from worker to worker, never used by two at a time (the callers' lock sees to it).
"""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from broker.metadata.store import MetadataError
from broker.metadata.topic import Topic

LAYOUT_VERSION = 1
_LAYOUT = """
CREATE TABLE topics (
    name TEXT PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    partitions INTEGER NOT NULL,
    configs TEXT NOT NULL,            -- JSON: {setting: text}
    deleting INTEGER NOT NULL DEFAULT 0
) STRICT;
"""


class SqliteMetadataStore:
    """Topics in `metadata.sqlite`; see MetadataStore. Raises MetadataError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._errors():
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            with self._errors():
                self._prepare()
        except MetadataError:
            self._connection.close()
            raise

    def load(self) -> list[Topic]:
        """All topics that are not being deleted, by name."""
        return self._topics("deleting = 0")

    def deleting(self) -> list[Topic]:
        """Topics whose deletion has begun and not ended."""
        return self._topics("deleting = 1")

    def create_topic(self, topic: Topic) -> None:
        """Keep a new topic."""
        row = (topic.name, str(topic.id), topic.partitions, json.dumps(topic.configs))
        self._execute("INSERT INTO topics (name, id, partitions, configs) VALUES (?, ?, ?, ?)", row)

    def begin_delete(self, name: str) -> None:
        """Mark a topic as being deleted."""
        self._execute("UPDATE topics SET deleting = 1 WHERE name = ?", (name,))

    def finish_delete(self, name: str) -> None:
        """Forget a topic."""
        self._execute("DELETE FROM topics WHERE name = ?", (name,))

    def set_configs(self, name: str, configs: Mapping[str, str]) -> None:
        """Replace a topic's settings."""
        self._execute("UPDATE topics SET configs = ? WHERE name = ?", (json.dumps(dict(configs)), name))

    def set_partitions(self, name: str, partitions: int) -> None:
        """Set a topic's partition count."""
        self._execute("UPDATE topics SET partitions = ? WHERE name = ?", (partitions, name))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _prepare(self) -> None:
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            self._connection.executescript(f"BEGIN; {_LAYOUT} PRAGMA user_version = {LAYOUT_VERSION}; COMMIT;")
        elif version != LAYOUT_VERSION:
            raise MetadataError(
                f"{self._path}: written by another version (layout {version}, this one knows {LAYOUT_VERSION})"
            )

    def _topics(self, condition: str) -> list[Topic]:
        with self._errors():
            rows = self._connection.execute(  # the condition is one of two, both ours
                f"SELECT name, id, partitions, configs FROM topics WHERE {condition} ORDER BY name"  # noqa: S608
            ).fetchall()
            return [
                Topic(name=name, id=UUID(topic_id), partitions=partitions, configs=json.loads(configs))
                for name, topic_id, partitions, configs in rows
            ]

    def _execute(self, statement: str, row: tuple[object, ...]) -> None:
        with self._errors():
            self._connection.execute(statement, row)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, ValueError) as error:
            raise MetadataError(f"{self._path}: {error}") from error
