"""What a local store keeps over restarts, and what it refuses."""

import logging
import os
import select
import shutil
import sqlite3
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.broker.cluster.conftest import local_store, open_socket
from warmlog.broker.cluster.local.frames import FrameStream, RangeCall
from warmlog.broker.cluster.local.local_store import KEPT_REVISIONS, LocalStore
from warmlog.broker.cluster.local.server import open_store
from warmlog.broker.cluster.local.socket_store import SocketStore
from warmlog.broker.cluster.local.store_file import StoreFile
from warmlog.broker.cluster.store import (
    Changes,
    CompactedError,
    Delete,
    Deleted,
    KeyValue,
    KnownStore,
    LeaseExpiredError,
    Outcome,
    Put,
    StoreError,
    StoreMismatchError,
    StoreTransaction,
    StoreUnavailableError,
)
from warmlog.broker.metadata.errors import MetadataError

Opened = Callable[..., LocalStore]
WRITES = StoreTransaction((), (Put("a", b"1"), Put("b", b"2")))


@asynccontextmanager
async def local_client_at(url: str, known: KnownStore | None = None) -> AsyncIterator[SocketStore]:
    store = open_socket(url, known)
    try:
        yield store
    finally:
        store.close()


@asynccontextmanager
async def local_client(path: Path, known: KnownStore | None = None) -> AsyncIterator[SocketStore]:
    """Serve the store in a file, and connect to it."""
    async with local_store(path) as url, local_client_at(url, known) as store:
        yield store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sqlite"


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens stores, and closes them."""
    with ExitStack() as stack:

        def open_one(path: Path, kept_revisions: int = KEPT_REVISIONS) -> LocalStore:
            store = LocalStore(open_store(path), kept_revisions=kept_revisions)
            stack.callback(store.close)
            return store

        yield open_one


async def test_only_the_user_reaches_the_store(path: Path) -> None:
    async with local_store(path) as url:
        path_ = url.removeprefix("unix://")
        status, directory = os.stat(path_), os.stat(os.path.dirname(path_))
        assert stat.S_ISSOCK(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o600
        assert stat.S_IMODE(directory.st_mode) == 0o700
    assert not os.path.exists(os.path.dirname(path_))


async def test_keys_survive_a_restart_with_their_revisions(path: Path) -> None:
    async with local_client(path) as store:
        await store.commit(WRITES)
        await store.commit(StoreTransaction((), (Put("b", b"3"), Delete("a"), Put("c", bytes(range(256))))))
        before = await store.range()
        known = store.known
    async with local_client(path, known) as store:
        after = await store.range()
    assert after == before


async def test_leases_and_their_keys_end_with_the_process(path: Path) -> None:
    async with local_client(path) as store:
        lease = await store.grant(60)
        await store.commit(StoreTransaction((), (Put("a", b"", lease), Put("b", b""))))
        await store.commit(StoreTransaction((), (Put("b", b"", lease), Put("c", b""))))
    async with local_client(path) as store:
        assert [each.key for each in (await store.range()).items] == ["c"]
        assert await store.grant(60) != lease
        with pytest.raises(LeaseExpiredError):
            await store.keep_alive(lease)


async def test_a_watch_from_before_a_restart_reads_everything_again(path: Path) -> None:
    async with local_client(path) as store:
        revision = (await store.commit(WRITES)).revision
    async with local_client(path) as store:
        with pytest.raises(CompactedError):
            async with store.watch(revision - 1) as watch:
                await anext(watch)


async def test_what_was_answered_is_in_the_file(path: Path, tmp_path: Path) -> None:
    async with local_client(path) as store:
        for number in range(20):
            outcome = await store.commit(StoreTransaction((), (Put("a", str(number).encode()),)))
            copy = tmp_path / f"copy-{number}"
            copy.mkdir()
            for file in (path, path.with_name(path.name + "-wal")):
                shutil.copy(file, copy)
            opened = open_store(copy / path.name)
            assert opened.items() == [KeyValue("a", str(number).encode(), 2, outcome.revision)]
            assert opened.revision == outcome.revision
            opened.close()


async def test_concurrent_transactions_share_writes(path: Path) -> None:
    async with local_client(path) as store:
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(store.commit, StoreTransaction((), (Put(f"k{number}", b""),)))
        assert len((await store.range()).items) == 200
    async with local_client(path) as store:
        assert len((await store.range()).items) == 200


async def test_a_file_in_use_is_refused(path: Path) -> None:
    async with local_store(path):
        with pytest.raises(StoreError, match=r"store\.sqlite: database is locked \(is another process using it\?\)"):
            open_store(path)


async def test_a_file_of_a_newer_layout_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(StoreError, match="has layout 7"):
        open_store(path)


async def test_another_file_is_another_store(path: Path, tmp_path: Path) -> None:
    async with local_client(path) as store:
        await store.range()
        known = store.known
    async with local_client(tmp_path / "other.sqlite", known) as store:
        with pytest.raises(StoreMismatchError):
            await store.range()


async def test_a_store_that_went_back_is_refused(path: Path) -> None:
    async with local_client(path) as store:
        await store.commit(WRITES)
        assert store.known is not None
        known = store.known._replace(revision=store.known.revision + 1)
    async with local_client(path, known) as store:
        with pytest.raises(StoreMismatchError, match="the store is at revision 2 and was at 3"):
            await store.range()


async def test_a_transaction_that_changes_nothing_has_no_revision(path: Path) -> None:
    async with local_client(path) as store:
        before = (await store.range()).revision
        assert await store.commit(StoreTransaction((), (Delete("a"),))) == Outcome(succeeded=True, revision=before)


async def test_a_watch_that_lags_too_far_reads_everything_again(opened: Opened, path: Path) -> None:
    store = opened(path, kept_revisions=2)
    for _ in range(3):
        await store.commit(WRITES)
    with pytest.raises(CompactedError):
        async with store.watch(1) as watch:
            await anext(watch)
    async with store.watch(2) as watch:
        assert [(await anext(watch)).revision, (await anext(watch)).revision] == [3, 4]


async def test_leases_end_on_time(opened: Opened, path: Path, mock_clock: MockClock) -> None:
    store = opened(path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run)
        lease = await store.grant(10)
        await store.commit(StoreTransaction((), (Put("a", b"", lease),)))
        mock_clock.jump(6)
        await store.keep_alive(lease)
        mock_clock.jump(9)
        assert len((await store.range()).items) == 1
        mock_clock.jump(1)
        async with store.watch(2) as watch:
            assert await anext(watch) == Changes(3, (Deleted("a"),))
        nursery.cancel_scope.cancel()


async def test_a_cancelled_transaction_is_committed_whole_or_not_at_all(opened: Opened, path: Path) -> None:
    store = opened(path)
    for _ in range(20):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.commit, WRITES)
                nursery.start_soon(store.commit, StoreTransaction((), (Put("c", b""),)))
                await trio.lowlevel.checkpoint()
                scope.cancel()
        found = {item.key: item.mod_revision for item in (await store.range()).items}
        assert found.get("a") == found.get("b")
        await store.commit(StoreTransaction((), (Delete("a"), Delete("b"))))


async def test_a_disk_error_ends_the_store(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MetadataError("disk full")

    with pytest.RaisesGroup(pytest.RaisesExc(StoreError, match="disk full"), flatten_subgroups=True):
        async with local_client(path) as store:
            await store.range()
            monkeypatch.setattr(StoreFile, "commit", fail)
            with suppress(StoreUnavailableError):
                await store.commit(WRITES)
            await trio.sleep_forever()


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\1x", b"\0\0\0\2\x91\x01", b"\0"])
async def test_what_is_not_a_call_closes_the_connection(path: Path, sent: bytes) -> None:
    async with local_store(path) as url:
        async with await trio.open_unix_socket(url.removeprefix("unix://")) as stream:
            await stream.send_all(sent)
            await stream.send_eof()
            assert await stream.receive_some() == b""
        async with local_client_at(url) as store:
            assert (await store.commit(WRITES)).succeeded


async def test_transactions_that_etcd_would_refuse_are_refused(opened: Opened, path: Path) -> None:
    store = opened(path)
    for operations in ((Put("a", b""), Delete("a")), tuple(Put(f"k{number}", b"") for number in range(129))):
        with pytest.raises(StoreError, match="too many operations, or writes a key twice"):
            await store.commit(StoreTransaction((), operations))


async def test_a_watch_whose_peer_closes_harms_nobody(path: Path) -> None:
    async with local_client(path) as store:
        async with store.watch(1) as watch:
            await store.commit(WRITES)
            await anext(watch)
        assert (await store.commit(WRITES)).succeeded
        assert len((await store.range()).items) == 2


async def test_a_broker_that_leaves_without_its_reply_is_no_warning(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with local_store(path) as url:
        async with await trio.open_unix_socket(url.removeprefix("unix://")) as stream:
            await FrameStream(stream).send(RangeCall(""))
            while not select.select([stream.socket.fileno()], [], [], 0)[0]:
                await trio.lowlevel.checkpoint()  # the reply is there, and stays unread: the store reads a reset
        async with local_client_at(url) as store:
            assert (await store.commit(WRITES)).succeeded
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
