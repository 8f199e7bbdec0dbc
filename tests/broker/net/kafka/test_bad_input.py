"""Bad input on the Kafka listener: refused or closed, and nobody else notices."""

import logging
import resource
import struct
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import trio
from crc32c import crc32c

from tests.broker.clients import RawClient, Running, batch, damaged, running
from tests.broker.kafka_client import BY_NAME, KafkaClient, kafka_client
from tests.broker.net.kafka.fetcher import Fetcher
from tests.protocol.kafka.malformed import VICTIM, Malformed, framed, malformed
from tests.protocol.kafka.messages import body, frame
from tests.protocol.records import handmade
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.frame import FrameReader
from warmlog.protocol.kafka.codec.bounds import MAX_ELEMENTS, MAX_UNKNOWN_TAGS
from warmlog.protocol.kafka.codec.writer import FlexibleWriter, topic_id_bytes
from warmlog.protocol.records.compression import Codec, compress
from warmlog.protocol.request import MetadataRequest

SEED = 20240611
CLIENTS = 8  # at once
MAX_GROWTH_BYTES = 32 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Pair:
    """A producer and a consumer: a record goes from one to the other beside each malformed request."""

    def __init__(self, broker: Running) -> None:
        self._broker = broker
        self.rounds = 0
        self.due = trio.Semaphore(0)

    async def run(self) -> None:
        address = self._broker.addresses.kafka
        native = await self._broker.connect()
        await native.create("pair")
        await native.create(VICTIM, partitions=2)
        async with kafka_client(address) as consumer:
            fetcher = await Fetcher.of(consumer, native, 18)
            await fetcher.fetch({("pair", 0): 0})
            while True:
                await self.due.acquire()
                await fetcher.send({("pair", 0): self.rounds}, max_wait_ms=10_000)
                sent = batch(b"%d" % self.rounds)
                stored = await native.produce("pair", sent)
                assert (stored.error, stored.base_offset) == (ErrorCode.NONE, self.rounds)
                (told,) = (await fetcher.reply()).values()
                assert (told["error_code"], told["high_watermark"]) == (ErrorCode.NONE, self.rounds + 1)
                assert bytes(told["records"])[21:] == sent[21:]
                self.rounds += 1


async def exchange(address: str, bad: Malformed) -> bytes:
    """Send it and end; all that came back until the broker closed."""
    host, port = address.rsplit(":", 1)
    received = b""
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        try:
            for at in range(0, len(bad.stream), bad.piece):
                await stream.send_all(bad.stream[at : at + bad.piece])
            await stream.send_eof()
            async for data in stream:
                received += data
        except trio.BrokenResourceError:
            pass  # closed while we were still sending
    return received


def frames_in(received: bytes) -> list[memoryview]:
    reader = FrameReader()
    reader.feed(received)
    frames = []
    while (found := reader.next_frame()) is not None:
        frames.append(found)
    assert not reader.is_within_frame
    return frames


async def test_malformed_requests_of_every_api_and_version_beside_a_pair_that_notices_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"auto.create.topics.enable": "false", "offsets.topic.num.partitions": 1}
    async with running(tmp_path, settings) as broker, trio.open_nursery() as nursery:
        pair = Pair(broker)
        nursery.start_soon(pair.run)
        todo = list(malformed(SEED))
        assert len(todo) >= 2000
        left = iter(todo)

        async def client() -> None:
            for bad in left:
                pair.due.release()
                with trio.fail_after(60):
                    answers = frames_in(await exchange(broker.addresses.kafka, bad))
                assert len(answers) <= 1, bad.what
                assert all(answer[:4] == bad.stream[8:12] for answer in answers), bad.what  # the correlation id

        async def all_clients() -> None:
            async with trio.open_nursery() as clients:
                for _ in range(CLIENTS):
                    clients.start_soon(client)

        with caplog.at_level(logging.WARNING):
            left = islice(malformed(SEED + 1), 0, None, 5)  # whatever is made at first use is made
            await all_clients()
            before, rounds = resident_bytes(), pair.rounds
            left = iter(todo)
            await all_clients()
            assert resident_bytes() - before < MAX_GROWTH_BYTES
        assert pair.rounds > rounds > 0
        assert [record.getMessage() for record in caplog.records] == []
        nursery.cancel_scope.cancel()


async def test_what_came_before_bad_input_is_answered(broker: Running) -> None:
    api = BY_NAME["ApiVersions"]
    good = framed(bytes(frame(api, 0, b"")))
    bad = Malformed("garbage behind good requests", good * 3 + framed(b"garbage") + good)
    received = await exchange(broker.addresses.kafka, bad)
    assert len(frames_in(received)) == 3


# -- bounds of what is read --


