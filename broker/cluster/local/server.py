"""Serve a store to the brokers on one machine, which call it as they call etcd.

Served is what `broker.cluster.etcd` sends. Ranges are answered whole, whatever their limit. Leases end with the
process, and so do the keys attached to them: its brokers register again.
"""

import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from http import HTTPStatus
from math import floor
from pathlib import Path
from typing import Any, TypeAlias

import h11
import msgspec
import trio

from warmlog.broker.cluster.etcd import gateway
from warmlog.broker.cluster.local.durable import DurableCluster
from warmlog.broker.cluster.local.http import HttpServerConnection
from warmlog.broker.cluster.local.journal import Journal
from warmlog.broker.cluster.store import (
    MAX_OPERATIONS,
    Changes,
    CompactedError,
    Compare,
    Delete,
    Deleted,
    Event,
    KeyValue,
    LeaseExpiredError,
    Operation,
    Put,
    Transaction,
)

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 2 << 20  # of a request: etcd's limit of 1.5 MiB, as base64

Answer: TypeAlias = Callable[[Any], Awaitable[msgspec.Struct]]


class RefusedCallError(Exception):
    """A call is not valid. `str()` is the message of the response."""


async def serve_store(
    path: Path, sock: socket.socket, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve the store in a file, which is created if necessary, on a listening socket until cancelled.

    Raises StoreError if the file cannot be used, now or later.
    """
    journal = await trio.to_thread.run_sync(Journal, path)
    try:
        with sock:
            cluster = DurableCluster(journal)
            server = StoreServer(cluster, journal.contents.cluster_id)
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cluster.run)
                await nursery.start(partial(trio.serve_listeners, server.converse, [listener]))
                task_status.started()
    finally:
        journal.close()


class StoreServer:
    """Answers calls of etcd's JSON gateway."""

    def __init__(self, cluster: DurableCluster, cluster_id: int) -> None:
        self._cluster = cluster
        self._memory = cluster.memory
        self._cluster_id = cluster_id
        self._calls: dict[str, tuple[type[msgspec.Struct], Answer]] = {
            gateway.RANGE: (gateway.RangeRequest, self._range),
            gateway.TXN: (gateway.TxnRequest, self._txn),
            gateway.GRANT: (gateway.GrantRequest, self._grant),
            gateway.KEEP_ALIVE: (gateway.LeaseRequest, self._keep_alive),
            gateway.REVOKE: (gateway.LeaseRequest, self._revoke),
            gateway.TIME_TO_LIVE: (gateway.LeaseRequest, self._time_to_live),
        }

    async def converse(self, stream: trio.SocketStream) -> None:
        """Serve one connection. An error closes this connection only."""
        connection = HttpServerConnection(stream, MAX_BODY_BYTES)
        try:
            async with stream:
                while (request := await connection.next_request()) is not None:
                    if request.body is None:
                        await connection.respond(*_error(gateway.INVALID_ARGUMENT, "etcdserver: request is too large"))
                    elif request.path == gateway.WATCH:
                        await self._watch(connection, request.body)
                    else:
                        await connection.respond(*await self._answer(request.path, request.body))
        except* (trio.BrokenResourceError, h11.ProtocolError) as lost:  # a watch is reported by a task of its own
            logger.debug("store: connection lost: %s", lost.exceptions)

    async def _answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Return the status and the body of a response."""
        call = self._calls.get(path)
        if call is None:
            return HTTPStatus.NOT_FOUND, b"Not Found\n"
        message, answer = call
        try:
            response = await answer(gateway.decode(body, message))
        except LeaseExpiredError:
            return _error(gateway.NOT_FOUND, f"etcdserver: {gateway.LEASE_NOT_FOUND}")
        except (RefusedCallError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            return _error(gateway.INVALID_ARGUMENT, str(error))
        return HTTPStatus.OK, gateway.encode(response)

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def _range(self, request: gateway.RangeRequest) -> gateway.RangeResponse:
        key = request.key.decode()
        if not request.range_end:
            items = tuple([self._memory.items[key]] if key in self._memory.items else ())
        else:
            items = self._memory.range(_prefix(request.key, request.range_end)).items
        header = await self._durable_header()
        return gateway.RangeResponse(header, [_wire_item(each) for each in items])

    async def _txn(self, request: gateway.TxnRequest) -> gateway.TxnResponse:
        outcome = self._memory.commit(_transaction(request))
        return gateway.TxnResponse(await self._durable_header(), outcome.succeeded)

    async def _grant(self, request: gateway.GrantRequest) -> gateway.LeaseResponse:
        lease = self._memory.grant(request.ttl)
        return gateway.LeaseResponse(self._header(), lease, round(self._memory.keep_alive(lease)))

    async def _keep_alive(self, request: gateway.LeaseRequest) -> gateway.Line[gateway.LeaseResponse]:
        try:
            ttl = round(self._memory.keep_alive(request.id))
        except LeaseExpiredError:
            ttl = 0
        return gateway.Line(gateway.LeaseResponse(self._header(), request.id, ttl))

    async def _revoke(self, request: gateway.LeaseRequest) -> gateway.HeaderResponse:
        self._memory.keep_alive(request.id)  # raises LeaseExpiredError
        self._memory.revoke(request.id)
        return gateway.HeaderResponse(await self._durable_header())

    async def _time_to_live(self, request: gateway.LeaseRequest) -> gateway.TimeToLiveResponse:
        try:
            ttl_s, left_s = self._memory.lifetime(request.id)
        except LeaseExpiredError:
            return gateway.TimeToLiveResponse(self._header(), -1)
        return gateway.TimeToLiveResponse(self._header(), floor(left_s), round(ttl_s))

    async def _durable_header(self) -> gateway.Header:
        """Return a header with the revision of memory, once that is on the disk."""
        header = gateway.Header(self._cluster_id, self._memory.revision)
        await self._cluster.until_durable()
        return header

    def _header(self) -> gateway.Header:
        return gateway.Header(self._cluster_id, self._cluster.revision)

    # -- watches -------------------------------------------------------------------------------------------------------

    async def _watch(self, connection: HttpServerConnection, body: bytes) -> None:
        """Report changes until the peer closes the connection."""
        try:
            request = gateway.decode(body, gateway.WatchRequest).create_request
            prefix = _prefix(request.key, request.range_end)
        except (RefusedCallError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            await connection.respond(*_error(gateway.INVALID_ARGUMENT, str(error)))
            return
        await connection.begin_response()
        await connection.send(_line(gateway.WatchResponse(self._header(), created=True)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report, connection, prefix, request.start_revision - 1)
            await connection.closed()
            nursery.cancel_scope.cancel()

    async def _report(self, connection: HttpServerConnection, prefix: str, after_revision: int) -> None:
        try:
            async with aclosing(self._cluster.changes(after_revision)) as reported:
                async for changes in reported:
                    events = _wire_events(changes, prefix)
                    if events:
                        await connection.send(_line(gateway.WatchResponse(self._header(), events=events)))
        except CompactedError:
            response = gateway.WatchResponse(self._header(), canceled=True, compact_revision=self._memory.compacted + 1)
            await connection.send(_line(response))


def _prefix(key: bytes, end: bytes) -> str:
    """Return the prefix of all keys in a range. Raises RefusedCallError."""
    if not key or end != gateway.range_end(key):
        raise RefusedCallError("only ranges of all keys with a prefix are served")
    return key.decode()


def _transaction(request: gateway.TxnRequest) -> Transaction:
    """Return the store's transaction. Raises RefusedCallError."""
    if max(len(request.compare), len(request.success)) > MAX_OPERATIONS:
        raise RefusedCallError("etcdserver: too many operations in txn request")
    if request.failure or any((each.target, each.result) != ("MOD", "EQUAL") for each in request.compare):
        raise RefusedCallError("only comparisons of revisions, and no operations after a failure, are served")
    operations = tuple(map(_operation, request.success))
    if len({operation.key for operation in operations}) < len(operations):
        raise RefusedCallError("etcdserver: duplicate key given in txn request")
    return Transaction(
        tuple(Compare(each.key.decode(), each.mod_revision) for each in request.compare),
        operations,
    )


def _operation(operation: gateway.RequestOp) -> Operation:
    if operation.request_put is not None:
        put = operation.request_put
        return Put(put.key.decode(), put.value, put.lease)
    if operation.request_delete_range is not None:
        return Delete(operation.request_delete_range.key.decode())
    raise RefusedCallError("an operation is neither a put nor a deletion")


def _wire_item(item: KeyValue) -> gateway.KeyValue:
    return gateway.KeyValue(item.key.encode(), item.value, item.create_revision, item.mod_revision, item.lease)


def _wire_events(changes: Changes, prefix: str) -> list[gateway.Event]:
    return [_wire_event(each, changes.revision) for each in changes.events if each.key.startswith(prefix)]


def _wire_event(event: Event, revision: int) -> gateway.Event:
    if isinstance(event, Deleted):
        return gateway.Event(gateway.KeyValue(event.key.encode(), mod_revision=revision), "DELETE")
    return gateway.Event(_wire_item(event))


def _line(response: gateway.WatchResponse) -> bytes:
    return gateway.encode(gateway.Line(response)) + b"\n"


def _error(code: int, message: str) -> tuple[int, bytes]:
    status = HTTPStatus.NOT_FOUND if code == gateway.NOT_FOUND else HTTPStatus.BAD_REQUEST
    return status, gateway.encode(gateway.Status(code, message))
