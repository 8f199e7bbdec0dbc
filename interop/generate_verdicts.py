"""Regenerate tests/fixtures/kafka/4.3.1/verdicts.jsonl: `python interop/generate_verdicts.py` (Java, Maven).

How a real Kafka handles unusual or invalid batches: one line per batch, with the topic's settings, the bytes sent, the
error, the record errors and the times in the response, and the bytes then in the log file (none if refused). Bytes are
hexadecimal digits.
"""

import json
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from struct import pack, unpack_from

sys.path.insert(0, str(Path(__file__).parent.parent))

from interop.generate_fixtures import wait_until
from interop.kafka_node import KAFKA_VERSION, KafkaNode, create_topics
from tests.protocol.records.handmade import batch, record
from warmlog.protocol.records.compression import Codec, compress

TARGET = Path(__file__).parent.parent / "tests" / "fixtures" / "kafka" / KAFKA_VERSION / "verdicts.jsonl"
#: The last version of Produce without compact fields; it has record errors and a message.
VERSION = 8
#: The last version that refuses zstd.
VERSION_BEFORE_ZSTD = 6
#: A time in the year 2200, beyond any limit of an hour.
FAR = 7_258_118_400_000
#: A time in the distant past.
PAST = 1_600_000_000_000

TOPICS: Mapping[str, Mapping[str, object]] = {
    "create-time": {},
    "append-time": {"message.timestamp.type": "LogAppendTime"},
    "recent": {"message.timestamp.before.max.ms": 3_600_000},
    "compacted": {"cleanup.policy": "compact"},
    "to-gzip": {"compression.type": "gzip"},
    "to-gzip-append-time": {"compression.type": "gzip", "message.timestamp.type": "LogAppendTime"},
    "to-uncompressed": {"compression.type": "uncompressed", "max.message.bytes": 400},
}

CORRUPT_MESSAGE = 2
LOG_APPEND_TIME_BIT, CONTROL_BIT, DELETE_HORIZON_BIT = 8, 32, 64


def three(*deltas: int, keys: tuple[bytes | None, ...] = (b"a", b"b", b"c")) -> bytes:
    """Return three records with times relative to the batch's base timestamp."""
    pairs = zip(deltas, keys, strict=True)
    return b"".join(
        record(offset_delta=offset, timestamp_delta=delta, key=key) for offset, (delta, key) in enumerate(pairs)
    )


