"""A `Store` that another process on this machine serves over a Unix socket (`server`).

Each running call has a connection of its own; idle connections are reused. A call whose connection is lost fails; it
may have taken effect.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import trio

from warmlog.broker.cluster.local.frames import (
    Call,
    CommitCall,
    FrameStream,
    GrantCall,
    KeepAliveCall,
    Problem,
    RangeCall,
    Reply,
    RevokeCall,
    UnrenewedCall,
    WatchCall,
    decode_reply,
)
from warmlog.broker.cluster.store import (
    Changes,
    CompactedError,
    InvalidTransactionError,
    KeyValue,
    KnownStore,
    LeaseExpiredError,
    Outcome,
    Range,
    StoreMismatchError,
    StoreTransaction,
    StoreUnavailableError,
)
from warmlog.broker.cluster.store_metrics import measured
from warmlog.broker.metrics.registry import Metrics

SCHEME = "unix://"
CALL_TIMEOUT_S = 5.0  # the other process may be frozen
MAX_CALLS = 16  # concurrent calls: each has a connection


class SocketStore:
    """A client of the store. Belongs to the event loop."""

    def __init__(self, path: str, *, metrics: Metrics, known: KnownStore | None = None) -> None:
        """Use the store at a socket. `known`: the store used before, as `known` was then."""
        self.known = known
        self._path = path
        self._metrics = metrics
        self._idle: list[FrameStream] = []
        self._calls = trio.CapacityLimiter(MAX_CALLS)

    def close(self) -> None:
        """Close the connections."""
        while self._idle:
            self._idle.pop().close()

    async def range(self, prefix: str = "") -> Range:
        """Return all keys that begin with a prefix, including every transaction answered before the call."""
        reply = await self._call("range", RangeCall(prefix))
        return Range(reply.revision, tuple([each for each in reply.events if isinstance(each, KeyValue)]))

    async def commit(self, transaction: StoreTransaction) -> Outcome:
        """Commit a transaction if its comparisons hold. Raises LeaseExpiredError."""
        reply = await self._call("commit", CommitCall(transaction))
        return Outcome(reply.succeeded, reply.revision)

    async def grant(self, ttl_s: float) -> int:
        """Create a lease."""
        return int((await self._call("grant", GrantCall(ttl_s))).number)

    async def keep_alive(self, lease: int) -> float:
        """Renew a lease. Raises LeaseExpiredError."""
        return (await self._call("keep_alive", KeepAliveCall(lease))).number

    async def unrenewed_s(self, lease: int) -> float:
        """Return how long ago a lease was last renewed. Raises LeaseExpiredError."""
        return (await self._call("time_to_live", UnrenewedCall(lease))).number

    async def revoke(self, lease: int) -> None:
        """End a lease, and delete its keys."""
        await self._call("revoke", RevokeCall(lease))

    @asynccontextmanager
    async def watch(self, after_revision: int) -> AsyncIterator[AsyncIterator[Changes]]:
        """Iterate over all changes after a revision. The iterator raises CompactedError."""
        async with aclosing(self._changes(after_revision)) as changes:
            yield changes

    async def _changes(self, after_revision: int) -> AsyncGenerator[Changes, None]:
        frames = await self._connect()
        try:
            await frames.send(WatchCall(after_revision))
            while True:
                reply = await self._receive(frames)
                yield Changes(reply.revision, reply.events)
        finally:
            frames.close()

    async def _call(self, name: str, call: Call) -> Reply:
        async with self._calls:
            with measured(self._metrics, name):
                return await self._call_once(call)

    async def _call_once(self, call: Call) -> Reply:
        at_least = 0 if self.known is None else self.known.revision
        frames = self._idle.pop() if self._idle else await self._connect()
        is_whole = False
        try:
            with trio.fail_after(CALL_TIMEOUT_S):
                await frames.send(call)
                reply = await self._receive(frames, at_least)
            is_whole = True
        except trio.TooSlowError:
            raise StoreUnavailableError(f"{self._path}: no answer within {CALL_TIMEOUT_S:.0f} s") from None
        except (LeaseExpiredError, InvalidTransactionError):
            is_whole = True
            raise
        finally:
            if is_whole:
                self._idle.append(frames)
            else:
                frames.close()
                self.close()  # the other process may have ended
        return reply

    async def _connect(self) -> FrameStream:
        try:
            with trio.fail_after(CALL_TIMEOUT_S):
                return FrameStream(await trio.open_unix_socket(self._path))
        except (OSError, trio.TooSlowError) as error:
            raise StoreUnavailableError(f"cannot connect to {self._path}: {error}") from None

    async def _receive(self, frames: FrameStream, at_least: int = 0) -> Reply:
        """Return the next reply. Raises StoreError."""
        message = await frames.receive()
        if message is None:
            raise StoreUnavailableError(f"{self._path}: connection closed")
        reply = decode_reply(message)
        self._check(reply, at_least)
        if reply.problem is Problem.COMPACTED:
            raise CompactedError(reply.message)
        if reply.problem is Problem.LEASE_EXPIRED:
            raise LeaseExpiredError(reply.message)
        if reply.problem is not None:
            raise InvalidTransactionError(reply.message)
        return reply

    def _check(self, reply: Reply, at_least: int) -> None:
        """Advance `known`. Raises StoreMismatchError for another store, or one whose revision is lower than before."""
        known = self.known or KnownStore(reply.store_id, f"{reply.store_id:x}", 0)
        if reply.store_id != known.cluster_id:
            raise StoreMismatchError(f"{self._path} is the store of other brokers, not the one used so far")
        if reply.revision < at_least:
            raise StoreMismatchError(
                f"the store is at revision {reply.revision} and was at {at_least}: it was replaced, or restored from a "
                "copy that lacks decisions already carried out; restore its latest state"
            )
        self.known = known._replace(revision=max(known.revision, reply.revision))
