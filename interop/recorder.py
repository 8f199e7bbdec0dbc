"""A proxy between Kafka's clients and a broker that records their requests and replies.

It forwards bytes as they arrive and splits a copy of them into frames, each reply with its request. The broker must
advertise the proxy's address to its clients (advertised.listeners). Runs in its own thread.
"""

import asyncio
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

#: key, version, correlation id
_HEADER = struct.Struct(">hhi")
_PIECE_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and its reply, frames without their lengths. The reply to a request with acks 0 is empty."""

    key: int
    version: int
    request: bytes
    reply: bytes


class _Frames:
    """Splits a stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._buffer += data
        found = []
        while len(self._buffer) >= 4:
            end = 4 + int.from_bytes(self._buffer[:4])
            if len(self._buffer) < end:
                break
            found.append(bytes(self._buffer[4:end]))
            del self._buffer[:end]
        return found


class _Conversation:
    """One connection: requests awaiting their replies, which come in order."""

    def __init__(self, tell: Callable[[Exchange], None]) -> None:
        self._tell = tell
        self._asked: list[bytes] = []
        self._requests, self._replies = _Frames(), _Frames()

    def sent(self, data: bytes) -> None:
        self._asked.extend(self._requests.feed(data))

    def answered(self, data: bytes) -> None:
        for reply in self._replies.feed(data):
            while self._asked:
                request = self._asked.pop(0)
                key, version, correlation_id = _HEADER.unpack_from(request)
                is_its_own = reply[:4] == correlation_id.to_bytes(4)
                self._tell(Exchange(key=key, version=version, request=request, reply=reply if is_its_own else b""))
                if is_its_own:
                    break


class Recorder:
    """The proxy, a context manager. `address` is its listen address, "host:port"; `aim` sets the forwarding target.

    `exchanges` grows with each reply; read it when the clients have disconnected.
    """

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.address = ""
        self._target = ("", 0)
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def aim(self, target: str) -> None:
        """Forward new connections to this address."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stopped = asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        self._started.set()
        await self._stopped.wait()
        server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(*self._target)
        except OSError:  # the broker has disconnected, so disconnect the client
            writer.close()
            return
        conversation = _Conversation(self.exchanges.append)
        try:
            await asyncio.gather(
                _pass_on(reader, there_writer, conversation.sent), _pass_on(there_reader, writer, conversation.answered)
            )
        except OSError:
            pass  # a client that was killed
        finally:
            writer.close()
            there_writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, note: Callable[[bytes], None]) -> None:
    """Forward one direction until its end, and forward the end."""
    while data := await reader.read(_PIECE_BYTES):
        note(data)
        writer.write(data)
        await writer.drain()
    writer.close()