def cases() -> Iterator[tuple[str, str, bytes]]:  # noqa: PLR0915  # a table
    """Return (name, topic, bytes) of each batch."""
    times = {"base_timestamp": PAST, "max_timestamp": PAST + 9, "record_count": 3}
    plain = batch(three(0, 9, 4), **times)
    for topic in TOPICS:
        yield "plain", topic, plain
        yield "gzip", topic, batch(compress(Codec.GZIP, three(0, 9, 4)), **{**times, "attributes": 1})

    now = int(time.time() * 1000)
    recent = {**times, "base_timestamp": now, "max_timestamp": now + 9}
    yield "one record of three is past", "recent", batch(three(0, -7_200_000, 9), **recent)
    yield "recent", "recent", batch(three(0, 9, 4), **recent)
    yield "no times", "recent", batch(record(), base_timestamp=-1, max_timestamp=-1)
    packed = compress(Codec.GZIP, three(0, -7_200_000, 9))
    yield "gzip, one record of three is past", "recent", batch(packed, **{**recent, "attributes": 1})

    yield "far", "create-time", batch(record(), base_timestamp=FAR, max_timestamp=FAR)
    yield "far", "append-time", batch(record(), base_timestamp=FAR, max_timestamp=FAR)
    yield "two of three far", "create-time", batch(three(0, FAR - PAST, FAR - PAST), **{**times, "max_timestamp": FAR})
    yield "largest time too small", "create-time", batch(three(0, 9, 4), **{**times, "max_timestamp": PAST})
    yield "largest time too large", "create-time", batch(three(0, 9, 4), **{**times, "max_timestamp": FAR})
    yield "largest time none", "create-time", batch(three(0, 9, 4), **{**times, "max_timestamp": -1})
    yield "largest time negative", "create-time", batch(three(0, 9, 4), **{**times, "max_timestamp": -9})
    packed = compress(Codec.GZIP, three(0, 9, 4))
    yield (
        "gzip, largest time too large",
        "create-time",
        batch(packed, **{**times, "max_timestamp": FAR, "attributes": 1}),
    )
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        block = compress(codec, three(0, 9, 4))
        for name, largest in (("none", -1), ("too small", PAST), ("right", PAST + 9)):
            told = {**times, "max_timestamp": largest, "attributes": codec}
            yield f"{codec.name.lower()}, largest time {name}", "create-time", batch(block, **told)
        told = {**times, "max_timestamp": -1, "attributes": codec}
        yield f"{codec.name.lower()}, largest time none", "append-time", batch(block, **told)
    yield "gzip, largest time negative", "create-time", batch(packed, **{**times, "max_timestamp": -9, "attributes": 1})
    yield "negative base", "create-time", batch(three(0, 9, 4), **{**times, "base_timestamp": -9, "max_timestamp": 0})
    yield "negative time", "create-time", batch(record(timestamp_delta=-7), base_timestamp=2, max_timestamp=-5)
    yield "no time", "create-time", batch(record(), base_timestamp=-1, max_timestamp=-1)
    yield "time past 64 bits", "create-time", batch(record(timestamp_delta=9), base_timestamp=(1 << 63) - 2)

    for topic in ("create-time", "append-time"):
        marked = {**times, "attributes": LOG_APPEND_TIME_BIT}
        yield "marked as append time", topic, batch(three(0, 9, 4), **marked)
        yield "marked as append time, none", topic, batch(three(0, 9, 4), **{**marked, "max_timestamp": -1})
        yield "delete horizon", topic, batch(three(0, 9, 4), **{**times, "attributes": DELETE_HORIZON_BIT})
        yield "unknown bits", topic, batch(three(0, 9, 4), **{**times, "attributes": 0x5280})
        yield "control", topic, batch(three(0, 9, 4), **{**times, "attributes": CONTROL_BIT})
    for codec in (5, 6, 7):
        yield f"codec {codec}", "create-time", batch(record(), attributes=codec)

    yield "base offset", "create-time", batch(record(), base_offset=5)
    yield "two batches", "create-time", plain + plain
    yield "no batch", "create-time", b""
    yield "a cut batch", "create-time", plain[:-1]
    yield "bytes after the batch", "create-time", plain + b"\0" * 5
    yield "CRC", "create-time", batch(record(), crc=1)
    yield "length below a header", "create-time", batch(record(), batch_length=13) + b"\0" * 60
    yield "length negative", "create-time", batch(record(), batch_length=-1)
    for magic in (0, 1, 3, -1):
        yield f"magic {magic}", "create-time", batch(record(), magic=magic)
    for count, last in ((0, -1), (-1, -2), (2, 0), (1, 1), (0, 0), (1, -1)):
        yield (
            f"{count} records, last delta {last}",
            "create-time",
            batch(record(), record_count=count, last_offset_delta=last),
        )
    yield "fewer records than said", "create-time", batch(record(), record_count=2)
    yield "more records than said", "create-time", batch(record() * 2, record_count=1)
    yield "offsets out of order", "create-time", batch(record(offset_delta=1) + record(), record_count=2)
    packed = compress(Codec.GZIP, record(offset_delta=1) + record())
    yield "gzip, offsets out of order", "create-time", batch(packed, record_count=2, attributes=1)
    yield "gzip, not gzip", "create-time", batch(b"no gzip at all", attributes=1)
    yield "a record too long", "create-time", batch(record(length=50))
    yield "surplus in a record", "create-time", batch(record(after=b"x"))
    yield "record attributes", "create-time", batch(record(attributes=0x7F))
    for sequence, epoch in ((-1, 0), (0, -1), (0, 0)):
        fields = {"producer_id": 77_000 + sequence + 2 * epoch, "producer_epoch": epoch, "base_sequence": sequence}
        yield f"producer with sequence {sequence} and epoch {epoch}", "create-time", batch(record(), **fields)

    keyless = three(0, 9, 4, keys=(b"a", None, None))
    yield "two without keys", "compacted", batch(keyless, **times)
    yield "gzip, two without keys", "compacted", batch(compress(Codec.GZIP, keyless), **{**times, "attributes": 1})
    far_keyless = record(key=None) + record(offset_delta=1, timestamp_delta=FAR - PAST, key=b"k")
    both = {**times, "record_count": 2, "max_timestamp": FAR}
    yield "one without key, one far", "compacted", batch(far_keyless, **both)
    yield "one without key and far", "compacted", batch(record(), base_timestamp=FAR, max_timestamp=FAR)
    yield "an empty key", "compacted", batch(record(key=b""))
    yield (
        "gzip, largest time too small",
        "compacted",
        batch(compress(Codec.GZIP, three(0, 9, 4)), **{**times, "max_timestamp": PAST, "attributes": 1}),
    )
    large = record(key=b"a", value=b"x" * 500)
    yield "gzip, too large opened", "to-uncompressed", batch(compress(Codec.GZIP, large), attributes=1)
    for codec in (Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        yield codec.name.lower(), "to-gzip", batch(compress(codec, three(0, 9, 4)), **{**times, "attributes": codec})


def main() -> None:
    """Send each batch; record the response and the bytes added to the log file."""
    lines = []
    with tempfile.TemporaryDirectory() as work, KafkaNode(Path(work) / "data") as node:
        kept = {"retention.ms": -1}  # the records are years old
        create_topics(node.bootstrap, {topic: {**kept, **configs} for topic, configs in TOPICS.items()})
        last = node.data / f"{list(TOPICS)[-1]}-0" / f"{0:020}.log"
        wait_until(last.exists, "the topics' directories")
        host, port = node.bootstrap.split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.settimeout(30)
            for topic in TOPICS:
                wait_until(partial(leads, connection, topic), f"{topic} to get its leader")
            zstd = batch(compress(Codec.ZSTD, record(key=b"k")), attributes=Codec.ZSTD)
            sent = [(VERSION, *case) for case in cases()]
            sent += [(version, "zstd", "create-time", zstd) for version in (VERSION_BEFORE_ZSTD, VERSION)]
            for version, name, topic, data in sent:
                log = node.data / f"{topic}-0" / f"{0:020}.log"
                before = log.stat().st_size if log.exists() else 0
                answer = produce(connection, topic, data, version)
                stored = log.read_bytes()[before:].hex()
                line = {"name": name, "configs": dict(TOPICS[topic]), "version": version, "sent": data.hex()}
                lines.append(json.dumps({**line, **answer, "stored": stored}))
    TARGET.write_text("\n".join(lines) + "\n")


def leads(connection: socket.socket, topic: str) -> bool:
    """Return whether the node accepts produce requests for a topic yet; the probe itself stores nothing."""
    return produce(connection, topic, batch(record(), crc=1), VERSION)["error"] == CORRUPT_MESSAGE


def produce(connection: socket.socket, topic: str, data: bytes, version: int) -> dict[str, object]:
    """Send a request, and read its reply."""
    name = topic.encode()
    body = pack(">hhih", 0, version, 1, -1) + pack(">hhii", -1, -1, 30_000, 1)
    body += pack(">h", len(name)) + name + pack(">iii", 1, 0, len(data)) + data
    connection.sendall(pack(">i", len(body)) + body)
    reply = received(connection, *unpack_from(">i", received(connection, 4)))
    at = 4 + 4 + 2 + len(name) + 4
    _, error, base_offset, append_time, _ = unpack_from(">ihqqq", reply, at)
    found: list[tuple[int, str | None]] = []
    at += 30
    if version >= VERSION:
        (count,) = unpack_from(">i", reply, at)
        at += 4
        for _ in range(count):
            (index,) = unpack_from(">i", reply, at)
            text, at = nullable_string(reply, at + 4)
            found.append((index, text))
        message, at = nullable_string(reply, at)
    else:
        message = None
    return {
        "at_ms": int(time.time() * 1000),
        "error": error,
        "base_offset": base_offset,
        "log_append_time": append_time,
        "record_errors": found,
        "message": message,
    }


def nullable_string(data: bytes, at: int) -> tuple[str | None, int]:
    """Read a string; return it and the position after it."""
    (length,) = unpack_from(">h", data, at)
    at += 2
    return (None, at) if length < 0 else (data[at : at + length].decode(), at + length)


def received(connection: socket.socket, size: int) -> bytes:
    """Receive exactly `count` bytes."""
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("Kafka has closed the connection")
        data += part
    return data


if __name__ == "__main__":
    main()
