"""How the client of etcd meets failures, restarts and mistakes."""

import shutil
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.broker.cluster.conftest import PROMPT, open_store
from tests.broker.cluster.etcd_process import EtcdProcess, etcd
from warmlog.broker.cluster.etcd import gateway
from warmlog.broker.cluster.etcd.endpoints import EtcdEndpoint, Timeouts, parse_endpoints
from warmlog.broker.cluster.etcd.etcd_store import EtcdStore
from warmlog.broker.cluster.store import (
    Changes,
    CompactedError,
    Compare,
    KeyValue,
    Put,
    Store,
    StoreError,
    StoreMismatchError,
    StoreTransaction,
    StoreUnavailableError,
)
from warmlog.broker.metrics.registry import Metrics

ONE_WRITE = StoreTransaction((), (Put("a", b""),))


@pytest.fixture
def three_members(tmp_path: Path) -> Iterator[Sequence[EtcdProcess]]:
    with etcd(tmp_path, members=3) as members:
        yield members


def urls(members: Sequence[EtcdProcess]) -> str:
    return ",".join(member.url for member in members)


async def commit_soon(store: Store) -> int:
    """Commit until a transaction is known to be committed, and return its revision."""
    while True:
        try:
            return (await store.commit(ONE_WRITE)).revision
        except StoreUnavailableError:
            await trio.lowlevel.checkpoint()


async def revisions_up_to(watch: AsyncIterator[Changes], revision: int) -> list[int]:
    """Return the revisions of the keys that a watch reports."""
    seen: list[int] = []
    async for changes in watch:
        seen += [event.mod_revision for event in changes.events if isinstance(event, KeyValue)]
        if changes.revision >= revision:
            return seen
    raise AssertionError


# -- endpoints --


def test_endpoints_are_urls_separated_by_commas() -> None:
    assert parse_endpoints("http://a:1, http://[::1]:2,http://c/") == (
        EtcdEndpoint("a", 1),
        EtcdEndpoint("::1", 2),
        EtcdEndpoint("c", 2379),
    )
    assert str(EtcdEndpoint("::1", 2)) == "http://[::1]:2"
    assert [str(each) for each in parse_endpoints("https://a,https://[::1]:2")] == ["https://a:2379", "https://[::1]:2"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no endpoint"),
        (" , ", "no endpoint"),
        ("a:2379", "write it like"),
        ("ftp://a", "write it like"),
        ("http://", "write it like"),
        ("unix://", "write it like"),
        ("unix://store", "write it like"),
        ("http://a:port", "write it like"),
        ("http://a:99999", "write it like"),
        ("http://a/v3", "write it like"),
        ("http://user:secret@a", "set warmlog.cluster.etcd.user"),
        ("http://user:secret@[a", "set warmlog.cluster.etcd.user"),
        ("http://a,https://b", "write https:// for all endpoints or for none"),
        ("http://a,http://a:2379", "given twice"),
    ],
)
def test_a_bad_list_of_endpoints_is_explained_in_one_line(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        parse_endpoints(text)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


# -- one endpoint that fails --


async def test_a_refused_connection_names_the_endpoint() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))  # and does not listen
        port = sock.getsockname()[1]
        async with open_store(f"http://127.0.0.1:{port}", "c") as store:
            with pytest.raises(StoreUnavailableError) as caught:
                await store.range()
    assert str(caught.value) == f"http://127.0.0.1:{port}: cannot connect: Connection refused"


async def test_an_unknown_host_names_the_endpoint() -> None:
    async with open_store("http://etcd.invalid:2379", "c") as store:
        with pytest.raises(StoreUnavailableError, match=r"^http://etcd\.invalid:2379: cannot connect: "):
            await store.grant(1)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            "HTTP 404 to /v3/kv/range: is this etcd 3.4 or newer?",
        ),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", "not a response of etcd"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "connection lost"),
        (b"", "connection lost"),
    ],
)
async def test_a_server_that_is_not_etcd_is_named(answer: bytes, why: str) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(answer)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        serve_tcp = partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
        (listener,) = await nursery.start(serve_tcp)
        async with open_store(f"http://127.0.0.1:{listener.socket.getsockname()[1]}", "c") as store:
            with pytest.raises(StoreUnavailableError) as caught:
                await store.range()
            assert why in str(caught.value)
        nursery.cancel_scope.cancel()


