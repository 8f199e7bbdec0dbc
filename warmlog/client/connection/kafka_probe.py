"""Probe whether a listener speaks Kafka's protocol, to explain a failed connection."""

from struct import Struct

import anyio

_REQUEST = Struct(">ihhih")  # request: length, API key, version, correlation id, length of the client id
_API_VERSIONS = 18
_NUMBER = 0x77726D6C
_HEAD = Struct(">ii")  # response: length, correlation id
TIMEOUT_S = 2.0


async def speaks_kafka(host: str, port: int) -> bool:
    """Return whether the listener answers a Kafka request. Never raises OSError."""
    head = b""
    with anyio.move_on_after(TIMEOUT_S):
        try:
            async with await anyio.connect_tcp(host, port) as stream:
                await stream.send(_REQUEST.pack(_REQUEST.size - 4, _API_VERSIONS, 0, _NUMBER, 0))
                while len(head) < _HEAD.size:
                    head += await stream.receive()
        except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
            return False
    return len(head) >= _HEAD.size and _HEAD.unpack_from(head)[1] == _NUMBER
