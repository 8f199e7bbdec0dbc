"""Kafka's consumer protocol (the metadata in JoinGroup, the assignment in SyncGroup), and the range assignor.

    subscription    int16 version, then the fields of all versions up to it
        0   topics (array of strings), user data (nullable bytes)
        1   owned partitions: array of (topic string, array of int32)
        2   generation in which they were owned, int32
        3   rack (nullable string)
    assignment      int16 version, then the same fields in all versions
            partitions: array of (topic string, array of int32), user data (nullable bytes)

Versions above 3 are decoded as version 3, ignoring the rest, because later versions only append fields.

Source: Kafka's ConsumerProtocolSubscription.json, ConsumerProtocolAssignment.json, ConsumerProtocol.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any, TypeAlias

from warmlog.protocol.groups import NO_GENERATION, PartitionEntry
from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.kafka.codec.engine import ENGINE
from warmlog.protocol.kafka.codec.schema import BYTES, INT32, STRING, Array, Field, Flat, Struct, flat

RANGE = "range"  # the assignor's name in JoinGroup
LAST_VERSION = 3

Partitions: TypeAlias = tuple[PartitionEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A member's topics, and the partitions it owned in `generation` (NO_GENERATION if unknown)."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: Partitions = ()
    generation: int = NO_GENERATION
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The partitions assigned to a member."""

    partitions: Partitions
    user_data: bytes | None = None


_VERSION = struct.Struct(">h")


def _sorted(get: str) -> Callable[..., list[PartitionEntry]]:
    by_topic = attrgetter("topic", "partition")
    partitions = attrgetter(get)
    return lambda value, *_: sorted(partitions(value), key=by_topic)


def _partitions() -> Flat:
    return flat(Field("topic", STRING), Field("partitions", Array(INT32), attr="partition"), into=PartitionEntry)


SUBSCRIPTION = Struct(
    Field("topics", Array(STRING)),
    Field("user_data", BYTES, nullable=0, default=None),
    Field("owned_partitions", _partitions(), since=1, attr="owned", get=_sorted("owned")),
    Field("generation_id", INT32, since=2, default=NO_GENERATION, attr="generation"),
    Field("rack_id", STRING, since=3, nullable=3, default=None, attr="rack"),
    into=Subscription,
)
ASSIGNMENT = Struct(
    Field("assigned_partitions", _partitions(), attr="partitions", get=_sorted("partitions")),
    Field("user_data", BYTES, nullable=0, default=None),
    into=Assignment,
)


def encode_subscription(subscription: Subscription, version: int = LAST_VERSION) -> bytes:
    """Encode the metadata of a JoinGroup request."""
    return _encode(SUBSCRIPTION, version, subscription)


def decode_subscription(data: bytes) -> Subscription:
    """Decode a subscription. Raises MalformedError."""
    subscription: Subscription = _decode(SUBSCRIPTION, data)
    return subscription


def encode_assignment(assignment: Assignment, version: int = LAST_VERSION) -> bytes:
    """Encode the assignment in a SyncGroup request or response."""
    return _encode(ASSIGNMENT, version, assignment)


def decode_assignment(data: bytes) -> Assignment:
    """Decode an assignment; empty bytes mean no partitions. Raises MalformedError."""
    if not data:
        return Assignment(partitions=())
    assignment: Assignment = _decode(ASSIGNMENT, data)
    return assignment


def assign_range(
    subscriptions: Mapping[str, Iterable[str]], partition_counts: Mapping[str, int]
) -> dict[str, Partitions]:
    """Assign each topic's partitions in ranges to the members subscribed to it (source: Kafka's RangeAssignor).

    `subscriptions` maps member ids, in order of assignment, to topics; `partition_counts` maps existing topics to their
    number of partitions. If it does not divide evenly, the first members get one more. Every member has an entry in the
    result.
    """
    subscribed = {member: frozenset(topics) for member, topics in subscriptions.items()}
    assigned: dict[str, list[PartitionEntry]] = {member: [] for member in subscribed}
    for topic in sorted(frozenset().union(*subscribed.values())):
        members = [member for member in assigned if topic in subscribed[member]]
        for member, indexes in zip(members, _ranges(partition_counts.get(topic, 0), len(members)), strict=True):
            assigned[member] += [PartitionEntry(topic=topic, partition=index) for index in indexes]
    return {member: tuple(partitions) for member, partitions in assigned.items()}


def _ranges(count: int, parts: int) -> list[range]:
    """Split [0, count) into `parts` ranges whose lengths differ by at most one, the longer ones first."""
    ends = [(count // parts) * part + min(part, count % parts) for part in range(parts + 1)]
    return [range(start, end) for start, end in pairwise(ends)]


def _encode(table: Struct, version: int, value: Any) -> bytes:
    return ENGINE.writer(table, version, flexible=False, bound=True).write(value, _VERSION.pack(version))


def _decode(table: Struct, data: bytes) -> Any:
    try:
        (version,) = _VERSION.unpack_from(data)
        reader = ENGINE.reader(table, min(version, LAST_VERSION), flexible=False, bound=True)
        value, _ = reader.read(memoryview(data), _VERSION.size)
    except (MalformedError, UnicodeDecodeError, struct.error) as problem:
        raise MalformedError(f"invalid consumer protocol data: {problem}") from None
    if version < 0:
        raise MalformedError(f"invalid consumer protocol data: version {version}")
    return value