async def test_an_etcd_that_is_frozen_times_out(own_etcd: EtcdProcess) -> None:
    async with open_store(own_etcd.url, "c", timeouts=Timeouts(1, 1, 1, 1)) as store:
        await store.range()
        own_etcd.freeze()
        with pytest.raises(StoreUnavailableError, match=r"no response in 1 s"):
            await store.range()
        with pytest.raises(StoreUnavailableError, match=r"no (connection|response) in"):
            await store.commit(ONE_WRITE)
        own_etcd.thaw()
        assert await commit_soon(store)


async def test_a_transaction_without_a_response_may_have_been_committed(own_etcd: EtcdProcess) -> None:
    are_lost = False

    async def relay(client: trio.SocketStream) -> None:
        """Pass on requests, each with its response, unless responses are lost."""
        server = await trio.open_tcp_stream("127.0.0.1", int(own_etcd.url.rpartition(":")[2]))
        async with client, server:
            while request := await client.receive_some():
                await server.send_all(request)
                response = await server.receive_some()
                if are_lost:
                    return
                await client.send_all(response)

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, relay, 0, host="127.0.0.1"))
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        async with open_store(url, "c") as store, open_store(own_etcd.url, "c") as other:
            await store.range()
            are_lost = True
            with pytest.raises(
                StoreUnavailableError, match=r"connection lost: .*; the transaction may have been committed"
            ):
                await store.commit(ONE_WRITE)
            assert [each.key for each in (await other.range()).items] == ["a"]
        nursery.cancel_scope.cancel()


async def test_calls_and_failures_are_counted(own_etcd: EtcdProcess) -> None:
    metrics = Metrics()
    async with EtcdStore(parse_endpoints(own_etcd.url), "c", metrics=metrics) as store:
        await store.range()
        await store.commit(ONE_WRITE)
        await store.commit(StoreTransaction((Compare("a", 1),), ()))
        own_etcd.kill()
        with pytest.raises(StoreUnavailableError):
            await store.grant(5)
    assert sum(metrics.cluster_store_seconds.labels("commit").counts) == 2
    assert sum(metrics.cluster_store_seconds.labels("grant").counts) == 0
    assert metrics.cluster_store_errors.labels("grant").value == 1
    assert metrics.cluster_store_errors.labels("commit").value == 0


# -- cancelled calls --


async def test_a_cancelled_call_does_not_disturb_the_next_one(own_etcd: EtcdProcess) -> None:
    async with open_store(own_etcd.url, "c") as store:
        await store.commit(ONE_WRITE)
        for _ in range(20):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(store.range)
                    await trio.lowlevel.checkpoint()
                    scope.cancel()
            assert [each.key for each in (await store.range()).items] == ["a"]


# -- restarts and failovers --


async def test_a_client_and_its_watch_survive_a_restart_of_etcd(own_etcd: EtcdProcess) -> None:
    async with open_store(own_etcd.url, "c", timeouts=PROMPT) as store:
        begin = await commit_soon(store)
        async with store.watch(begin) as watch:
            first = await commit_soon(store)
            before = await revisions_up_to(watch, first)
            own_etcd.kill()
            own_etcd.start()
            committed = [await commit_soon(store) for _ in range(3)]
            seen = before + await revisions_up_to(watch, committed[-1])
            assert {first, *committed} <= set(seen)
            assert seen == sorted(set(seen))


async def test_a_client_and_its_watch_survive_the_death_of_each_member(three_members: Sequence[EtcdProcess]) -> None:
    async with open_store(urls(three_members), "c") as store:
        begin = await commit_soon(store)
        lease = await store.grant(60)
        async with store.watch(begin) as watch:
            for member in three_members:
                member.kill()
                await commit_soon(store)
                member.start()
                await store.keep_alive(lease)
            last = await commit_soon(store)
            seen = await revisions_up_to(watch, last)
            assert seen[-1] == last
            assert seen == sorted(set(seen))


async def test_a_watch_leaves_a_frozen_member(three_members: Sequence[EtcdProcess]) -> None:
    async with open_store(urls(three_members), "c", timeouts=PROMPT) as store:
        begin = await commit_soon(store)
        async with store.watch(begin) as watch:
            await revisions_up_to(watch, await commit_soon(store))
            three_members[0].freeze()
            last = await commit_soon(store)
            seen = await revisions_up_to(watch, last)
            assert seen[-1] == last
            assert seen == sorted(set(seen))


