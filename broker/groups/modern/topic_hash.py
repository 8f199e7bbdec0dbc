"""Hashes of topics, by which a group detects changes of topics that it subscribes to.

A topic's hash covers, in this order:

    int8 0, int64 x 2 topic id, name, int32 partition count
    for each partition: int32 number; for the rack of each replica, sorted: int32 length, rack

Text is UTF-16 followed by its length as int32. Numbers are little-endian, lengths count UTF-16 units. A group's hash
covers the hashes of its topics, sorted by name. Both are XXH3 with 64 bits, read as int64. The group's hash is stored
(`GroupEpoch.metadata_hash`), so a group that moves between Kafka and this broker keeps its epoch.

Source: Kafka's Utils.computeTopicHash, Utils.computeGroupHash (KIP-1101).
"""

import struct
from collections.abc import Mapping

import xxhash

from warmlog.broker.groups.modern.assignment import TopicInfo

NO_TOPICS = 0  # also of a group whose topics do not exist

_VERSION = b"\0"
_INT = struct.Struct("<i")
_LONG = struct.Struct("<q")
_ID = struct.Struct(">qq")
_REVERSED_ID = struct.Struct("<qq")


def topic_hash(topic: TopicInfo) -> int:
    """Return the hash of a topic, an int64."""
    head = (_VERSION, _REVERSED_ID.pack(*_ID.unpack(topic.id)), _text(topic.name), _INT.pack(topic.partitions))
    numbers = struct.pack(f"<{topic.partitions}i", *range(topic.partitions))
    if not any(topic.racks):
        return _signed(xxhash.xxh3_64_intdigest(b"".join((*head, numbers))))
    encoded: dict[tuple[str, ...], bytes] = {}  # most partitions have one of a few combinations of racks
    parts = list(head)
    for partition in range(topic.partitions):
        parts.append(numbers[_INT.size * partition : _INT.size * (partition + 1)])
        racks = topic.racks[partition] if partition < len(topic.racks) else ()
        if racks not in encoded:
            encoded[racks] = _racks(racks)
        parts.append(encoded[racks])
    return _signed(xxhash.xxh3_64_intdigest(b"".join(parts)))


def group_hash(hashes: Mapping[str, int]) -> int:
    """Return the hash of the existing topics of a group, given their hashes by name; an int64, NO_TOPICS for none."""
    if not hashes:
        return NO_TOPICS
    return _signed(xxhash.xxh3_64_intdigest(b"".join(_LONG.pack(hashes[name]) for name in sorted(hashes))))


def _racks(racks: tuple[str, ...]) -> bytes:
    texts = [_text(rack) for rack in sorted(racks, key=_java_order)]
    return b"".join(text[-_INT.size :] + text for text in texts)


def _java_order(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


def _text(text: str) -> bytes:
    units = text.encode("utf-16-le", "surrogatepass")
    return units + _INT.pack(len(units) // 2)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
