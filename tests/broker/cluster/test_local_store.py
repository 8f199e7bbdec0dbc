"""What a local store keeps over restarts, and what it refuses."""

import os
import shutil
import socket
import sqlite3
import stat
import struct
from pathlib import Path

import pytest
import trio

from tests.broker.cluster.conftest import local_store, open_store
from warmlog.broker.cluster.etcd.endpoints import parse_endpoints
from warmlog.broker.cluster.etcd.http import HttpClientConnection
from warmlog.broker.cluster.local.journal import Journal
from warmlog.broker.cluster.store import (
    CompactedError,
    Delete,
    KeyValue,
    LeaseExpiredError,
    Put,
    StoreError,
    StoreMismatchError,
    StoreUnavailableError,
    Transaction,
)

WRITES = Transaction((), (Put("a", b"1"), Put("b", b"2")))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


async def test_only_the_user_reaches_the_store(path: Path) -> None:
    async with local_store(path) as url:
        (endpoint,) = parse_endpoints(url)
        status, directory = os.stat(endpoint.path), os.stat(os.path.dirname(endpoint.path))
        assert stat.S_ISSOCK(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o600
        assert stat.S_IMODE(directory.st_mode) == 0o700
    assert not os.path.exists(os.path.dirname(endpoint.path))


async def test_keys_survive_a_restart_with_their_revisions(path: Path) -> None:
    async with local_store(path) as url, open_store(url, "c") as store:
        await store.commit(WRITES)
        await store.commit(Transaction((), (Put("b", b"3"), Delete("a"), Put("c", bytes(range(256))))))
        before = await store.range()
        known = store.known
    async with local_store(path) as url, open_store(url, "c", known=known) as store:
        after = await store.range()
    assert after.items == before.items
    assert after.revision > before.revision


async def test_leases_and_their_keys_end_with_the_process(path: Path) -> None:
    async with local_store(path) as url, open_store(url, "c") as store:
        lease = await store.grant(60)
        await store.commit(Transaction((), (Put("a", b"", lease), Put("b", b""))))
        await store.commit(Transaction((), (Put("b", b"", lease), Put("c", b""))))
    async with local_store(path) as url, open_store(url, "c") as store:
        assert [each.key for each in (await store.range()).items] == ["c"]
        assert await store.grant(60) != lease
        with pytest.raises(LeaseExpiredError):
            await store.keep_alive(lease)


async def test_a_watch_from_before_a_restart_reads_everything_again(path: Path) -> None:
    async with local_store(path) as url, open_store(url, "c") as store:
        revision = (await store.commit(WRITES)).revision
    async with local_store(path) as url, open_store(url, "c") as store:
        with pytest.raises(CompactedError):
            async with store.watch(revision) as watch:
                await anext(watch)


async def test_what_was_answered_is_in_the_file(path: Path, tmp_path: Path) -> None:
    async with local_store(path) as url, open_store(url, "c") as store:
        for number in range(20):
            outcome = await store.commit(Transaction((), (Put("a", str(number).encode()),)))
            copy = tmp_path / f"copy-{number}"
            copy.mkdir()
            for file in (path, path.with_name(path.name + "-wal")):
                shutil.copy(file, copy)
            journal = Journal(copy / path.name)
            journal.close()
            item = KeyValue("/warmlog/c/a", str(number).encode(), 4, outcome.revision)
            assert item in journal.contents.items
            assert journal.contents.revision == outcome.revision + 1


async def test_concurrent_transactions_share_writes(path: Path) -> None:
    async with local_store(path) as url, open_store(url, "c") as store:
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(store.commit, Transaction((), (Put(f"k{number}", b""),)))
        assert len((await store.range()).items) == 200
    async with local_store(path) as url, open_store(url, "c") as store:
        assert len((await store.range()).items) == 200


async def test_a_file_in_use_is_refused(path: Path) -> None:
    async with local_store(path):
        with pytest.raises(StoreError, match=r"store\.sqlite: database is locked \(is another process using it\?\)"):
            Journal(path)


async def test_a_file_of_another_layout_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(StoreError, match="has layout 7"):
        Journal(path)


async def test_another_file_is_another_store(path: Path, tmp_path: Path) -> None:
    async with local_store(path) as url, open_store(url, "c") as store:
        await store.range()
        known = store.known
    async with local_store(tmp_path / "other.sqlite") as url, open_store(url, "c", known=known) as store:
        with pytest.raises(StoreMismatchError):
            await store.range()


async def test_a_disk_error_ends_the_store(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StoreError("disk full")

    with pytest.RaisesGroup(pytest.RaisesExc(StoreError, match="disk full"), flatten_subgroups=True):
        async with local_store(path) as url, open_store(url, "c") as store:
            await store.range()
            monkeypatch.setattr(Journal, "write", fail)
            with pytest.raises(StoreUnavailableError, match="may have been committed"):
                await store.commit(WRITES)


@pytest.mark.parametrize(
    ("path_", "body", "status"),
    [
        ("/v3/kv/range", b"{", 400),
        ("/v3/kv/range", b'{"key": "YQ==", "range_end": "eg=="}', 400),
        ("/v3/kv/txn", b'{"success": [{}]}', 400),
        ("/v3/kv/txn", b'{"success": [{"request_put": {"key": "YQ=="}}, {"request_put": {"key": "YQ=="}}]}', 400),
        ("/v3/kv/txn", b'{"compare": [{"key": "YQ==", "target": "VALUE"}]}', 400),
        ("/v3/watch", b"{}", 400),
        ("/v3/watch", b'{"create_request": {"key": "YQ==", "range_end": "eg=="}}', 400),
        ("/v3/kv/put", b"{}", 404),
        ("/", b"", 404),
    ],
)
async def test_calls_that_are_not_served_are_refused(path: Path, path_: str, body: bytes, status: int) -> None:
    async with local_store(path) as url:
        (endpoint,) = parse_endpoints(url)
        connection = await HttpClientConnection.connect(endpoint)
        assert (await connection.post(path_, body)).status == status
        assert (await connection.post("/v3/kv/range", b'{"key": "YQ=="}')).status == 200
        connection.close()


async def test_a_watch_whose_peer_resets_the_connection_harms_nobody(path: Path) -> None:
    async with local_store(path) as url, open_store(url, "c") as store:
        (endpoint,) = parse_endpoints(url)
        stream = await trio.open_unix_socket(endpoint.path)
        body = b'{"create_request": {"key": "YS8=", "range_end": "YTA="}}'
        await stream.send_all(b"POST /v3/watch HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await stream.aclose()
        assert (await store.commit(WRITES)).succeeded
        assert len((await store.range()).items) == 2
