"""`metadata.sqlite`, in the first data directory: the store of a broker by itself, and what each broker remembers.

    keys, numbers    the store (`store_file`); empty in a cluster, whose store is elsewhere
    directories      the data directories at the last startup

Up to layout 5, topics, settings, levels of features and counters had tables of their own. Before such a file is
migrated, it is copied to `metadata.sqlite.layout5`: a version that does not know layout 6 can go on from there.
"""

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from uuid import UUID

import msgspec

from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.keys import FEATURES_KEY, PRODUCER_IDS_KEY, configs_key, encode, gone_key, topic_key
from warmlog.broker.cluster.local.store_file import StoreFile, create_tables
from warmlog.broker.cluster.store import NO_LEASE, Range
from warmlog.broker.cluster.values import Configs, Features, ProducerIds, TopicState, TopicStatus
from warmlog.broker.metadata.database import Database, Step
from warmlog.broker.metadata.errors import MetadataError
from warmlog.broker.metadata.topic import Mirror

# The layouts up to 5, each by its difference to the one before. A released step never changes.
_TABLES: tuple[Step, ...] = (
    (
        """
        CREATE TABLE topics (
            name TEXT PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            partitions INTEGER NOT NULL,
            configs TEXT NOT NULL,            -- JSON: {setting: text}
            deleting INTEGER NOT NULL DEFAULT 0
        ) STRICT
        """,
    ),
    (
        "CREATE TABLE broker_configs (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
        "CREATE TABLE counters (name TEXT PRIMARY KEY, next INTEGER NOT NULL) STRICT",
    ),
    (
        "CREATE TABLE directories (id TEXT PRIMARY KEY, path TEXT NOT NULL) STRICT",
        "CREATE TABLE buried (id TEXT PRIMARY KEY) STRICT",  # of a topic
    ),
    ("CREATE TABLE features (name TEXT PRIMARY KEY, level INTEGER NOT NULL) STRICT",),
    ("ALTER TABLE topics ADD COLUMN mirror TEXT",),  # JSON: the fields of `Mirror`
)
_INSERT = "INSERT INTO keys VALUES (?, ?, ?3, ?3, ?)"


class MetadataFile:
    """The open file. Its methods block, and raise MetadataError."""

    def __init__(self, path: Path, node_id: int, *, make_room: Callable[[], bool] = lambda: False) -> None:
        """Open or create the file of a broker, and migrate it. `make_room`: see `Database`."""
        self.database = Database(
            path,
            (*_TABLES, partial(_to_keys, node_id)),
            make_room=make_room,
            before_migration=partial(_keep_copy, path),
        )
        try:
            self.store = StoreFile(self.database)
        except MetadataError:
            self.database.close()
            raise

    def contents(self) -> Range:
        """Return everything in the store."""
        return Range(self.store.revision, tuple(self.store.items()))

    def image(self) -> ClusterImage:
        """Return the contents of the store. Raises StoreMismatchError for unreadable values."""
        return ClusterImage(self.contents())

    def directories(self) -> dict[str, str]:
        """Return the data directories in use at the last startup: absolute paths by directory id."""
        return dict(self.database.read("SELECT id, path FROM directories ORDER BY id"))

    def set_directories(self, paths: Mapping[str, str]) -> None:
        """Replace the data directories that the next startup compares with."""

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM directories")
            connection.executemany("INSERT INTO directories (id, path) VALUES (?, ?)", paths.items())

        self.database.write(work)

    def close(self) -> None:
        """Close the file."""
        self.database.close()


def _keep_copy(path: Path, connection: sqlite3.Connection, version: int) -> None:
    """Copy a file that is about to be migrated, in place of an earlier copy. Raises sqlite3.Error, OSError."""
    kept = path.with_name(f"{path.name}.layout{version}")
    part = kept.with_name(f"{kept.name}.part")
    part.unlink(missing_ok=True)
    try:
        connection.execute("VACUUM INTO ?", (str(part),))
        _sync(part)
        part.rename(kept)
        _sync(path.parent)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _to_keys(node_id: int, connection: sqlite3.Connection) -> None:
    """Migrate layout 5 to 6: move topics, settings, levels and counters to keys of the store."""
    create_tables(connection)
    counters = dict(connection.execute("SELECT name, next FROM counters").fetchall())
    revision = counters.get("changes", 0) + 2  # above that of an empty store, and never less than it was
    rows = [(key, value, revision, NO_LEASE) for key, value in _keys(connection, node_id, counters)]
    if rows:
        connection.executemany(_INSERT, rows)
        connection.execute("UPDATE numbers SET number = ? WHERE name = 'revision'", (revision,))
    for table in ("topics", "broker_configs", "counters", "buried", "features"):
        connection.execute(f"DROP TABLE {table}")


def _keys(connection: sqlite3.Connection, node_id: int, counters: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    """Iterate over the keys and values that correspond to the tables of layout 5."""
    topics = connection.execute("SELECT name, id, partitions, configs, deleting, mirror FROM topics").fetchall()
    for name, topic_id, partitions, configs, deleting, mirror in topics:
        topic = TopicState(
            id=UUID(topic_id),
            partitions=partitions,
            configs=json.loads(configs),
            status=TopicStatus.DELETING if deleting else TopicStatus.LIVE,
            mirror=None if mirror is None else msgspec.json.decode(mirror, type=Mirror),
        )
        yield topic_key(name), encode(topic)
    for (topic_id,) in connection.execute("SELECT id FROM buried").fetchall():
        yield gone_key(UUID(topic_id), node_id), b""
    scopes: dict[str, dict[str, str]] = {}
    for name, value in connection.execute("SELECT name, value FROM broker_configs").fetchall():
        scope, _, setting = name.rpartition("/")
        scopes.setdefault(scope, {})[setting] = value
    for scope, values in scopes.items():
        yield configs_key(scope), encode(Configs(values=values))
    levels = dict(connection.execute("SELECT name, level FROM features").fetchall())
    if levels:
        yield FEATURES_KEY, encode(Features(levels=levels))
    if "producer_ids" in counters:
        yield PRODUCER_IDS_KEY, encode(ProducerIds(next_id=counters["producer_ids"]))