def with_tags(count: int) -> bytes:
    """A request for metadata of nothing, with so many tagged fields that nobody knows."""
    api = BY_NAME["Metadata"]
    writer = FlexibleWriter(b"")
    writer.uvarint(count)
    for tag in range(100, 100 + count):
        writer.uvarint(tag)
        writer.uvarint(0)
    fields = {"topics": (), "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    data = body("MetadataRequest", api, 12, fields)
    return framed(bytes(frame(api, 12, data[:-1] + writer.written())))


def with_elements(count: int) -> bytes:
    """A question for the offsets of so many partitions."""
    api = BY_NAME["ListOffsets"]
    partitions = ({"partition_index": 0, "timestamp": -1},) * count
    fields = {"replica_id": -1, "isolation_level": 0, "timeout_ms": 0}
    data = body("ListOffsetsRequest", api, 11, {**fields, "topics": ({"name": "t", "partitions": partitions},)})
    return framed(bytes(frame(api, 11, data)))


@pytest.mark.parametrize(
    ("made", "count", "is_answered"),
    [
        (with_tags, MAX_UNKNOWN_TAGS, True),
        (with_tags, MAX_UNKNOWN_TAGS + 1, False),
        (with_elements, MAX_ELEMENTS - 1, True),  # one more is their topic
        (with_elements, MAX_ELEMENTS, False),
    ],
)
async def test_a_request_may_be_as_large_as_the_bounds_and_no_larger(
    broker: Running, made: Callable[[int], bytes], count: int, is_answered: bool
) -> None:
    answers = frames_in(await exchange(broker.addresses.kafka, Malformed(made.__name__, made(count))))
    assert len(answers) == is_answered


async def test_frames_that_are_announced_and_never_sent_take_no_room(broker: Running) -> None:
    native = await broker.connect()
    await native.create("orders")
    before = resident_bytes()
    host, port = broker.addresses.kafka.rsplit(":", 1)
    async with trio.open_nursery() as nursery:

        async def announce() -> None:
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                await stream.send_all(struct.pack(">i", 100 << 20) + bytes(100))
                await trio.sleep_forever()

        for _ in range(50):
            nursery.start_soon(announce)
        for offset in range(20):
            assert (await native.produce("orders", batch(b"x" * 1000))).base_offset == offset
        assert resident_bytes() - before < 150 << 20  # a first buffer of 2 MiB each, not 5 GB
        nursery.cancel_scope.cancel()


# -- batches --


async def produce(kafka: KafkaClient, native: RawClient, version: int, records: bytes, **options: int) -> ErrorCode:
    """Produce into the first partition of the first topic there is; what became of it."""
    topic = (await native.ask(MetadataRequest())).topics[0]
    named = {"name": topic.name, "topic_id": topic_id_bytes(topic.topic_id)}
    partitions = ({"index": 0, "records": records},)
    fields = {"transactional_id": None, "acks": -1, "timeout_ms": 1000, **options}
    reply = await kafka.ask("Produce", version, **fields, topic_data=({**named, "partition_data": partitions},))
    return ErrorCode(reply["responses"][0]["partition_responses"][0]["error_code"])


@pytest.mark.parametrize("version", range(3, 14))
async def test_damaged_batches_are_refused_and_not_stored(broker: Running, version: int) -> None:
    native = await broker.connect()
    await native.create("orders")
    async with kafka_client(broker.addresses.kafka) as kafka:
        assert await produce(kafka, native, version, damaged("crc")) is ErrorCode.CORRUPT_MESSAGE
        for name in ("magic", "length too long", "length too short", "cut", "trailing", "empty"):
            assert await produce(kafka, native, version, damaged(name)) in {
                ErrorCode.CORRUPT_MESSAGE,
                ErrorCode.INVALID_RECORD,
                ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            }
        assert await produce(kafka, native, version, batch(b"good")) is ErrorCode.NONE
    found = await native.fetch("orders", 0)
    assert bytes(found.records)[21:] == batch(b"good")[21:]


def around(codec: int, block: bytes, **fields: int) -> bytes:
    """One batch of a block, with a right CRC."""
    made = bytearray(handmade.batch(block, attributes=codec, crc=0, **fields))
    made[17:21] = crc32c(made[21:]).to_bytes(4)
    return bytes(made)


BLOCK = compress(Codec.ZSTD, handmade.record())
LIARS: dict[str, Callable[[], bytes]] = {
    "a block that expands without end": lambda: around(Codec.ZSTD, compress(Codec.ZSTD, bytes(200 << 20))),
    "no block of its codec": lambda: around(Codec.LZ4, BLOCK),
    "a cut block": lambda: around(Codec.ZSTD, BLOCK[:-1]),
    "more records than there are": lambda: around(Codec.ZSTD, BLOCK, record_count=2**31 - 1),
    "a codec that nobody knows": lambda: around(5, BLOCK),
    "a record longer than its block": lambda: around(Codec.ZSTD, compress(Codec.ZSTD, handmade.record(length=2**30))),
}


@pytest.mark.parametrize("what", LIARS)
async def test_a_compressed_batch_that_lies_is_refused_where_it_must_be_opened(broker: Running, what: str) -> None:
    native = await broker.connect()
    await native.create("orders", compression_type="uncompressed")
    async with kafka_client(broker.addresses.kafka) as kafka:
        before = resident_bytes()
        assert await produce(kafka, native, 13, LIARS[what]()) in {
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.INVALID_RECORD,
            ErrorCode.MESSAGE_TOO_LARGE,
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        }
        assert resident_bytes() - before < MAX_GROWTH_BYTES
        assert await produce(kafka, native, 13, around(Codec.ZSTD, BLOCK)) is ErrorCode.NONE
    assert (await native.fetch("orders", 0)).high_watermark == 1
