import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from warmlog.broker.metadata.sqlite import LAYOUT_VERSION, SqliteMetadataStore
from warmlog.broker.metadata.store import MetadataError
from warmlog.broker.metadata.topic import Mirror, Topic


def test_topics_are_the_same_after_the_store_is_reopened(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    store = SqliteMetadataStore(path)
    orders = Topic(name="orders", partitions=3, configs={"segment.bytes": "1024"})
    store.create_topics([orders])
    store.create_topics([Topic(name="audit", partitions=1)])
    store.set_partitions("audit", 5)
    store.set_configs("audit", {"flush.ms": "10"})
    store.close()
    store = SqliteMetadataStore(path)
    audit, again = store.load()
    assert again == orders
    assert (audit.name, audit.partitions, audit.configs) == ("audit", 5, {"flush.ms": "10"})
    store.close()


def test_the_source_of_a_mirrored_topic_is_kept_until_and_after_its_promotion(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    store = SqliteMetadataStore(path)
    topics = [
        Topic(name="copy", partitions=2, mirror=Mirror(cluster_id="source")),
        Topic(name="old", partitions=1, mirror=Mirror(cluster_id="source", has_source_id=False)),
        Topic(name="own", partitions=1),
    ]
    store.create_topics(topics)
    assert store.load() == topics
    promoted = Mirror(cluster_id="source", promoted_at=(7, 0))
    store.set_mirror("copy", promoted)
    store.close()
    store = SqliteMetadataStore(path)
    assert [topic.mirror for topic in store.load()] == [promoted, topics[1].mirror, None]
    store.close()


def test_a_topic_being_deleted_is_hidden_until_its_deletion_finishes(tmp_path: Path) -> None:
    store = SqliteMetadataStore(tmp_path / "metadata.sqlite")
    store.create_topics([Topic(name="orders", partitions=3)])
    store.begin_delete(["orders"])
    assert store.load() == []
    assert [topic.name for topic in store.deleting()] == ["orders"]
    store.finish_delete(["orders"])
    assert store.deleting() == []
    store.close()


def test_an_unknown_layout_is_rejected_by_name(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 77")
    connection.close()
    with pytest.raises(MetadataError, match=r"metadata\.sqlite: has layout 77, this version of warmlog supports up to"):
        SqliteMetadataStore(path)


def test_a_file_that_is_not_a_database_is_rejected_by_name(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    path.write_bytes(b"not a database, but long enough to look at" * 50)
    with pytest.raises(MetadataError, match=r"metadata\.sqlite: file is not a database"):
        SqliteMetadataStore(path)


LAYOUT_1 = """
CREATE TABLE topics (
    name TEXT PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    partitions INTEGER NOT NULL,
    configs TEXT NOT NULL,            -- JSON: {setting: text}
    deleting INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO topics VALUES ('orders', '8c3d4e9a-6a4b-4a0e-9f0a-0d1c6a4b8f11', 3, '{"flush.ms": "10"}', 0);
INSERT INTO topics VALUES ('doomed', '8c3d4e9a-6a4b-4a0e-9f0a-0d1c6a4b8f12', 1, '{}', 1);
PRAGMA user_version = 1;
"""


def test_a_store_of_layout_1_is_migrated_and_keeps_its_topics(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(LAYOUT_1)
    for _ in range(2):  # the second time there is nothing to migrate
        with closing(SqliteMetadataStore(path)) as store:
            (orders,), (doomed,) = store.load(), store.deleting()
            assert (orders.name, orders.partitions, orders.configs) == ("orders", 3, {"flush.ms": "10"})
            assert str(orders.id) == "8c3d4e9a-6a4b-4a0e-9f0a-0d1c6a4b8f11"
            assert doomed.name == "doomed"
            assert store.broker_configs() == {}
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (LAYOUT_VERSION,)


def test_a_migration_that_fails_leaves_the_old_layout(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(LAYOUT_1 + "CREATE TABLE counters (mine TEXT);")
    with pytest.raises(MetadataError, match=r"metadata\.sqlite: table counters already exists"):
        SqliteMetadataStore(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert tables == {"topics", "counters"}


def test_dynamic_broker_settings_are_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    with closing(SqliteMetadataStore(path)) as store:
        store.set_broker_configs({"log.retention.ms": "1000", "log.segment.bytes": "65536"})
        store.set_broker_configs({"log.retention.ms": "2000"})
        assert store.broker_configs() == {"log.retention.ms": "2000"}
    with closing(SqliteMetadataStore(path)) as store:
        assert store.broker_configs() == {"log.retention.ms": "2000"}


def test_directories_are_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    with closing(SqliteMetadataStore(path)) as store:
        assert store.directories() == {}
        store.set_directories({"one": "/a", "two": "/b"})
        store.set_directories({"two": "/c"})
    with closing(SqliteMetadataStore(path)) as store:
        assert store.directories() == {"two": "/c"}


def test_a_topic_that_leaves_data_behind_is_buried(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    orders, audit = Topic(name="orders", partitions=1), Topic(name="audit", partitions=1)
    with closing(SqliteMetadataStore(path)) as store:
        for topic in (orders, audit):
            store.create_topics([topic])
            store.begin_delete([topic.name])
        store.finish_delete(["orders"], leaving_data=["orders"])
        store.finish_delete(["audit"])
    with closing(SqliteMetadataStore(path)) as store:
        assert store.buried() == {orders.id}
        assert store.deleting() == []


def test_no_producer_id_is_allocated_twice(tmp_path: Path) -> None:
    path = tmp_path / "metadata.sqlite"
    with closing(SqliteMetadataStore(path)) as store:
        assert [store.take_producer_ids(1000), store.take_producer_ids(10)] == [0, 1000]
    with closing(SqliteMetadataStore(path)) as store:
        assert store.take_producer_ids(5) == 1010
        assert store.take_producer_ids(5, at_least=2000) == 2000
        assert store.take_producer_ids(5, at_least=3) == 2005


def test_concurrent_workers_allocate_disjoint_producer_ids(tmp_path: Path) -> None:
    with closing(SqliteMetadataStore(tmp_path / "metadata.sqlite")) as store, ThreadPoolExecutor(4) as workers:
        firsts = sorted(workers.map(lambda _: store.take_producer_ids(7), range(40)))
    assert firsts == list(range(0, 280, 7))
