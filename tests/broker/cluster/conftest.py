"""Stores for tests: an etcd for the whole session, a cluster's name of its own for each test."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest

from broker.cluster.etcd.endpoints import Timeouts, parse_endpoints
from broker.cluster.etcd.etcd_store import EtcdStore
from broker.cluster.store import KnownStore
from broker.metrics.registry import Metrics
from tests.broker.cluster.etcd_process import EtcdProcess, etcd

UNHURRIED = Timeouts()
PROMPT = Timeouts(connect_s=1, attempt_s=1, commit_s=1, quiet_s=0.1)


def open_store(url: str, cluster: str, *, known: KnownStore | None = None, timeouts: Timeouts = UNHURRIED) -> EtcdStore:
    """Return a client of the etcd at an URL."""
    endpoints = parse_endpoints(url)
    return EtcdStore(endpoints, cluster, metrics=Metrics(), known=known, timeouts=timeouts, random=Random(1))


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


@pytest.fixture
async def etcd_client(session_etcd: EtcdProcess) -> AsyncIterator[Callable[[], EtcdStore]]:
    """Opens clients of one cluster's keys in the shared etcd."""
    cluster = uuid4().hex
    with ExitStack() as stack:

        def opened() -> EtcdStore:
            store = open_store(session_etcd.url, cluster)
            stack.callback(store.close)
            return store

        yield opened
