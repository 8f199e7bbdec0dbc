"""A `Store` in this process. Transactions become visible when they are on the disk.

Transactions that arrive while the disk is busy are written together. Leases are counted in memory: when the process
ends, they end, and the keys attached to them are deleted.
"""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from math import inf
from random import Random
from typing import NamedTuple, TypeVar

import trio

from warmlog.broker.cluster.local.store_file import Committed, Result, StoreFile
from warmlog.broker.cluster.store import (
    MAX_OPERATIONS,
    Changes,
    CompactedError,
    InvalidTransactionError,
    KnownStore,
    LeaseExpiredError,
    Outcome,
    Range,
    StoreError,
    StoreTransaction,
)
from warmlog.broker.metadata.errors import MetadataError

MIN_TTL_S = 2.0  # the shortest lease: etcd's, with its default election timeout
KEPT_REVISIONS = 10_000  # changes kept for watches that resume

T = TypeVar("T")


class _Lease(NamedTuple):
    ttl_s: float
    ends_at: float  # on trio's clock


class _Wish:
    """A transaction waiting to be committed, and its result."""

    __slots__ = ("result", "transaction")

    def __init__(self, transaction: StoreTransaction) -> None:
        self.transaction = transaction
        self.result: Result | StoreError | None = None


class LocalStore:
    """A store in a file. Belongs to the event loop. Every call raises StoreError if the file cannot be used."""

    def __init__(self, file: StoreFile, *, kept_revisions: int = KEPT_REVISIONS) -> None:
        """Serve the contents of a file. Leases end only while `run` runs."""
        self._file = file
        self._compacted = file.revision  # changes up to this revision are no longer kept
        self._history: deque[Changes] = deque(maxlen=kept_revisions)  # after `_compacted`
        self._changed = trio.Event()
        self._waiting: list[_Wish] = []
        self._writing = trio.Lock()
        self._leases: dict[int, _Lease] = {}
        self._granted = trio.Event()
        self.on_changes: list[Callable[[Changes], None]] = []  # called with every change, before the commit returns
        self._random = Random()  # noqa: S311  # ids of leases, which no earlier process may have used

    @property
    def known(self) -> KnownStore:
        """The store's identity and revision."""
        return KnownStore(self._file.store_id, f"{self._file.store_id:x}", self._file.revision)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    async def run(self) -> None:
        """End leases that expire, until cancelled."""
        while True:
            granted = self._granted
            with trio.move_on_at(min([lease.ends_at for lease in self._leases.values()], default=inf)):
                await granted.wait()
            await self._end_due()

    # -- keys --

    async def range(self, prefix: str = "") -> Range:
        """Return all keys that begin with a prefix."""
        await self._end_due()
        async with self._writing:
            items = await self._in_worker(lambda: self._file.items(prefix))
            return Range(self._file.revision, tuple(items))

    async def commit(self, transaction: StoreTransaction) -> Outcome:
        """Commit a transaction if its comparisons hold. Raises LeaseExpiredError."""
        keys = [operation.key for operation in transaction.operations]
        if max(len(keys), len(transaction.compares)) > MAX_OPERATIONS or len(set(keys)) < len(keys):
            raise InvalidTransactionError("a transaction has too many operations, or writes a key twice")
        await self._end_due()
        wish = _Wish(transaction)
        self._waiting.append(wish)
        try:
            async with self._writing:
                if wish.result is None:
                    await self._commit_waiting()
        finally:
            if wish in self._waiting:
                self._waiting.remove(wish)
        assert wish.result is not None
        if isinstance(wish.result, StoreError):
            raise wish.result
        return wish.result

    async def _commit_waiting(self) -> None:
        """Commit the waiting transactions, including those of cancelled callers."""
        wishes, self._waiting = self._waiting, []
        transactions = [wish.transaction for wish in wishes]
        try:
            committed = await self._write(lambda: self._file.commit(transactions, self._leases))
        except StoreError as error:
            for wish in wishes:
                wish.result = StoreError(str(error))
        else:
            for wish, result in zip(wishes, committed.results, strict=True):
                wish.result = result

    async def _write(self, write: Callable[[], Committed]) -> Committed:
        """Write to the file while `_writing` is held, and publish the changes. Raises StoreError."""
        with trio.CancelScope(shield=True):
            committed = await self._in_worker(write)
        for changes in committed.changes:
            if len(self._history) == self._history.maxlen:
                self._compacted = self._history[0].revision if self._history else changes.revision
            self._history.append(changes)
            for listener in self.on_changes:
                listener(changes)
        if committed.changes:
            self._changed.set()
            self._changed = trio.Event()
        return committed

    async def _in_worker(self, work: Callable[[], T]) -> T:
        try:
            return await trio.to_thread.run_sync(work)
        except MetadataError as error:
            raise StoreError(str(error)) from error

    # -- changes --

    @asynccontextmanager
    async def watch(self, after_revision: int) -> AsyncIterator[AsyncIterator[Changes]]:
        """Iterate over all changes after a revision. The iterator raises CompactedError."""
        async with aclosing(self._changes(after_revision)) as changes:
            yield changes

    async def _changes(self, revision: int) -> AsyncGenerator[Changes, None]:
        while True:
            if revision < self._compacted:
                raise CompactedError(f"changes up to revision {self._compacted} are no longer kept")
            changed, history = self._changed, self._history
            first = len(history)
            while first and history[first - 1].revision > revision:
                first -= 1
            if first == len(history):
                await changed.wait()
                continue
            for changes in [history[index] for index in range(first, len(history))]:
                yield changes
                revision = changes.revision

    # -- leases --

    async def grant(self, ttl_s: float) -> int:
        """Create a lease."""
        await trio.lowlevel.checkpoint()
        ttl_s = max(ttl_s, MIN_TTL_S)
        lease = self._random.getrandbits(62) + 1
        self._leases[lease] = _Lease(ttl_s, trio.current_time() + ttl_s)
        self._granted.set()
        self._granted = trio.Event()
        return lease

    async def keep_alive(self, lease: int) -> float:
        """Renew a lease. Raises LeaseExpiredError."""
        await self._end_due()
        ttl_s = self._lasting(lease).ttl_s
        self._leases[lease] = _Lease(ttl_s, trio.current_time() + ttl_s)
        return ttl_s

    async def unrenewed_s(self, lease: int) -> float:
        """Return how long ago a lease was last renewed. Raises LeaseExpiredError."""
        await self._end_due()
        held = self._lasting(lease)
        return held.ttl_s - (held.ends_at - trio.current_time())

    async def revoke(self, lease: int) -> None:
        """End a lease, and delete its keys."""
        async with self._writing:
            await self._end([lease])

    def _lasting(self, lease: int) -> _Lease:
        held = self._leases.get(lease)
        if held is None:
            raise LeaseExpiredError(f"lease {lease} has expired")
        return held

    async def _end_due(self) -> None:
        await trio.lowlevel.checkpoint()
        if any(lease.ends_at <= trio.current_time() for lease in self._leases.values()):
            async with self._writing:
                now = trio.current_time()
                await self._end([number for number, lease in self._leases.items() if lease.ends_at <= now])

    async def _end(self, leases: list[int]) -> None:
        ended = [lease for lease in leases if self._leases.pop(lease, None) is not None]
        if ended:
            await self._write(lambda: self._file.end_leases(ended))
