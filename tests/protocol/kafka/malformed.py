"""Requests that no Kafka client would send, for every API and version, pseudorandom but the same in every run.

Each is a byte stream of a frame with its length, which may be wrong.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.protocol.kafka.messages import TABLES, VERSIONS, body, flexible, frame, sample
from warmlog.protocol.errors import ProtocolError
from warmlog.protocol.kafka.api import Api, Codec
from warmlog.protocol.kafka.codec.bounds import MAX_UNKNOWN_TAGS
from warmlog.protocol.kafka.codec.writer import FlexibleWriter

HEADER_SIZE = 8  # key, version, correlation id; followed by the client id
# Valid requests too; a random one would create 100,000 directories.
COSTLY = {"CreateTopics", "CreatePartitions"}
VICTIM = "victim"  # a topic that should exist when these are sent
AIMS: dict[str, Any] = {
    **dict.fromkeys(("name", "topic", "topics", "topic_name", "topic_names", "resource_name"), VICTIM),
    **dict.fromkeys(("partition", "partition_index", "partition_indexes", "partitions", "index"), 0),
    **dict.fromkeys(("group_id", "groups", "groups_names", "group"), "victims"),
    "resource_type": 2,
    "member_id": "",
}
HUGE = (b"\x7f\xff\xff\xff", b"\x00\x0f\x42\x40", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\xc0\x84\x3d")
NEGATIVE = (b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xfe", b"\x80\x00")


@dataclass(frozen=True, slots=True)
class Malformed:
    """The bytes to send, and the size of the pieces to send them in."""

    what: str
    stream: bytes
    piece: int = 1 << 20


def framed(data: bytes, *, more: int = 0) -> bytes:
    """Prepend the length, off by `more`."""
    return (len(data) + more).to_bytes(4, signed=True) + data


def malformed(seed: int) -> Iterator[Malformed]:
    """Yield one request of each kind for each API and version."""
    source = random.Random(seed)
    for api, version in VERSIONS:
        for kind in KINDS:
            whole = bytes(frame(api, version, body_of(api, version, source)))
            made = kind(api, version, whole, source)
            if made is not None and (api.name not in COSTLY or not is_readable(made.stream[4:])):
                yield made


def body_of(api: Api, version: int, source: random.Random) -> bytes:
    """Return random values that often name existing things: VICTIM, its first partition, one group."""
    values = sample(TABLES[f"{api.name}Request"], version, source)
    if api.name != "DeleteTopics":
        values = _aimed(values, source)
    return body(f"{api.name}Request", api, version, values)


def _aimed(values: dict[str, Any], source: random.Random) -> dict[str, Any]:
    return {name: _aimed_value(name, value, source) for name, value in values.items()}


def _aimed_value(name: str, value: Any, source: random.Random) -> Any:
    if isinstance(value, dict):
        return _aimed(value, source)
    if isinstance(value, tuple):
        return tuple([_aimed_value(name, one, source) for one in value])
    return AIMS.get(name, value) if value is not None and source.random() < 0.7 else value


def is_readable(data: bytes) -> bool:
    try:
        Codec().decode(memoryview(data))
    except ProtocolError:
        return False
    return True


def strange(api: Api, version: int, whole: bytes, source: random.Random) -> Malformed:
    """Return a well-formed request with meaningless values."""
    return Malformed(f"{api.name} {version} with random values", framed(whole))


def cut(api: Api, version: int, whole: bytes, source: random.Random) -> Malformed:
    return Malformed(f"{api.name} {version} cut", framed(whole[: source.randrange(len(whole))]))


def random_body(api: Api, version: int, whole: bytes, source: random.Random) -> Malformed:
    noise = source.randbytes(source.choice((1, 5, 60, 700)))
    return Malformed(f"{api.name} {version} with a random body", framed(whole[: HEADER_SIZE + 2 + 4] + noise))


def flipped(api: Api, version: int, whole: bytes, source: random.Random) -> Malformed:
    changed = bytearray(whole)
    for _ in range(source.choice((1, 1, 2, 8))):
        changed[source.randrange(HEADER_SIZE, len(changed))] = source.randrange(256)
    return Malformed(f"{api.name} {version} with flipped bytes", framed(bytes(changed)))


def huge_count(api: Api, version: int, whole: bytes, source: random.Random) -> Malformed:
    return Malformed(f"{api.name} {version} with a huge count", framed(_overwritten(whole, HUGE, source)))


def negative_size(api: Api, version: int, whole: bytes, source: random.Random) -> Malformed:
    return Malformed(f"{api.name} {version} with a negative size", framed(_overwritten(whole, NEGATIVE, source)))


def _overwritten(whole: bytes, patches: tuple[bytes, ...], source: random.Random) -> bytes:
    patch = source.choice(patches)
    at = source.randrange(HEADER_SIZE, len(whole))
    return whole[:at] + patch + whole[at + len(patch) :]


def unknown_version(api: Api, version: int, whole: bytes, source: random.Random) -> Malformed:
    other = source.choice((api.first - 1, api.last + 1, -1, 32767, -32768))
    return Malformed(f"{api.name} {other}", framed(whole[:2] + other.to_bytes(2, signed=True) + whole[4:]))


def unknown_key(api: Api, version: int, whole: bytes, source: random.Random) -> Malformed:
    key = source.choice((-1, 999, 32767, -32768, source.randrange(100, 30000)))
    return Malformed(f"API {key}", framed(key.to_bytes(2, signed=True) + whole[2:]))


def too_many_tags(api: Api, version: int, whole: bytes, source: random.Random) -> Malformed | None:
    if not flexible(api, version):
        return None
    writer = FlexibleWriter(b"")
    count = source.choice((MAX_UNKNOWN_TAGS + 1, 50_000, (1 << 32) - 1))
    writer.uvarint(count)
    for tag in range(100, 100 + min(count, 50_000)):
        writer.uvarint(tag)
        writer.uvarint(0)
    tags = writer.written()
    # at the end of the header, or at the end of the body
    at = HEADER_SIZE + 2 + len(b"test") if source.random() < 0.5 else len(whole) - 1
    return Malformed(f"{api.name} {version} with {count} tags", framed(whole[:at] + tags + whole[at + 1 :]))


def tag_that_lies(api: Api, version: int, whole: bytes, source: random.Random) -> Malformed | None:
    if not flexible(api, version):
        return None
    tag = source.choice((b"\x01\x00\x7f", b"\x01\x00\xff\xff\xff\xff\x0f", b"\x02\x00\x01a", b"\x01\x01\x05abcde"))
    return Malformed(f"{api.name} {version} with a tag that lies", framed(whole[:-1] + tag))


def wrong_client(api: Api, version: int, whole: bytes, source: random.Random) -> Malformed:
    length = source.choice((b"\xff\xfe", b"\x80\x00", b"\x7f\xff"))
    return Malformed(
        f"{api.name} {version} with a client id of {length.hex()}", framed(whole[:8] + length + whole[10:])
    )


def too_long(api: Api, version: int, whole: bytes, source: random.Random) -> Malformed:
    return Malformed(f"{api.name} {version}, its length too large", framed(whole, more=source.choice((1, 9, 1 << 20))))


def too_short(api: Api, version: int, whole: bytes, source: random.Random) -> Malformed:
    return Malformed(f"{api.name} {version}, its length too small", framed(whole, more=-source.randint(1, 9)))


def impossible_length(api: Api, version: int, whole: bytes, source: random.Random) -> Malformed:
    length = source.choice((-1, -(1 << 31), (1 << 31) - 1, (100 << 20) + 1))
    return Malformed(f"{api.name} {version} of {length} bytes", length.to_bytes(4, signed=True) + whole)


def dripped(api: Api, version: int, whole: bytes, source: random.Random) -> Malformed:
    data = framed(whole[:40])
    return Malformed(f"{api.name} {version} cut and dripped", data, piece=1)


Kind = Callable[[Api, int, bytes, random.Random], Malformed | None]
KINDS: tuple[Kind, ...] = (
    strange, cut, random_body, flipped, huge_count, negative_size, unknown_version, unknown_key, too_many_tags,
    tag_that_lies, wrong_client, too_long, too_short, impossible_length, dripped,
)  # fmt: skip
