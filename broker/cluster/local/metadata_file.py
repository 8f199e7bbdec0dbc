"""`metadata.sqlite`, in the first data directory: the store of a standalone broker, and the list of directories.

    keys, numbers    the store (`store_file`); empty in a cluster, whose store is elsewhere
    directories      the data directories at the last startup

`older_layouts` migrates files of earlier versions.
"""

import sqlite3
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.local.store_file import StoreFile, create_tables
from warmlog.broker.cluster.store import Range
from warmlog.broker.metadata.database import Database, Layout
from warmlog.broker.metadata.errors import MetadataError

LAYOUT_VERSION = 6


class MetadataFile:
    """The open file. Its methods block, and raise MetadataError."""

    def __init__(self, path: Path, node_id: int, *, release_reserve: Callable[[], bool] = lambda: False) -> None:
        """Open or create the file of a broker, and migrate it. `release_reserve`: see `Database`."""
        layout = Layout(LAYOUT_VERSION, _create, partial(_migrate, node_id))
        self.database = Database(path, layout, release_reserve=release_reserve)
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

    def clear(self) -> None:
        """Empty the store, once its contents are part of a cluster's."""
        self.database.write(lambda connection: connection.execute("DELETE FROM keys"))

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


def _create(connection: sqlite3.Connection) -> None:
    create_tables(connection)
    connection.execute("CREATE TABLE directories (id TEXT PRIMARY KEY, path TEXT NOT NULL) STRICT")


def _migrate(node_id: int, path: Path, connection: sqlite3.Connection, version: int) -> None:
    from warmlog.broker.cluster.local.older_layouts import migrate  # imported only to migrate a file

    migrate(path, connection, version, node_id)
