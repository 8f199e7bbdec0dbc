"""`metadata.sqlite`: what survives a restart, and how files of earlier versions are taken over."""

import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
import trio

from tests.broker.stored_topics import NODE_ID, lone_node, stored_topics
from warmlog.broker.cluster import admin
from warmlog.broker.cluster.local.local_store import LocalStore
from warmlog.broker.cluster.local.lone_node import LoneNode
from warmlog.broker.cluster.local.metadata_file import MetadataFile
from warmlog.broker.metadata.errors import MetadataError
from warmlog.broker.metadata.topic import Mirror, Topic

ORDERS, DOOMED = UUID("8c3d4e9a-6a4b-4a0e-9f0a-0d1c6a4b8f11"), UUID("8c3d4e9a-6a4b-4a0e-9f0a-0d1c6a4b8f12")
COPY, BURIED = UUID("8c3d4e9a-6a4b-4a0e-9f0a-0d1c6a4b8f13"), UUID("8c3d4e9a-6a4b-4a0e-9f0a-0d1c6a4b8f14")
LAYOUT_1 = f"""
CREATE TABLE topics (
    name TEXT PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    partitions INTEGER NOT NULL,
    configs TEXT NOT NULL,            -- JSON: {{setting: text}}
    deleting INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO topics VALUES ('orders', '{ORDERS}', 3, '{{"flush.ms": "10"}}', 0);
INSERT INTO topics VALUES ('doomed', '{DOOMED}', 1, '{{}}', 1);
PRAGMA user_version = 1;
"""
LAYOUT_5 = f"""
{LAYOUT_1}
CREATE TABLE broker_configs (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE counters (name TEXT PRIMARY KEY, next INTEGER NOT NULL) STRICT;
CREATE TABLE directories (id TEXT PRIMARY KEY, path TEXT NOT NULL) STRICT;
CREATE TABLE buried (id TEXT PRIMARY KEY) STRICT;   -- of a topic
CREATE TABLE features (name TEXT PRIMARY KEY, level INTEGER NOT NULL) STRICT;
ALTER TABLE topics ADD COLUMN mirror TEXT;          -- JSON: the fields of `Mirror`
INSERT INTO topics VALUES
    ('copy', '{COPY}', 2, '{{}}', 0, '{{"cluster_id": "source", "has_source_id": false, "promoted_at": [7, 0]}}');
INSERT INTO broker_configs VALUES
    ('/log.retention.ms', '1000'), ('1/log.segment.bytes', '65536'), ('group:a/b/consumer.session.timeout.ms', '5');
INSERT INTO counters VALUES ('producer_ids', 3000), ('changes', 41);
INSERT INTO directories VALUES ('one', '/a');
INSERT INTO buried VALUES ('{BURIED}');
INSERT INTO features VALUES ('transaction.version', 1);
PRAGMA user_version = 5;
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.sqlite"


def write(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def test_an_empty_file_has_no_topics_and_no_copy(path: Path) -> None:
    with closing(MetadataFile(path, NODE_ID)) as file:
        assert file.image().topics == {}
        assert file.directories() == {}
    assert [each.name for each in path.parent.iterdir()] == ["metadata.sqlite"]


def test_topics_are_the_same_after_the_file_is_reopened(path: Path) -> None:
    topics = [
        Topic(name="audit", partitions=1, configs={"segment.bytes": "1024"}),
        Topic(name="copy", partitions=2, mirror=Mirror(cluster_id="source")),
        Topic(name="old", partitions=1, mirror=Mirror(cluster_id="source", has_source_id=False)),
    ]
    promoted = Mirror(cluster_id="source", promoted_at=(7, 0))
    with stored_topics(path.parent) as stored:
        stored.create(*topics)
        stored.grow("audit", 5)
        stored.set_mirror("copy", promoted)
    with stored_topics(path.parent) as stored:
        audit, copy, old = stored.load()
    assert (audit.partitions, audit.configs, audit.id) == (5, {"segment.bytes": "1024"}, topics[0].id)
    assert (copy.mirror, old.mirror) == (promoted, topics[2].mirror)


def test_a_file_of_layout_1_is_taken_over(path: Path) -> None:
    write(path, LAYOUT_1)
    for _ in range(2):  # the second time there is nothing to migrate
        with stored_topics(path.parent) as stored:
            (orders,) = stored.load()
            assert (orders.name, orders.id, orders.partitions) == ("orders", ORDERS, 3)
            assert orders.configs == {"flush.ms": "10"}
            assert stored.deleting() == ["doomed"]
    assert (version_of(path), version_of(path.with_name("metadata.sqlite.layout1"))) == (6, 1)


async def test_a_file_of_layout_5_is_taken_over_with_all_that_is_in_it(path: Path) -> None:
    write(path, LAYOUT_5)
    with closing(MetadataFile(path, NODE_ID)) as file:
        image = file.image()
        assert {name: topic.id for name, topic in image.topics.items()} == {
            "copy": COPY,
            "doomed": DOOMED,
            "orders": ORDERS,
        }
        assert image.topics["copy"].mirror == Mirror(cluster_id="source", has_source_id=False, promoted_at=(7, 0))
        assert image.gone == {BURIED: {NODE_ID}}
        assert {scope: found.values for scope, found in image.configs.items()} == {
            "": {"log.retention.ms": "1000"},
            "1": {"log.segment.bytes": "65536"},
            "group:a/b": {"consumer.session.timeout.ms": "5"},
        }
        assert image.features.levels == {"transaction.version": 1}
        assert image.producer_ids.next_id == 3000
        assert image.revision > 41
        assert file.directories() == {"one": "/a"}
        assert await admin.take_producer_ids(lone_node(file), 10) == 3000


def test_the_copy_of_an_old_file_is_what_it_was(path: Path, tmp_path: Path) -> None:
    write(path, LAYOUT_5)
    with closing(sqlite3.connect(path)) as connection:
        before = list(connection.iterdump())
    for _ in range(2):  # the second time after going back
        MetadataFile(path, NODE_ID).close()
        kept = tmp_path / "metadata.sqlite.layout5"
        with closing(sqlite3.connect(kept)) as connection:
            assert list(connection.iterdump()) == before
        path.write_bytes(kept.read_bytes())
    assert not list(tmp_path.glob("*.part"))


def test_a_migration_that_fails_leaves_the_old_layout(path: Path) -> None:
    write(path, LAYOUT_1 + "CREATE TABLE counters (mine TEXT);")
    with pytest.raises(MetadataError, match=r"metadata\.sqlite: table counters already exists"):
        MetadataFile(path, NODE_ID)
    assert version_of(path) == 1
    with closing(sqlite3.connect(path)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert tables == {"topics", "counters"}


def test_a_newer_layout_is_rejected_by_name(path: Path) -> None:
    write(path, "PRAGMA user_version = 77")
    with pytest.raises(MetadataError, match=r"metadata\.sqlite: has layout 77, this version of warmlog supports up to"):
        MetadataFile(path, NODE_ID)


def test_a_file_that_is_not_a_database_is_rejected_by_name(path: Path) -> None:
    path.write_bytes(b"not a database, but long enough to look at" * 50)
    with pytest.raises(MetadataError, match=r"metadata\.sqlite: file is not a database"):
        MetadataFile(path, NODE_ID)


def test_directories_are_replaced_as_a_whole(path: Path) -> None:
    with closing(MetadataFile(path, NODE_ID)) as file:
        file.set_directories({"one": "/a", "two": "/b"})
        file.set_directories({"two": "/c"})
    with closing(MetadataFile(path, NODE_ID)) as file:
        assert file.directories() == {"two": "/c"}


async def test_a_topic_that_leaves_data_behind_is_marked(path: Path) -> None:
    with stored_topics(path.parent) as stored:
        stored.create(Topic(name="orders", partitions=1), Topic(name="audit", partitions=1))
        orders = stored.image.topics["orders"]
        node = lone_node(stored.file)
        assert await admin.begin_local_deletion(node, ["orders", "audit"]) == {}
        assert (stored.load(), stored.deleting()) == ([], ["audit", "orders"])
        assert await admin.finish_local_deletion(node, ["orders", "audit"], {"orders"}) == {}
    with stored_topics(path.parent) as stored:
        assert stored.image.gone == {orders.id: {NODE_ID}}
        assert stored.image.topics == {}


async def test_no_producer_id_is_allocated_twice(path: Path) -> None:
    with closing(MetadataFile(path, NODE_ID)) as file:
        node = lone_node(file)
        firsts: list[int] = []

        async def take() -> None:
            firsts.append(await admin.take_producer_ids(node, 7))

        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(take)
        assert sorted(firsts) == list(range(0, 280, 7))
    with closing(MetadataFile(path, NODE_ID)) as file:
        node = lone_node(file)
        assert await admin.take_producer_ids(node, 5) == 280
        assert await admin.take_producer_ids(node, 5, at_least=2000) == 2000
        assert await admin.take_producer_ids(node, 5, at_least=3) == 2005


async def test_an_image_of_one_broker_follows_what_is_committed(path: Path) -> None:
    with closing(MetadataFile(path, NODE_ID)) as file:
        node = LoneNode(LocalStore(file.store, kept_revisions=0), NODE_ID, file.contents(), Random(1))
        seen: list[str] = []
        node.on_change.append(lambda _, delta: seen.extend(delta.configs))
        await admin.set_configs(node, "", lambda _: {"log.retention.ms": "5"})
        assert seen == [""]
        assert node.image.configs[""].values == {"log.retention.ms": "5"}
        assert node.image.revision == file.store.revision
        assert node.image.is_active(NODE_ID)
