"""A store in memory, with etcd's semantics, and faults: for tests and the simulation.

`MemoryCluster` has the contents; each client is a `MemoryStore` of its own. Faults are injected between the two: see
`Faults`. Belongs to the event loop; leases run on trio's clock.

Source: etcd's server/etcdserver/apply, server/lease and server/storage/mvcc for what happens at the edges.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import trio

from warmlog.broker.cluster.store import (
    ABSENT,
    NO_LEASE,
    Changes,
    CompactedError,
    Deleted,
    Event,
    KeyValue,
    LeaseExpiredError,
    Outcome,
    Put,
    Range,
    StoreTransaction,
)

MIN_TTL_S = 2.0  # etcd's, with its default election timeout

T = TypeVar("T")


@dataclass(slots=True)
class _Lease:
    ttl_s: float
    ends_at: float
    keys: set[str]


class MemoryCluster:
    """The contents of a store."""

    def __init__(self) -> None:
        self.revision = 1
        self.items: dict[str, KeyValue] = {}
        self.compacted = 0  # changes up to this revision are forgotten
        self._history: list[Changes] = []  # after `compacted`
        self._leases: dict[int, _Lease] = {}
        self._next_lease = 1
        self._changed = trio.Event()

    # -- keys --

    def range(self, prefix: str) -> Range:
        """Return all keys that begin with a prefix, in order."""
        self._end_leases()
        return Range(self.revision, tuple([self.items[key] for key in sorted(self.items) if key.startswith(prefix)]))

    def commit(self, transaction: StoreTransaction) -> Outcome:
        """Write all operations if all comparisons hold. Raises LeaseExpiredError."""
        self._end_leases()
        for key, revision in transaction.compares:
            found = self.items.get(key)
            if (ABSENT if found is None else found.mod_revision) != revision:
                return Outcome(succeeded=False, revision=self.revision)
        for operation in transaction.operations:
            if isinstance(operation, Put) and operation.lease != NO_LEASE and operation.lease not in self._leases:
                raise LeaseExpiredError(f"lease {operation.lease} has expired")
        revision = self.revision + 1
        events: list[Event] = []
        for operation in transaction.operations:
            if isinstance(operation, Put):
                events.append(self._put(operation, revision))
            elif operation.key in self.items:
                events.append(self._delete(operation.key))
        self._record(revision, events)
        return Outcome(succeeded=True, revision=self.revision)

    def _put(self, put: Put, revision: int) -> KeyValue:
        old = self.items.get(put.key)
        if old is not None and old.lease != NO_LEASE:
            self._leases[old.lease].keys.discard(put.key)
        if put.lease != NO_LEASE:
            self._leases[put.lease].keys.add(put.key)
        created = revision if old is None else old.create_revision
        item = self.items[put.key] = KeyValue(put.key, put.value, created, revision, put.lease)
        return item

    def _delete(self, key: str) -> Deleted:
        item = self.items.pop(key)
        if item.lease != NO_LEASE:
            self._leases[item.lease].keys.discard(key)
        return Deleted(key)

    def _record(self, revision: int, events: list[Event]) -> None:
        """Publish the changes of a transaction; one that wrote nothing has no revision."""
        if events:
            self.revision = revision
            self._history.append(Changes(revision, tuple(events)))
            self._changed.set()
            self._changed = trio.Event()

    # -- changes --

    def compact(self, revision: int) -> None:
        """Forget the changes up to a revision."""
        self.compacted = max(self.compacted, revision)
        self._history = [changes for changes in self._history if changes.revision > self.compacted]

    def changes_after(self, revision: int) -> list[Changes]:
        """Return the changes after a revision. Raises CompactedError."""
        if revision < self.compacted:
            raise CompactedError(f"changes up to revision {self.compacted} are no longer kept")
        first = len(self._history)
        while first and self._history[first - 1].revision > revision:
            first -= 1
        return self._history[first:]

    async def changed(self) -> None:
        """Return after the next change, which may be the end of a lease."""
        ends_at = min([lease.ends_at for lease in self._leases.values()], default=float("inf"))
        with trio.move_on_at(ends_at):
            await self._changed.wait()
        self._end_leases()

    # -- leases --

    def grant(self, ttl_s: float) -> int:
        """Create a lease."""
        ttl_s = max(ttl_s, MIN_TTL_S)
        lease, self._next_lease = self._next_lease, self._next_lease + 1
        self._leases[lease] = _Lease(ttl_s, trio.current_time() + ttl_s, set())
        return lease

    def keep_alive(self, lease: int) -> float:
        """Renew a lease. Raises LeaseExpiredError."""
        self._end_leases()
        found = self._leases.get(lease)
        if found is None:
            raise LeaseExpiredError(f"lease {lease} has expired")
        found.ends_at = trio.current_time() + found.ttl_s
        return found.ttl_s

    def lifetime(self, lease: int) -> tuple[float, float]:
        """Return how long a lease lasts after each renewal, and from now on. Raises LeaseExpiredError."""
        self._end_leases()
        found = self._leases.get(lease)
        if found is None:
            raise LeaseExpiredError(f"lease {lease} has expired")
        return found.ttl_s, found.ends_at - trio.current_time()

    def revoke(self, lease: int) -> None:
        """End a lease, and delete its keys."""
        found = self._leases.pop(lease, None)
        if found is not None:
            events: list[Event] = []
            for key in sorted(found.keys):
                self.items.pop(key)
                events.append(Deleted(key))
            self._record(self.revision + 1, events)

    def expire_all(self) -> None:
        """End all leases before their time, as etcd does when it loses track of them (etcd#15247)."""
        for lease in list(self._leases):
            self.revoke(lease)

    def _end_leases(self) -> None:
        now = trio.current_time()
        for lease, found in list(self._leases.items()):
            if found.ends_at <= now:
                self.revoke(lease)


class Faults:
    """What lies between a client and the store. The defaults do no harm.

    `before` and `after` run around each call: they may wait, or raise StoreUnavailableError. After an error of `after`
    the call has had its effect all the same. `before_changes` runs before a watch reports changes; an error from it
    breaks the watch.
    """

    async def before(self) -> None:
        """Run before a call takes effect."""
        await trio.lowlevel.checkpoint()

    async def after(self) -> None:
        """Run after a call has taken effect, before its answer."""

    async def before_changes(self) -> None:
        """Run before changes are reported."""
        await trio.lowlevel.checkpoint()


class MemoryStore:
    """One client's access to a `MemoryCluster`: a `Store`."""

    def __init__(self, cluster: MemoryCluster, faults: Faults | None = None) -> None:
        self._cluster = cluster
        self._faults = faults or Faults()

    async def range(self, prefix: str = "") -> Range:
        """Return all keys that begin with a prefix."""
        return await self._call(lambda: self._cluster.range(prefix))

    async def commit(self, transaction: StoreTransaction) -> Outcome:
        """Commit a transaction if its comparisons hold."""
        return await self._call(lambda: self._cluster.commit(transaction))

    async def grant(self, ttl_s: float) -> int:
        """Create a lease."""
        return await self._call(lambda: self._cluster.grant(ttl_s))

    async def keep_alive(self, lease: int) -> float:
        """Renew a lease."""
        return await self._call(lambda: self._cluster.keep_alive(lease))

    async def unrenewed_s(self, lease: int) -> float:
        """Return the time since a lease was renewed, in seconds."""
        ttl_s, left_s = await self._call(lambda: self._cluster.lifetime(lease))
        return ttl_s - left_s

    async def revoke(self, lease: int) -> None:
        """End a lease."""
        await self._call(lambda: self._cluster.revoke(lease))

    async def _call(self, call: Callable[[], T]) -> T:
        await self._faults.before()
        result = call()
        await self._faults.after()
        return result

    @asynccontextmanager
    async def watch(self, after_revision: int) -> AsyncIterator[AsyncIterator[Changes]]:
        """Iterate over all changes after a revision."""
        async with aclosing(self._changes(after_revision, self._faults.before_changes)) as changes:
            yield changes

    async def _changes(self, revision: int, before: Callable[[], Awaitable[None]]) -> AsyncGenerator[Changes, None]:
        while True:
            found = self._cluster.changes_after(revision)
            if not found:
                await self._cluster.changed()
                continue
            await before()
            for changes in found:
                yield changes
                revision = changes.revision
