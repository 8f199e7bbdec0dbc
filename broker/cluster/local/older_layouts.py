"""Migrate `metadata.sqlite` from layouts 1 to 5, in which topics, settings, levels and counters had separate tables.

Before such a file is migrated, it is copied to `metadata.sqlite.layout5`, which earlier versions can use.
"""

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import msgspec

from warmlog.broker.cluster.keys import FEATURES_KEY, PRODUCER_IDS_KEY, configs_key, encode, gone_key, topic_key
from warmlog.broker.cluster.local.store_file import create_tables
from warmlog.broker.cluster.store import NO_LEASE
from warmlog.broker.cluster.values import Configs, Features, ProducerIds, TopicState, TopicStatus
from warmlog.broker.metadata.topic import Mirror

LATEST_OLD, LAYOUT = 5, 6
# What each of the layouts 2 to 5 added.
_ADDED = {
    2: (
        "CREATE TABLE broker_configs (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
        "CREATE TABLE counters (name TEXT PRIMARY KEY, next INTEGER NOT NULL) STRICT",
    ),
    3: (
        "CREATE TABLE directories (id TEXT PRIMARY KEY, path TEXT NOT NULL) STRICT",
        "CREATE TABLE buried (id TEXT PRIMARY KEY) STRICT",  # of a topic
    ),
    4: ("CREATE TABLE features (name TEXT PRIMARY KEY, level INTEGER NOT NULL) STRICT",),
    5: ("ALTER TABLE topics ADD COLUMN mirror TEXT",),  # JSON: the fields of `Mirror`
}
_INSERT = "INSERT INTO keys VALUES (?, ?, ?3, ?3, ?)"


def migrate(path: Path, connection: sqlite3.Connection, version: int, node_id: int) -> None:
    """Copy a file, and migrate it to layout 6 in one transaction. Raises sqlite3.Error, OSError, ValueError."""
    _keep_copy(path, connection, version)
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        for layout in range(version + 1, LATEST_OLD + 1):
            for statement in _ADDED[layout]:
                connection.execute(statement)
        _to_keys(connection, node_id)
        connection.execute(f"PRAGMA user_version = {LAYOUT}")


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


def _to_keys(connection: sqlite3.Connection, node_id: int) -> None:
    """Migrate layout 5 to 6: move topics, settings, levels and counters to keys of the store."""
    create_tables(connection)
    counters = dict(connection.execute("SELECT name, next FROM counters").fetchall())
    revision = counters.get("changes", 0) + 2  # higher than in an empty store, and never lower than before
    rows = [(key, value, revision, NO_LEASE) for key, value in _keys(connection, node_id, counters)]
    if rows:
        connection.executemany(_INSERT, rows)
        connection.execute("UPDATE numbers SET number = ? WHERE name = 'revision'", (revision,))
    for table in ("topics", "broker_configs", "counters", "buried", "features"):
        connection.execute(f"DROP TABLE {table}")


def _keys(connection: sqlite3.Connection, node_id: int, counters: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    """Iterate over the keys and values that replace the tables of layout 5."""
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
