"""All stores answer random calls as etcd does: same outcomes, revisions, errors and changes."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from tests.broker.cluster.conftest import local_store, open_socket, open_store
from tests.broker.cluster.etcd_process import EtcdProcess, etcd
from tests.broker.cluster.memory import MemoryCluster, MemoryStore
from warmlog.broker.cluster.local.local_store import LocalStore
from warmlog.broker.cluster.local.server import open_store as open_file
from warmlog.broker.cluster.store import (
    ABSENT,
    NO_LEASE,
    Compare,
    Delete,
    Deleted,
    Event,
    LeaseExpiredError,
    Operation,
    Outcome,
    Put,
    Range,
    Store,
    StoreTransaction,
)

KEYS = ("a", "a/1", "a/2", "b", "b/1")
CALLS = 60


@pytest.fixture(scope="module")
def module_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdProcess]:
    """An etcd whose revisions only this module advances."""
    directory: Path = tmp_path_factory.mktemp("etcd")
    with etcd(directory) as (member,):
        yield member


class Replica:
    """One of the stores. Revisions and leases are counted from the same beginning in all of them."""

    def __init__(self, store: Store, begin: int) -> None:
        self.store = store
        self._begin = begin
        self._leases = [NO_LEASE]

    async def run(self, call: str, *arguments: Any) -> Any:
        """Call the store, and return what it returned or raised."""
        try:
            return await getattr(self, call)(*arguments)
        except LeaseExpiredError:
            return LeaseExpiredError

    async def range(self, prefix: str) -> Range:
        revision, items = await self.store.range(prefix)
        return Range(revision - self._begin, tuple(map(self._relative, items)))

    async def commit(self, transaction: StoreTransaction) -> Outcome:
        compares = tuple(
            Compare(key, revision if revision == ABSENT else revision + self._begin)
            for key, revision in transaction.compares
        )
        operations = tuple(
            replace(each, lease=self._leases[each.lease]) if isinstance(each, Put) else each
            for each in transaction.operations
        )
        outcome = await self.store.commit(StoreTransaction(compares, operations))
        return outcome._replace(revision=outcome.revision - self._begin)

    async def grant(self, ttl_s: float) -> None:
        self._leases.append(await self.store.grant(ttl_s))

    async def keep_alive(self, lease: int) -> float:
        return await self.store.keep_alive(self._leases[lease])

    async def revoke(self, lease: int) -> None:
        await self.store.revoke(self._leases[lease])

    async def changes(self, after_revision: int, revision: int) -> list[Event]:
        """Return all events between two revisions."""
        found: list[Event] = []
        async with self.store.watch(after_revision + self._begin) as watch:
            async for changes in watch:
                found += map(self._relative, changes.events)
                if changes.revision >= revision + self._begin:
                    return found
        raise AssertionError

    async def close(self) -> None:
        for lease in self._leases[1:]:
            await self.store.revoke(lease)

    def _relative(self, event: Any) -> Any:
        if isinstance(event, Deleted):
            return event
        return replace(
            event,
            create_revision=event.create_revision - self._begin,
            mod_revision=event.mod_revision - self._begin,
            lease=self._leases.index(event.lease),
        )


def random_call(random: Random, leases: int, revision: int) -> tuple[Any, ...]:
    """Return the name of a call, and its arguments."""
    match random.choices(("commit", "range", "grant", "revoke", "keep_alive"), (10, 3, 1, 1, 1))[0]:
        case "commit":
            compared = random.sample(KEYS, random.choice((0, 1, 1, 2)))
            compares = tuple(
                Compare(key, random.choice((ABSENT, random.randint(max(1, revision - 6), max(1, revision)))))
                for key in compared
            )
            written = random.sample(KEYS, random.choice((0, 1, 1, 2, 3)))
            return "commit", StoreTransaction(compares, tuple(random_operation(random, key, leases) for key in written))
        case "range":
            return "range", random.choice(("", "a", "a/", "b/", "c"))
        case "grant":
            return "grant", 60
        case call:
            return call, random.randint(1, leases) if leases else 0


def random_operation(random: Random, key: str, leases: int) -> Operation:
    if random.random() < 0.3:
        return Delete(key)
    return Put(key, random.randbytes(3), random.choice((NO_LEASE, random.randint(0, leases))))


@pytest.fixture
async def replicas(
    module_etcd: EtcdProcess, request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[Replica, ...]]:
    """The store in memory, the one on SQLite in this process and behind a socket, and etcd."""
    own = LocalStore(await trio.to_thread.run_sync(open_file, tmp_path / "own.sqlite"))
    async with (
        open_store(module_etcd.url, request.node.name) as real,
        local_store(tmp_path / "store.sqlite") as url,
    ):
        served = open_socket(url)
        stores: tuple[Store, ...] = MemoryStore(MemoryCluster()), own, served, real
        found = tuple([Replica(store, (await store.range()).revision) for store in stores])
        yield found
        for each in found:
            await each.close()
        served.close()
        own.close()


@pytest.mark.parametrize("seed", range(20))
async def test_random_calls_have_equal_answers(seed: int, replicas: tuple[Replica, ...]) -> None:
    random = Random(seed)
    memory, *others = replicas
    leases = revision = 0
    for _ in range(CALLS):
        call = random_call(random, leases, revision)
        answer = await memory.run(*call)
        for other in others:
            assert await other.run(*call) == answer, (call, other.store)
        leases += call[0] == "grant"
        revision = (await memory.range("")).revision
    contents = await memory.range("")
    last = await memory.commit(StoreTransaction((), (Put("end", b""),)))
    begin = random.randint(0, revision)
    changes = await memory.changes(begin, last.revision)
    for other in others:
        assert await other.range("") == contents
        assert await other.commit(StoreTransaction((), (Put("end", b""),))) == last
        assert await other.changes(begin, last.revision) == changes