async def test_a_watch_reports_revisions_that_only_others_have_written(own_etcd: EtcdProcess) -> None:
    async with open_store(own_etcd.url, "c", timeouts=PROMPT) as store, open_store(own_etcd.url, "other") as other:
        begin = await commit_soon(store)
        async with store.watch(begin) as watch:
            revision = await commit_soon(other)
            changes = await anext(watch)
        assert changes.events == ()
        assert changes.revision > revision
        assert [each.key for each in (await store.range()).items] == ["a"]


async def test_a_watch_of_forgotten_changes_fails(own_etcd: EtcdProcess) -> None:
    async with open_store(own_etcd.url, "c") as store:
        revisions = [await commit_soon(store) for _ in range(3)]
        await store._client.call(gateway.COMPACT, gateway.CompactRequest(revisions[-1]), gateway.HeaderResponse)
        with pytest.raises(CompactedError):
            async with store.watch(revisions[0]) as watch:
                await anext(watch)


# -- the wrong etcd --


async def test_a_client_started_again_knows_its_etcd(own_etcd: EtcdProcess) -> None:
    async with open_store(own_etcd.url, "c") as store:
        revision = await commit_soon(store)
        known = store.known
    assert known is not None
    assert known.revision == revision
    async with open_store(own_etcd.url, "c", known=known) as store:
        assert (await store.range()).revision == revision


async def test_another_etcd_is_refused(own_etcd: EtcdProcess, session_etcd: EtcdProcess) -> None:
    async with open_store(own_etcd.url, "c") as store:
        await store.range()
        known = store.known
    async with open_store(session_etcd.url, "c", known=known) as store:
        with pytest.raises(StoreMismatchError, match="give the endpoints of the etcd that this Kafka cluster has used"):
            await store.range()


async def test_endpoints_of_two_etcds_are_refused(own_etcd: EtcdProcess, session_etcd: EtcdProcess) -> None:
    async with open_store(f"{own_etcd.url},{session_etcd.url}", "c") as store:
        with pytest.raises(StoreMismatchError):
            await store.range()


async def test_an_etcd_that_was_wiped_is_refused(own_etcd: EtcdProcess) -> None:
    async with open_store(own_etcd.url, "c", timeouts=PROMPT) as store:
        revision = await commit_soon(store)
        async with store.watch(revision) as watch:
            own_etcd.kill()
            own_etcd.wipe()
            own_etcd.start()
            with pytest.raises(StoreMismatchError, match="it was wiped, or restored from a backup"):
                await store.range()
            with pytest.raises(StoreMismatchError):
                await anext(watch)
        known = store.known
    async with open_store(own_etcd.url, "other") as other:
        while (await other.commit(ONE_WRITE)).revision < revision:
            pass
    async with open_store(own_etcd.url, "c", known=known) as store:
        with pytest.raises(StoreMismatchError, match="has no data of this Kafka cluster"):
            await store.range()


async def test_an_etcd_restored_from_an_older_state_is_refused(own_etcd: EtcdProcess, tmp_path: Path) -> None:
    async with open_store(own_etcd.url, "c") as store:
        await commit_soon(store)
    own_etcd.kill()
    shutil.copytree(own_etcd.data, tmp_path / "backup")
    own_etcd.start()
    async with open_store(own_etcd.url, "c") as store:
        await commit_soon(store)
        known = store.known
    own_etcd.kill()
    own_etcd.wipe()
    shutil.copytree(tmp_path / "backup", own_etcd.data)
    own_etcd.start()
    async with open_store(own_etcd.url, "c", known=known) as store:
        with pytest.raises(StoreMismatchError, match="restored from a backup that lacks decisions"):
            await store.range()


async def test_a_transaction_that_is_too_large_is_refused(own_etcd: EtcdProcess) -> None:
    async with open_store(own_etcd.url, "c") as store:
        with pytest.raises(StoreError, match="request is too large"):
            await store.commit(StoreTransaction((), (Put("a", bytes(1_600_000)),)))
        assert (await store.range()).items == ()
