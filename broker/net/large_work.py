"""Decode large frames and encode large replies of a connection in a worker thread, and free both in pieces.

A reply of up to FREE_REPLY_BYTES is encoded without reserving memory. A larger one is encoded again with GROWTH times
as much memory until it fits, after reserving that memory from `warmlog.queued.max.reply.bytes`. A reply beyond
`warmlog.reply.max.bytes` is replaced by an error. So no reply reserves much more than it needs, and encoding costs a
seventh more.

Invariants:
1. At most one frame is decoded, and one reply encoded, for a connection at a time.
2. After the connection has closed, objects in use by a worker are freed when the worker is done.
"""

from functools import partial
from typing import Any

import trio

from warmlog.broker.net.connection import Connection
from warmlog.broker.net.memory_budget import Share
from warmlog.broker.net.services import Services
from warmlog.broker.net.turns.served import Served
from warmlog.protocol.kafka.codec.bounds import ReplyTooLargeError

FREE_REPLY_BYTES = 1 << 20
GROWTH = 8


class LargeWork:
    """Decoding and encoding tasks of one connection; its channel is scheduled when one of them ends."""

    __slots__ = ("_connection", "_decoding", "_encoding", "_owner", "_services", "_share", "is_decoding")

    def __init__(self, connection: Connection, services: Services, owner: Served, share: Share) -> None:
        """Work for one connection. `share`: the connection's share of the budget for replies."""
        self._share = share
        self._connection = connection
        self._services = services
        self._owner: Served | None = owner  # None once closed, which breaks a reference cycle
        self.is_decoding = False  # the next frame, before which no request can be begun
        self._decoding: trio.CancelScope | None = None
        self._encoding: trio.CancelScope | None = None

    @property
    def is_encoding(self) -> bool:
        """Whether a reply is being encoded; its share is released only afterwards."""
        return self._encoding is not None

    def decode(self) -> None:
        """Start to decode the connection's large frame; its channel continues afterwards."""
        assert self._owner is not None
        self._decoding, self.is_decoding = trio.CancelScope(), True
        self._services.turn.spawn(self._owner, self._decode)

    def encode(self) -> None:
        """Start to encode the connection's large reply, unless that is in progress; its channel is due afterwards."""
        if self._encoding is None:
            assert self._owner is not None
            self._encoding = trio.CancelScope()
            self._services.turn.spawn(self._owner, self._encode)

    def free(self, owned: list[Any]) -> None:
        """Free requests and responses in pieces. The list must hold the last references to them."""
        if owned:
            self._services.turn.run_beside(partial(self._services.pacer.free, owned))

    def free_released(self) -> None:
        """Free the objects that the connection has released."""
        owned, self._connection.released = self._connection.released, []
        self.free(owned)

    def close(self) -> None:
        """Cancel tasks that wait for a worker, and free the connection's large requests and responses."""
        self._owner = None
        for task in (self._decoding, self._encoding):
            if task is not None:
                task.cancel()
        self._free_all()

    def _free_all(self) -> None:
        if self._decoding is None and self._encoding is None:  # otherwise a worker may be using them
            self.free(self._connection.abandon())

    async def _decode(self) -> None:
        assert self._decoding is not None
        with self._decoding:
            connection = self._connection
            assert connection.large_frame is not None
            size = len(connection.large_frame)
            await self._services.pacer.in_worker(connection.decode_large, connection.session, size)
        self._decoding, self.is_decoding = None, False
        if self._owner is None:
            self._free_all()
        else:
            self._services.turn.again(self._owner)

    async def _encode(self) -> None:
        assert self._encoding is not None
        with self._encoding:
            await self._encode_within_bounds()
        self._encoding = None
        if self._owner is None:
            self._services.replies.release(self._share)
            self._free_all()
        else:
            self._services.turn.due(self._owner)

    async def _encode_within_bounds(self) -> None:
        """Encode the large reply, or an error if it exceeds the limit."""
        connection, services, share = self._connection, self._services, self._share
        assert connection.large_reply is not None
        limit = FREE_REPLY_BYTES
        while True:
            try:
                size = await connection.encode_large(limit)
                break
            except ReplyTooLargeError as error:
                if limit >= services.max_reply_bytes:
                    size = await self._encode_refusal(error)
                    break
            limit = min(limit * GROWTH, services.max_reply_bytes)
            await services.replies.reserve(share, limit - share.size)
        services.replies.shrink(share, size)

    async def _encode_refusal(self, error: ReplyTooLargeError) -> int:
        """Encode an error instead of the large reply; return its size in bytes.

        An error with an entry for every requested item may also exceed the limit; then the connection closes.
        """
        connection = self._connection
        self._services.log_refused(connection.session, error)
        connection.refuse_large(error)
        try:
            return await connection.encode_large(self._services.max_reply_bytes)
        except ReplyTooLargeError:
            connection.drop_large()
            return 0
