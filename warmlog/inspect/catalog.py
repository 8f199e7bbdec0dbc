"""Read the partitions of topics from the store of a broker or cluster, since a directory may hold only some of them.

    metadata.sqlite          of a broker, in the first of its data directories
    store.sqlite             of `serve --nodes`, above the directories `nodes/ID` of its brokers
    __cluster_metadata-0     of a Kafka node

A cluster on etcd has no such file.
"""

import shutil
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

from msgspec import DecodeError, json

from warmlog.broker.cluster.local import STORE
from warmlog.broker.cluster.values import PartitionState, TopicState
from warmlog.broker.log.io.directory_names import encode_topic_id
from warmlog.inspect.broker_state import broker_is_running
from warmlog.inspect.errors import InspectError
from warmlog.inspect.kraft import METADATA_DIRECTORY, MetadataLog
from warmlog.inspect.metadata import JOURNAL_SUFFIX, METADATA_STORE, StoredMetadata
from warmlog.protocol.errors import ProtocolError

NODES = "nodes"  # the nodes' directories of `serve --nodes`, beside their store
TRIES = 20  # attempts to copy a store without a concurrent write


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTopic:
    """A topic in a store. `replicas`: numbers of replicas of partitions with several replicas."""

    topic_id: str
    partitions: int
    replicas: Mapping[int, int] = field(default_factory=dict)


def data_directories(path: str) -> list[Path]:
    """Return the data directories in a path: several separated by commas, or those of nodes of `serve --nodes`."""
    given = [Path(path)] if Path(path).exists() else [Path(part.strip()) for part in path.split(",") if part.strip()]
    directories: list[Path] = []
    for directory in given:
        nodes = directory / NODES
        is_parent = nodes.is_dir() and not (directory / METADATA_STORE).exists()
        directories += sorted(each for each in nodes.iterdir() if each.is_dir()) if is_parent else [directory]
    return [directory.absolute() for directory in directories]


def known_topics(directories: Iterable[Path]) -> dict[str, KnownTopic]:
    """Return the topics in the stores in or above data directories. Raises InspectError, OSError."""
    stores: dict[Path, None] = {}
    for directory in directories:
        above = directory.parent.parent if directory.parent.name == NODES else directory
        for store in (directory / METADATA_STORE, above / STORE, directory / METADATA_DIRECTORY):
            if store.exists():
                stores[store] = None
    return {name: topic for store in stores for name, topic in _read(store).items()}


def _read(store: Path) -> Mapping[str, KnownTopic]:
    return _cached(store, tuple(_version(path) for path in _files(store)))


def _files(store: Path) -> Sequence[Path]:
    if store.name == METADATA_DIRECTORY:
        return sorted(each for each in store.iterdir() if each.suffix in {".log", ".checkpoint"})
    return store, store.with_name(store.name + JOURNAL_SUFFIX)


def _version(path: Path) -> tuple[str, int, int]:
    """Return a value that changes whenever the file changes."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return path.name, 0, 0
    return path.name, stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=8)  # cached, since streams call this for each micro-batch
def _cached(store: Path, _version: tuple[tuple[str, int, int], ...]) -> Mapping[str, KnownTopic]:
    try:
        if store.name == METADATA_STORE:
            return _of_broker(store)
        return _of_nodes(store) if store.name == STORE else _of_kafka(store)
    except (sqlite3.Error, DecodeError, ProtocolError, ValueError) as error:
        raise InspectError(f"{store}: {error}") from error


def _of_broker(store: Path) -> Mapping[str, KnownTopic]:
    metadata = StoredMetadata(store.parent, running=broker_is_running(store.parent))
    if metadata.topics is None:
        raise InspectError("; ".join(str(finding) for finding in metadata.findings()))
    return {
        name: KnownTopic(topic_id=encode_topic_id(topic.id), partitions=topic.partitions)
        for name, topic in metadata.topics.items()
    }


def _of_nodes(store: Path) -> Mapping[str, KnownTopic]:
    topics: dict[str, TopicState] = {}
    replicas: dict[UUID, dict[int, int]] = {}
    for key, value in _keys(store):
        match key.split("/"):
            case ["topics", name]:
                topics[name] = json.decode(value, type=TopicState)
            case ["partitions", topic_id, partition]:
                if (count := len(json.decode(value, type=PartitionState).replicas)) > 1:
                    replicas.setdefault(UUID(hex=topic_id), {})[int(partition)] = count
    return {
        name: KnownTopic(
            topic_id=encode_topic_id(topic.id),
            partitions=topic.partitions,
            replicas=replicas.get(topic.id, {}),
        )
        for name, topic in topics.items()
    }


def _keys(store: Path) -> list[tuple[str, bytes]]:
    """Read the keys and values of a store that another process may have locked."""
    with TemporaryDirectory(prefix="warmlog-") as scratch:
        copy = Path(scratch) / store.name
        for _ in range(TRIES):
            before = [_version(path) for path in _files(store)]
            for path in _files(store):
                if path.exists():
                    shutil.copyfile(path, copy.with_name(path.name))
            if before == [_version(path) for path in _files(store)]:
                with closing(sqlite3.connect(copy)) as connection:
                    return connection.execute("SELECT key, value FROM keys").fetchall()
    raise InspectError(f"{store}: changes faster than it can be copied")


def _of_kafka(store: Path) -> Mapping[str, KnownTopic]:
    log = MetadataLog(store.parent)
    return {
        name: KnownTopic(
            topic_id=encode_topic_id(topic_id),
            partitions=len(log.replicas[topic_id]),
            replicas={at: count for at, count in log.replicas[topic_id].items() if count > 1},
        )
        for topic_id, name in log.names.items()
    }


def missing_partitions(topic: KnownTopic, present: Iterable[int]) -> list[int]:
    """Return the partitions of a topic that are not among the given ones."""
    return sorted(set(range(topic.partitions)) - set(present))
