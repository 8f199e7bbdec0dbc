"""Frames between a store and the brokers on its machine: a length of 4 bytes, then a message in msgpack.

A connection carries one call at a time. After a `WatchCall` only changes follow, until one side closes it. Each reply
has the id of the store and its revision.
"""

from enum import StrEnum
from struct import Struct as Layout
from typing import TypeAlias

import msgspec
import trio
from msgspec import Struct

from warmlog.broker.cluster.store import Event, StoreTransaction, StoreUnavailableError

MAX_CALL_BYTES = 2 << 20
_LENGTH = Layout(">I")
_RECEIVE_BYTES = 64 << 10


class RangeCall(Struct, frozen=True, array_like=True, tag=True):
    """`Store.range`."""

    prefix: str


class CommitCall(Struct, frozen=True, array_like=True, tag=True):
    """`Store.commit`."""

    transaction: StoreTransaction


class WatchCall(Struct, frozen=True, array_like=True, tag=True):
    """`Store.watch`."""

    after_revision: int


class GrantCall(Struct, frozen=True, array_like=True, tag=True):
    """`Store.grant`."""

    ttl_s: float


class KeepAliveCall(Struct, frozen=True, array_like=True, tag=True):
    """`Store.keep_alive`."""

    lease: int


class UnrenewedCall(Struct, frozen=True, array_like=True, tag=True):
    """`Store.unrenewed_s`."""

    lease: int


class RevokeCall(Struct, frozen=True, array_like=True, tag=True):
    """`Store.revoke`."""

    lease: int


Call: TypeAlias = RangeCall | CommitCall | WatchCall | GrantCall | KeepAliveCall | UnrenewedCall | RevokeCall


class Problem(StrEnum):
    """The reason why a call failed."""

    LEASE_EXPIRED = "lease expired"
    COMPACTED = "compacted"
    INVALID = "invalid"


class Reply(Struct, frozen=True, array_like=True):
    """The result of a call, or a report of a watch. `number`: the lease id or the seconds that a call returns."""

    store_id: int
    revision: int
    events: tuple[Event, ...] = ()
    succeeded: bool = False
    number: int | float = 0  # a float cannot represent every lease id
    problem: Problem | None = None
    message: str = ""


_encode = msgspec.msgpack.encode
decode_call = msgspec.msgpack.Decoder(Call).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode


class FrameStream:
    """Sends and receives frames. Its methods raise StoreUnavailableError when the connection is lost."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._received = bytearray()

    async def send(self, message: Call | Reply) -> None:
        """Send a message."""
        body = _encode(message)
        try:
            await self._stream.send_all(_LENGTH.pack(len(body)) + body)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise StoreUnavailableError(f"connection lost: {error}") from None

    async def receive(self, max_bytes: int | None = None) -> bytes | None:
        """Return the next message, or None at the end. Cancelling it loses nothing."""
        received = self._received
        while True:
            if len(received) >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(received)
                if max_bytes is not None and length > max_bytes:
                    raise StoreUnavailableError(f"a message of {length} bytes is too large")
                end = _LENGTH.size + length
                if len(received) >= end:
                    message = bytes(received[_LENGTH.size : end])
                    del received[:end]
                    return message
            try:
                part = await self._stream.receive_some(_RECEIVE_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise StoreUnavailableError(f"connection lost: {error}") from None
            if not part:
                return None
            received += part

    async def closed(self) -> None:
        """Wait until the peer has closed the connection."""
        while await self.receive() is not None:
            pass

    def close(self) -> None:
        """Close the connection."""
        self._stream.socket.close()
