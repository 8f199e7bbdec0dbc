import sqlite3
from pathlib import Path

import pytest

from broker.metadata.sqlite import SqliteMetadataStore
from broker.metadata.store import MetadataError
from broker.metadata.topic import Topic


def test_what_was_said_is_there_after_opening_again(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    store = SqliteMetadataStore(path)
    orders = Topic(name="orders", partitions=3, configs={"segment.bytes": "1024"})
    store.create_topic(orders)
    store.create_topic(Topic(name="audit", partitions=1))
    store.set_partitions("audit", 5)
    store.set_configs("audit", {"flush.ms": "10"})
    store.close()
    store = SqliteMetadataStore(path)
    audit, again = store.load()
    assert again == orders
    assert (audit.name, audit.partitions, audit.configs) == ("audit", 5, {"flush.ms": "10"})
    store.close()


def test_a_topic_being_deleted_is_gone_for_users_until_it_is_forgotten(tmp_path: Path) -> None:
    store = SqliteMetadataStore(tmp_path / "metadata.sqlite")
    store.create_topic(Topic(name="orders", partitions=3))
    store.begin_delete("orders")
    assert store.load() == []
    assert [topic.name for topic in store.deleting()] == ["orders"]
    store.finish_delete("orders")
    assert store.deleting() == []
    store.close()


def test_a_layout_of_another_version_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 77")
    connection.close()
    with pytest.raises(MetadataError, match=r"metadata\.sqlite: written by another version \(layout 77"):
        SqliteMetadataStore(path)


def test_a_file_that_is_no_database_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    path.write_bytes(b"not a database, but long enough to look at" * 50)
    with pytest.raises(MetadataError, match=r"metadata\.sqlite: file is not a database"):
        SqliteMetadataStore(path)
