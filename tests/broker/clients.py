"""A broker in the test's own trio loop, and a raw client that says exactly what it is told to."""

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import trio

from warmlog.broker.app import serve
from warmlog.broker.listening import Addresses
from warmlog.broker.metrics.loop_guard import LoopGuard
from warmlog.broker.settings.loading import load_settings
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.frame import FrameReader
from warmlog.protocol.native.codec import decode_response, encode_request
from warmlog.protocol.native.messages import OPERATIONS
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.request import (
    CreateTopicsRequest,
    FetchPartition,
    FetchRequest,
    HelloRequest,
    NewTopic,
    PartitionRecords,
    ProduceRequest,
    Request,
)
from warmlog.protocol.response import HelloResponse

RECEIVED = {operation.request: operation.received for operation in OPERATIONS}


def batch(*values: bytes, timestamp: int = 1_700_000_000_000) -> bytes:
    """One uncompressed batch of these values."""
    return build_batch([(timestamp + i, None, value, ()) for i, value in enumerate(values)])


def damaged(name: str) -> bytes:
    """Return a batch with the named damage."""
    good = bytearray(batch(b"one", b"two"))
    match name:
        case "crc":
            good[-1] ^= 1
        case "magic":
            good[16] = 1
        case "length too long":
            good[11] += 1
        case "length too short":
            good[11] -= 1
        case "cut":
            del good[-5:]
        case "trailing":
            good += b"xyz"
        case "empty":
            good.clear()
    return bytes(good)


class RawClient:
    """One connection; requests are sent as they are given, replies decoded in order."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._reader = FrameReader()
        self._id = 0
        self._asked: dict[int, type[Request]] = {}

    def frame(self, request: Request) -> bytes:
        """The bytes of a request, whose reply `reply` will know."""
        self._id += 1
        self._asked[self._id] = type(request)
        return bytes(encode_request(self._id, request))

    async def send(self, *requests: Request) -> None:
        await self.stream.send_all(b"".join(map(self.frame, requests)))

    async def ask(self, request: Request) -> Any:
        await self.send(request)
        return await self.reply()

    async def reply(self) -> Any:
        """The next reply; None at the end of the stream."""
        frame = await self.reply_frame()
        if frame is None:
            return None
        request_id = msgpack.unpackb(frame)["id"]
        kind = RECEIVED.get(self._asked.pop(request_id, None), HelloResponse)  # or an error
        return decode_response(frame, kind)[1]

    async def reply_frame(self) -> bytes | None:
        while (frame := self._reader.next_frame()) is None:
            data = await self.stream.receive_some()
            if not data:
                return None
            self._reader.feed(bytes(data))
        return bytes(frame)

    # -- what most tests want --

    async def hello(self) -> Any:
        return await self.ask(HelloRequest(versions=(1,), client="test"))

    async def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        configs = {key.replace("_", "."): value for key, value in configs.items()}
        reply = await self.ask(
            CreateTopicsRequest(topics=(NewTopic(name=name, partitions=partitions, configs=configs),))
        )
        assert reply.topics[0].error is ErrorCode.NONE, reply

    async def produce(self, topic: str, records: bytes, partition: int = 0) -> Any:
        reply = await self.ask(produce_request(topic, records, partition))
        return reply.partitions[0]

    async def fetch(self, topic: str, offset: int, partition: int = 0, **options: Any) -> Any:
        reply = await self.ask(fetch_request(topic, offset, partition, **options))
        return reply.partitions[0]


def produce_request(topic: str, records: bytes, partition: int = 0, acks: Any = 1) -> ProduceRequest:
    asked = PartitionRecords(topic=topic, partition=partition, records=memoryview(records))
    return ProduceRequest(acks=acks, partitions=(asked,))


def fetch_request(topic: str, offset: int, partition: int = 0, **options: Any) -> FetchRequest:
    asked = FetchPartition(topic=topic, partition=partition, offset=offset)
    return FetchRequest(partitions=(asked,), **{"max_wait_ms": 0, **options})


class Running:
    """A broker that serves."""

    def __init__(self, addresses: Addresses, stop: trio.Event, ended: trio.Event, stack: AsyncExitStack) -> None:
        self.addresses = addresses
        self.stop = stop
        self.ended = ended
        self._stack = stack

    async def connect(
        self, *, hello: bool = True, tls: ssl.SSLContext | None = None, address: str | None = None
    ) -> RawClient:
        stream: trio.abc.Stream = await self.open_stream(address)
        if tls is not None:
            host = (address or self.addresses.native).rsplit(":", 1)[0]
            stream = encrypted = trio.SSLStream(stream, tls, server_hostname=host)
            await encrypted.do_handshake()
        client = RawClient(stream)
        if hello:
            await client.hello()
        return client

    async def open_stream(self, address: str | None = None) -> trio.SocketStream:
        """Connect to the native listener, or another one; the stream is closed at the end."""
        host, port = (address or self.addresses.native).rsplit(":", 1)
        return await self._stack.enter_async_context(await trio.open_tcp_stream(host, int(port)))

    async def scrape(self) -> dict[str, float]:
        """Every sample of /metrics, by name and labels as they stand there."""
        host, port = self.addresses.http.rsplit(":", 1)
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            answer = b"".join([data async for data in stream]).decode()
        samples = [line.rpartition(" ") for line in answer.splitlines() if line.startswith("warmlog_")]
        return {name: float(value) for name, _, value in samples}


@asynccontextmanager
async def running(
    data_dir: Path,
    settings: Mapping[str, object] | None = None,
    *,
    stop_at_once: bool = False,
    http: str = "none",
    guard: LoopGuard | None = None,
) -> AsyncIterator[Running]:
    """A broker on free ports, usually without HTTP; stopped at the end, or asked to in the moment it is ready."""
    given = {"log.dirs": data_dir, **(settings or {})}
    assignments = [f"{name}={value}" for name, value in given.items()]
    stop, ended, ready = trio.Event(), trio.Event(), trio.Event()
    found: list[Addresses] = []

    def is_ready(addresses: Addresses) -> None:
        if stop_at_once:
            stop.set()
        found.append(addresses)
        ready.set()

    async def main() -> None:
        loaded = load_settings(assignments=assignments)
        address = None if loaded.listeners else "127.0.0.1:0"
        await serve(loaded, kafka=address, native=address, http=http, ready=is_ready, stop=stop, guard=guard)
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(main)
        await ready.wait()
        async with AsyncExitStack() as stack:
            yield Running(found[0], stop, ended, stack)
        stop.set()
