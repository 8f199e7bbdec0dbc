"""Unusual Produce requests."""

from typing import Any

from crc32c import crc32c

from interop.compare.session import Session
from warmlog.protocol.records.builder import Codec, build_batch

_MAGIC, _CRC, _LENGTH, _COUNT, _DELTA, _ATTRIBUTES = 16, 17, 8, 57, 23, 21
# Bytes of a batch to replace, both with the old checksum and with the checksum of the new bytes.
_CHANGES = (
    ("a bad crc", _CRC, b"\1\2\3\4"),
    ("magic 0", _MAGIC, b"\0"),
    ("magic 1", _MAGIC, b"\1"),
    ("magic 3", _MAGIC, b"\3"),
    ("magic 127", _MAGIC, b"\x7f"),
    ("a length too great", _LENGTH, b"\0\0\7\0"),
    ("a length too small", _LENGTH, b"\0\0\0\5"),
    ("a negative length", _LENGTH, b"\xff\0\0\0"),
    ("another base offset", 0, (77).to_bytes(8)),
    ("another leader epoch", 12, (5).to_bytes(4)),
)
_RESEALED = (
    ("too many records", _COUNT, (4).to_bytes(4)),
    ("too few records", _COUNT, (2).to_bytes(4)),
    ("no records", _COUNT, bytes(4)),
    ("a negative count", _COUNT, b"\xff\xff\xff\xff"),
    ("another last delta", _DELTA, (9).to_bytes(4)),
    ("codec 7", _ATTRIBUTES, b"\0\7"),
    ("codec gzip", _ATTRIBUTES, b"\0\1"),
    ("log append time", _ATTRIBUTES, b"\0\x08"),
    ("the control bit", _ATTRIBUTES, b"\0\x20"),
    ("an unused bit", _ATTRIBUTES, b"\1\0"),
    ("a delete horizon", _ATTRIBUTES, b"\0\x40"),
    ("max timestamp -1", 35, b"\xff" * 8),
    ("base timestamp -1", 27, b"\xff" * 8),
)


def requests(s: Session) -> None:
    """Run all requests of this area."""
    topic = s.topic("t", 3)
    good = s.batch(3)
    s.produce("one batch", topic, good)
    s.produce("acks 1", topic, good, acks=1)
    s.produce("acks 2", topic, good, acks=2)
    s.produce("acks -2", topic, good, acks=-2)
    s.produce("no time", topic, good, timeout_ms=0)
    s.produce("a negative time", topic, good, timeout_ms=-5)
    s.produce("null", topic, None)
    s.produce("nothing", topic, b"")
    s.produce("two batches", topic, good + good)
    s.produce("an unknown partition", topic, good, partition=9)
    s.produce("a negative partition", topic, good, partition=-1)
    s.produce("an unknown topic", s.name("no"), good)
    if s.level != "highest":
        s.produce("a bad topic", "a b", good)
        s.produce("an empty topic", "", good)
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        s.produce(f"compressed by {codec.name}", topic, s.batch(20, codec=codec, size=50))
    _odd(s, good)
    _many(s, topic, good)
    _settings(s, good)
    for partition in range(3):
        s.fetch(f"all of partition {partition}", [(topic, partition, 0)])


def _odd(s: Session, good: bytes) -> None:
    """Send each batch to its own partition: if only one broker stores it, no other offsets differ."""
    batches = [(f"with {label}", _changed(good, position, data)) for label, position, data in _CHANGES]
    batches += [(f"resealed with {label}", _resealed(_changed(good, at, data))) for label, at, data in _RESEALED]
    batches += [
        ("cut short", good[:-1]),
        ("a header alone", good[:61]),
        ("half a header", good[:30]),
        ("with bytes behind", good + b"\0\0"),
        ("with half a batch behind", good + good[:70]),
        ("an old time", _at(1)),
        ("a future time", s.batch(1, at=86_400_000 * 3)),
    ]
    topic = s.topic("odd", len(batches))
    for partition, (label, records) in enumerate(batches):
        s.produce(label, topic, records, partition=partition)
        s.fetch(f"what is stored of: {label}", [(topic, partition, 0)])


def _many(s: Session, topic: str, good: bytes) -> None:
    def data(*indexes: int, records: bytes | None = good) -> list[dict[str, Any]]:
        return [{**s.both(topic), "partition_data": [{"index": index, "records": records} for index in indexes]}]

    def ask(label: str, topics: list[dict[str, Any]], **fields: Any) -> None:
        s.ask(label, "Produce", **{"acks": -1, "timeout_ms": 5000, "topic_data": topics, **fields})

    ask("three partitions", data(0, 1, 2))
    ask("one of them unknown", data(0, 9, 2))
    twice = s.topic("twice")
    entries = [{"index": 0, "records": good}, {"index": 0, "records": good}]
    ask("one partition twice", [{**s.both(twice), "partition_data": entries}])
    ask("one topic twice", data(0) + data(1))
    ask("no partitions", data())
    ask("no topics", [])
    mixed = s.topic("mixed", 2)
    entries = [{"index": 0, "records": good}, {"index": 1, "records": b"x" * 80}]
    ask("one good, one bad", [{**s.both(mixed), "partition_data": entries}])
    ask("a transactional id", data(0), transactional_id="given-x")
    ask("bad acks and two partitions", data(0, 1), acks=7)


def _settings(s: Session, good: bytes) -> None:
    small = s.topic("small", max_message_bytes="200")
    s.produce("a batch that is too large", small, s.batch(1, size=500))
    s.produce("a batch that fits", small, s.batch(1, size=50))
    stamped = s.topic("stamped", message_timestamp_type="LogAppendTime")
    s.produce("to log append time", stamped, good)
    s.fetch("fetch log append time", [(stamped, 0, 0)])
    compacted = s.topic("compacted", cleanup_policy="compact")
    s.produce("with keys to a compacted topic", compacted, good)
    s.produce("without keys to a compacted topic", compacted, _keyless(s))
    bounded = s.topic("bounded", message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="1000")
    s.produce("too early", bounded, good)
    s.produce("too late", bounded, s.batch(1, at=86_400_000))
    s.produce("without a time", bounded, _at(-1))
    insync = s.topic("insync", min_insync_replicas="2")
    s.produce("acks -1 to a topic that asks for two replicas", insync, good)
    s.produce("acks 1 to a topic that asks for two replicas", insync, good, acks=1)
    gzip = s.topic("gzip", compression_type="gzip")
    s.produce("to be compressed", gzip, s.batch(20))
    offsets = "__consumer_offsets"
    if s.level != "highest":
        s.produce("to the internal topic", offsets, good)


def _keyless(s: Session) -> bytes:
    return build_batch([(s.base_time, None, b"v", ()), (s.base_time, b"k", b"v", ())])


def _at(time: int) -> bytes:
    return build_batch([(time, b"k", b"v", ())])


def _changed(batch: bytes, position: int, data: bytes) -> bytes:
    return batch[:position] + data + batch[position + len(data) :]


def _resealed(batch: bytes) -> bytes:
    return _changed(batch, _CRC, crc32c(batch[_ATTRIBUTES:]).to_bytes(4))
