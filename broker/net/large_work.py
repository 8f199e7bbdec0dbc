"""What takes long for a connection: decode large frames and encode large replies in a worker thread, free both.

A reply of up to FREE_REPLY_BYTES is encoded without asking for room. A longer one waits for its share of
`warmlog.queued.max.reply.bytes`, and is encoded again; one beyond `warmlog.reply.max.bytes` becomes an error.

Invariants:
1. At most one frame is decoded, and one reply encoded, for a connection at a time.
2. After the connection was closed, what a worker still uses is freed when the worker is done.
"""

from functools import partial
from typing import Any

import trio

from broker.net.connection import Connection
from broker.net.inflight import Share
from broker.net.services import Services
from broker.net.turn import Served
from protocol.kafka.codec.bounds import ReplyTooLargeError

FREE_REPLY_BYTES = 1 << 20


class LargeWork:
    """The tasks of one connection. Belongs to its channel, which has another turn when one has ended."""

    __slots__ = ("_connection", "_decoding", "_encoding", "_owner", "_services")

    def __init__(self, connection: Connection, services: Services, owner: Served) -> None:
        self._connection = connection
        self._services = services
        self._owner: Served | None = owner  # None once closed: else both wait for the garbage collector
        self._decoding: trio.CancelScope | None = None
        self._encoding: trio.CancelScope | None = None

    @property
    def is_decoding(self) -> bool:
        """Whether the next frame is being decoded, so that nothing more can be begun."""
        return self._decoding is not None

    def decode(self) -> None:
        """Have the connection's large frame decoded; then its channel goes on."""
        assert self._owner is not None
        self._decoding = trio.CancelScope()
        self._services.turn.spawn(self._owner, self._decode)

    def encode(self) -> None:
        """Have the connection's large reply encoded, unless that is under way; then its channel is finished."""
        if self._encoding is None:
            assert self._owner is not None
            self._encoding = trio.CancelScope()
            self._services.turn.spawn(self._owner, self._encode)

    def free(self, owned: list[Any]) -> None:
        """Free requests and responses in pieces. The list must hold the last references to them."""
        if owned:
            self._services.turn.run_beside(partial(self._services.pacer.free, owned))

    def free_released(self) -> None:
        """Free what the connection needs no more."""
        owned, self._connection.released = self._connection.released, []
        self.free(owned)

    def close(self) -> None:
        """Cancel what waits for a worker, and free everything large that the connection has."""
        self._owner = None
        for task in (self._decoding, self._encoding):
            if task is not None:
                task.cancel()
        self._free_all()

    def _free_all(self) -> None:
        if self._decoding is None and self._encoding is None:  # else a worker may use it
            self.free(self._connection.abandon())

    async def _decode(self) -> None:
        assert self._decoding is not None
        with self._decoding:
            await self._services.pacer.in_worker(self._connection.decode_large)
        self._decoding = None
        if self._owner is None:
            self._free_all()
        else:
            self._services.turn.again(self._owner)

    async def _encode(self) -> None:
        assert self._encoding is not None
        share = Share()
        with self._encoding:
            await self._encode_within_bounds(share)
        self._encoding = None
        if self._owner is None:
            self._services.replies.release(share)
            self._free_all()
        else:
            self._services.turn.due(self._owner)

    async def _encode_within_bounds(self, share: Share) -> None:
        connection, services = self._connection, self._services
        assert connection.large_reply is not None
        try:
            await connection.encode_large(FREE_REPLY_BYTES)
        except ReplyTooLargeError:
            connection.large_reply.reply_share = share
            await services.replies.reserve(share, services.max_reply_bytes)
            services.replies.shrink(share, await self._encode_or_refuse())

    async def _encode_or_refuse(self) -> int:
        """Encode the large reply, or an error where it takes more than it may; returns how many bytes that takes.

        An error for everything that was asked for may take too much as well: then the connection must close.
        """
        connection, max_bytes = self._connection, self._services.max_reply_bytes
        try:
            return await connection.encode_large(max_bytes)
        except ReplyTooLargeError as error:
            self._services.tell_refused(connection.session, error)
            connection.refuse_large(error)
        try:
            return await connection.encode_large(max_bytes)
        except ReplyTooLargeError:
            connection.drop_large()
            return 0
