"""Stores for tests: an etcd for the whole session, a cluster's name of its own for each test."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest
import trio

from tests.broker.cluster.etcd_process import EtcdProcess, etcd
from warmlog.broker.cluster.etcd.account import Account
from warmlog.broker.cluster.etcd.endpoints import Timeouts, parse_endpoints
from warmlog.broker.cluster.etcd.etcd_store import EtcdStore
from warmlog.broker.cluster.local.private_socket import private_socket, url_of
from warmlog.broker.cluster.local.server import serve_store
from warmlog.broker.cluster.local.socket_store import SCHEME, SocketStore
from warmlog.broker.cluster.store import KeyValue, KnownStore, Put, Store, StoreTransaction
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.security.client_tls import ClientTls

UNHURRIED = Timeouts()
PROMPT = Timeouts(connect_s=1, attempt_s=1, commit_s=1, quiet_s=0.5)  # etcd sends late events after 0.1 s


def open_store(
    url: str,
    cluster: str,
    *,
    tls: ClientTls | None = None,
    account: Account | None = None,
    known: KnownStore | None = None,
    timeouts: Timeouts = UNHURRIED,
) -> EtcdStore:
    """Return a client of the etcd at an URL."""
    endpoints = parse_endpoints(url)
    return EtcdStore(
        endpoints,
        cluster,
        metrics=Metrics(),
        tls=tls,
        account=account,
        known=known,
        timeouts=timeouts,
        random=Random(1),
    )


@pytest.fixture(scope="session")
def session_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    """An etcd that all tests of the session share."""
    with etcd(tmp_path_factory.mktemp("etcd")) as (member,):
        yield member


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[EtcdProcess]:
    """An etcd that the test may kill."""
    with etcd(tmp_path) as (member,):
        yield member


@asynccontextmanager
async def local_store(path: Path) -> AsyncIterator[str]:
    """Serve a local store, and yield its URL."""
    with private_socket() as sock:
        url = url_of(sock)
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_store, path, sock)
            yield url
            nursery.cancel_scope.cancel()


def open_socket(url: str, known: KnownStore | None = None) -> SocketStore:
    """Return a client of a local store."""
    return SocketStore(url.removeprefix(SCHEME), metrics=Metrics(), known=known)


@pytest.fixture(params=["etcd", "local"])
async def client(
    request: pytest.FixtureRequest, session_etcd: EtcdProcess, tmp_path: Path
) -> AsyncIterator[Callable[[], Store]]:
    """Opens clients of one cluster's keys in each kind of store."""
    cluster = uuid4().hex
    async with AsyncExitStack() as stack:
        url = ""
        if request.param == "local":
            url = await stack.enter_async_context(local_store(tmp_path / "store.sqlite"))

        def opened() -> Store:
            store = open_socket(url) if url else open_store(session_etcd.url, cluster)
            stack.callback(store.close)
            return store

        yield opened


async def use_every_call(store: Store) -> None:
    """Read, write, watch, and hold a lease for a moment."""
    begin = (await store.range()).revision
    async with store.watch(begin) as watch:
        outcome = await store.commit(StoreTransaction((), (Put("a", b"1"),)))
        changes = await anext(watch)
    assert [each.key for each in changes.events if isinstance(each, KeyValue)] == ["a"]
    assert changes.revision == outcome.revision
    lease = await store.grant(60)
    assert await store.keep_alive(lease) == 60
    await store.revoke(lease)
