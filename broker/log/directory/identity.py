"""The identity of a data directory: `meta.properties`, and the lock that makes it the directory of one broker.

Source: org.apache.kafka.metadata.properties.MetaProperties.
"""

import os
from threading import Lock
from typing import NamedTuple
from uuid import uuid4

from warmlog.broker.log.errors import DataDirectoryError
from warmlog.broker.log.io.directory_names import encode_topic_id
from warmlog.broker.log.io.disk import Disk, read_file, replace_file

LOCK_FILE = ".lock"
META_PROPERTIES = "meta.properties"
META_VERSION = "1"

# POSIX locks belong to the process, so a second broker in this process would also get the lock.
_locked: set[tuple[int, int]] = set()
_locked_guard = Lock()


class Identity(NamedTuple):
    """The cluster and node that a data directory belongs to, and its own id."""

    cluster_id: str
    node_id: int
    directory_id: str


def read_or_create_identity(disk: Disk, path: str, node_id: int, cluster_id: str | None) -> Identity:
    """Read the identity of a directory, or write that of a new one.

    `cluster_id`: None accepts the stored one, or generates one. Raises DataDirectoryError if the directory belongs to
    another version, node or cluster, and OSError.
    """
    properties = _read_properties(disk, path) or {
        "version": META_VERSION,
        "cluster.id": cluster_id or _random_id(),
        "node.id": str(node_id),
    }
    _check_properties(path, properties, node_id, cluster_id)
    if "directory.id" not in properties:  # new, or written by Kafka before 3.7
        properties["directory.id"] = _random_id()
        text = "".join(f"{key}={value}\n" for key, value in properties.items())
        replace_file(disk, f"{path}/{META_PROPERTIES}", text.encode(), sync=True)
    return Identity(properties["cluster.id"], node_id, properties["directory.id"])


def has_identity(disk: Disk, path: str) -> bool:
    """Return whether a directory already belongs to a broker. Raises OSError."""
    try:
        return bool(read_file(disk, f"{path}/{META_PROPERTIES}"))
    except FileNotFoundError:
        return False


def parse_properties(text: str) -> dict[str, str]:
    """Parse a Java properties file as Kafka's tools write it: `key=value`, comments, escaped punctuation."""
    properties = {}
    for line in text.splitlines():
        stripped = line.strip()
        key, separator, value = stripped.partition("=")
        if separator and not stripped.startswith(("#", "!")):
            properties[_unescaped(key.strip())] = _unescaped(value.strip())
    return properties


class DirectoryLock:
    """An exclusive lock on a data directory. Creating one raises DataDirectoryError if it is in use, and OSError."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.identity = disk.identity(path)
        with _locked_guard:
            if self.identity in _locked:  # before opening the file: closing it would release this process's lock
                raise _in_use(path)
            self._fd: int | None = disk.open(f"{path}/{LOCK_FILE}", os.O_RDWR | os.O_CREAT)
            if not disk.try_lock(self._fd):
                disk.close(self._fd)
                raise _in_use(path)
            _locked.add(self.identity)

    def release(self) -> None:
        """Release the lock. Idempotent. The file stays: otherwise two brokers could lock two files of the same name."""
        with _locked_guard:
            if self._fd is not None:
                self._disk.close(self._fd)
                self._fd = None
                _locked.discard(self.identity)


def _read_properties(disk: Disk, path: str) -> dict[str, str] | None:
    try:
        text = read_file(disk, f"{path}/{META_PROPERTIES}").decode("latin-1")
    except FileNotFoundError:
        return None
    return parse_properties(text)


def _check_properties(path: str, properties: dict[str, str], node_id: int, cluster_id: str | None) -> None:
    version, stored_node = properties.get("version", "0"), properties.get("node.id")
    stored_cluster = properties.get("cluster.id")
    if version != META_VERSION:
        raise DataDirectoryError(f"data directory {path} is of version {version}, not {META_VERSION}")
    if stored_node is None or not stored_cluster:
        raise DataDirectoryError(f"data directory {path}: {META_PROPERTIES} lacks node.id or cluster.id")
    if stored_node != str(node_id):
        raise DataDirectoryError(f"data directory {path} belongs to node {stored_node}, this is node {node_id}")
    if cluster_id is not None and stored_cluster != cluster_id:
        raise DataDirectoryError(f"data directory {path} belongs to cluster {stored_cluster}, not {cluster_id}")


def _unescaped(text: str) -> str:
    for mark in ":=#!\\":
        text = text.replace(f"\\{mark}", mark)
    return text


def _in_use(path: str) -> DataDirectoryError:
    return DataDirectoryError(f"data directory {path} is in use by another broker")


def _random_id() -> str:
    """Return a new id in Kafka's form. It never begins with a dash, like a command line option."""
    while (text := encode_topic_id(uuid4())).startswith("-"):
        pass
    return text
