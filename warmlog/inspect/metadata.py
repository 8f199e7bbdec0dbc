"""Read `metadata.sqlite` without modifying it: check that it is sound, and list its topics.

1. Nothing is written beside it. SQLite creates journals even for reading, so a copy is read, which is made with
   SQLite's
backup API if the database is in use, otherwise by copying the file and its journal.
2. SQLite has no checksums: a changed byte in a text is detected only if the text becomes invalid.
"""

import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from struct import Struct
from tempfile import TemporaryDirectory
from urllib.parse import quote

from warmlog.broker.cluster.local.metadata_file import MetadataFile
from warmlog.broker.cluster.store import StoreError
from warmlog.broker.metadata.errors import MetadataError
from warmlog.broker.metadata.topic import Topic
from warmlog.broker.settings.topics import check_setting_name
from warmlog.broker.settings.types import SettingError
from warmlog.inspect.findings import Finding
from warmlog.protocol.partitions import TopicPartition

METADATA_STORE = "metadata.sqlite"
JOURNAL_SUFFIX = "-wal"
PAGE_FIELDS = Struct(">16xH10xI")  # page size in bytes (1: 65,536), number of pages
NO_NODE = -1  # for reading without a node's deleted topics
MAX_FAULTS = 20  # maximum faults reported for one file


class StoredMetadata:
    """A data directory's metadata. `topics` is None if there is no store or it cannot be read."""

    def __init__(self, directory: Path, *, running: bool) -> None:
        """Read the store. Raises OSError."""
        self.path = directory / METADATA_STORE
        self.topics: dict[str, Topic] | None = None
        self.deleting: set[str] = set()
        self._faults: list[str] = []
        if self.path.exists():
            with TemporaryDirectory(prefix="warmlog-") as scratch:
                try:
                    self._read(Path(scratch) / METADATA_STORE, running=running)
                except (sqlite3.Error, MetadataError, StoreError, ValueError) as error:
                    self._faults.append(str(error).removeprefix(f"{Path(scratch) / METADATA_STORE}: "))

    def _read(self, copy: Path, *, running: bool) -> None:
        if running:
            uri = f"file:{quote(str(self.path.absolute()))}?mode=ro"
            with closing(sqlite3.connect(uri, uri=True)) as live, closing(sqlite3.connect(copy)) as target:
                live.backup(target)
        else:
            shutil.copyfile(self.path, copy)
            journal = self.path.with_name(METADATA_STORE + JOURNAL_SUFFIX)
            if journal.exists():
                shutil.copyfile(journal, copy.with_name(journal.name))
            else:
                self._faults += size_faults(copy)
        self._faults += integrity_faults(copy)
        if not self._faults:
            with closing(MetadataFile(copy, NO_NODE)) as file:
                known = file.image().topics.items()
            self.topics = {name: topic.named(name) for name, topic in known if topic.is_live}
            self.deleting = {name for name, topic in known if not topic.is_live}

    def findings(self) -> Iterator[Finding]:
        """Report faults of the store."""
        for fault in self._faults:
            yield Finding(self.path, fault)
        for topic in (self.topics or {}).values():
            for name in topic.configs:
                try:
                    check_setting_name(name)
                except SettingError as error:
                    yield Finding(self.path, f"topic {topic.name}: {error}")

    def is_gapless(self, topic: str) -> bool:
        """Return whether a topic is known and not compacted, so that none of its offsets may be missing."""
        known = None if self.topics is None else self.topics.get(topic)
        return known is not None and "compact" not in known.configs.get("cleanup.policy", "delete")


def size_faults(path: Path) -> list[str]:
    """Check that a database without a journal has the size in its header; SQLite does not check it. Raises OSError.

    Source: https://www.sqlite.org/fileformat2.html, 1.3.
    """
    size = path.stat().st_size
    head = path.read_bytes()[: PAGE_FIELDS.size]
    if len(head) < PAGE_FIELDS.size:
        return [f"{size} bytes are too few for a database header"]
    page_size, pages = PAGE_FIELDS.unpack(head)
    expected = (page_size if page_size > 1 else 1 << 16) * pages
    return [] if size == expected else [f"file has {size} bytes, but its header says {expected}"]


def integrity_faults(path: Path) -> list[str]:
    """Run SQLite's integrity check. Raises sqlite3.Error if the file is not a database."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(f"PRAGMA integrity_check({MAX_FAULTS})").fetchall()
    return [str(row[0]) for row in rows if row[0] != "ok"]


def missing_partition_findings(
    stored: Sequence[StoredMetadata], paths: Mapping[TopicPartition, Path], topic_ids: Mapping[Path, object]
) -> Iterator[Finding]:
    """Check that every partition of the stored topics has a directory with the topic's id.

    A directory without a topic is not a finding (its topic may be created later), nor is one that is being deleted.
    """
    for metadata in stored:
        for topic in (metadata.topics or {}).values():
            for index in range(topic.partitions):
                path = paths.get((topic.name, index))
                if path is None:
                    yield Finding(metadata.path, f"topic {topic.name}: partition {index} has no directory")
                elif topic_ids.get(path) not in {None, topic.id}:
                    yield Finding(
                        path / "partition.metadata", f"topic id is {topic_ids[path]}, but the metadata say {topic.id}"
                    )
