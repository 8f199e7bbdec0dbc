"""Serve a store to the brokers on one machine, over a Unix socket.

When the process ends, leases end, and the keys attached to them are deleted; brokers then register again.
"""

import logging
import socket
from functools import partial
from pathlib import Path

import msgspec
import trio

from warmlog.broker.cluster.local.frames import (
    MAX_CALL_BYTES,
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
    decode_call,
)
from warmlog.broker.cluster.local.local_store import LocalStore
from warmlog.broker.cluster.local.store_file import StoreFile, create_tables
from warmlog.broker.cluster.store import (
    CompactedError,
    InvalidTransactionError,
    LeaseExpiredError,
    StoreError,
    StoreUnavailableError,
)
from warmlog.broker.metadata.database import Database, Layout, refuse_migration
from warmlog.broker.metadata.errors import MetadataError

LAYOUT = Layout(2, create_tables, refuse_migration)

logger = logging.getLogger(__name__)


def open_store(path: Path) -> StoreFile:
    """Open or create the file of a store. Blocking. Raises StoreError."""
    try:
        return StoreFile(Database(path, LAYOUT, is_exclusive=True))
    except MetadataError as error:
        raise StoreError(str(error)) from error


async def serve_store(
    path: Path, sock: socket.socket, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve the store in a file, which is created if necessary, on a listening socket until cancelled.

    Raises StoreError if the file cannot be used, now or later.
    """
    file = await trio.to_thread.run_sync(open_store, path)
    try:
        with sock:
            store = LocalStore(file)
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.run)
                await nursery.start(partial(trio.serve_listeners, _Conversations(store).converse, [listener]))
                task_status.started()
    finally:
        file.close()


class _Conversations:
    """Answers the calls of brokers."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    async def converse(self, stream: trio.SocketStream) -> None:
        """Serve one connection. Raises StoreError if the store has failed."""
        frames = FrameStream(stream)
        try:
            async with stream:
                while (message := await frames.receive(MAX_CALL_BYTES)) is not None:
                    call = decode_call(message)
                    if isinstance(call, WatchCall):
                        await self._watch(frames, call.after_revision)
                        return
                    await frames.send(await self._answer(call))
        except* StoreUnavailableError as group:  # the broker has stopped, perhaps with unread replies
            logger.debug("local store: lost the connection of a client: %s", group.exceptions[0])
        except* (msgspec.MsgspecError, ValueError) as group:
            logger.warning("local store: closed a connection that sent an invalid message: %s", group.exceptions[0])

    async def _answer(self, call: Call) -> Reply:
        try:
            match call:
                case RangeCall():
                    contents = await self._store.range(call.prefix)
                    return self._reply(events=contents.items, revision=contents.revision)
                case CommitCall():
                    outcome = await self._store.commit(call.transaction)
                    return self._reply(succeeded=outcome.succeeded, revision=outcome.revision)
                case _:
                    return self._reply(number=await self._use_lease(call))
        except LeaseExpiredError as error:
            return self._reply(problem=Problem.LEASE_EXPIRED, message=str(error))
        except InvalidTransactionError as error:
            return self._reply(problem=Problem.INVALID, message=str(error))

    async def _use_lease(self, call: Call) -> int | float:
        """Carry out a call about a lease; return the lease id or the seconds. Raises LeaseExpiredError."""
        store = self._store
        match call:
            case GrantCall():
                return await store.grant(call.ttl_s)
            case KeepAliveCall():
                return await store.keep_alive(call.lease)
            case UnrenewedCall():
                return await store.unrenewed_s(call.lease)
            case RevokeCall():
                await store.revoke(call.lease)
                return 0
            case _:
                raise ValueError(f"unexpected call: {call}")

    async def _watch(self, frames: FrameStream, after_revision: int) -> None:
        """Report changes until the peer closes the connection."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report, frames, after_revision)
            await frames.closed()
            nursery.cancel_scope.cancel()

    async def _report(self, frames: FrameStream, after_revision: int) -> None:
        try:
            async with self._store.watch(after_revision) as watch:
                async for changes in watch:
                    await frames.send(self._reply(events=changes.events, revision=changes.revision))
        except CompactedError as error:
            await frames.send(self._reply(problem=Problem.COMPACTED, message=str(error)))

    def _reply(self, *, revision: int | None = None, **fields: object) -> Reply:
        known = self._store.known
        return Reply(known.cluster_id, known.revision if revision is None else revision, **fields)  # type: ignore[arg-type]
