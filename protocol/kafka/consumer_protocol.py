"""What the members of a consumer group say to each other through the coordinator, and the range assignor.

Owns: ConsumerProtocolSubscription and ConsumerProtocolAssignment (0 to 3), which stand in a JoinGroup's metadata and in
a SyncGroup's assignment, and `assign_range`. Must not know: groups or topics.

    subscription    int16 version, then
        0   topics (array of strings), user data (bytes, may be null)
        1   owned partitions: array of (topic string, array of int32)
        2   generation int32, in which they were owned
        3   rack string, may be null
    assignment      int16 version, then the same in all versions
            partitions: array of (topic string, array of int32), user data (bytes, may be null)

A version above 3 is read as 3, and what follows is left alone, as Kafka's ConsumerProtocol does: later versions only
append.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any, TypeAlias

from protocol.groups import NO_GENERATION, TopicPartition
from protocol.kafka.codec.bounds import MalformedError
from protocol.kafka.codec.engine import ENGINE
from protocol.kafka.codec.schema import BYTES, INT32, STRING, Array, Field, Flat, Struct, flat

RANGE = "range"  # the assignor's name in JoinGroup
LAST_VERSION = 3

Partitions: TypeAlias = tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a member wants, and what it had. `generation`: in which it had that; NO_GENERATION: it does not say."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: Partitions = ()
    generation: int = NO_GENERATION
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a member gets."""

    partitions: Partitions
    user_data: bytes | None = None


_VERSION = struct.Struct(">h")


def _sorted(get: str) -> Callable[..., list[TopicPartition]]:
    by_place = attrgetter("topic", "partition")
    partitions = attrgetter(get)
    return lambda value, *_: sorted(partitions(value), key=by_place)


def _partitions() -> Flat:
    return flat(Field("topic", STRING), Field("partitions", Array(INT32), attr="partition"), into=TopicPartition)


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
    """Encode what stands in a JoinGroup request."""
    return _encoded(SUBSCRIPTION, version, subscription)


def decode_subscription(data: bytes) -> Subscription:
    """Decode a subscription. Raises MalformedError."""
    subscription: Subscription = _decoded(SUBSCRIPTION, data)
    return subscription


def encode_assignment(assignment: Assignment, version: int = LAST_VERSION) -> bytes:
    """Encode what stands in a SyncGroup request and its answer."""
    return _encoded(ASSIGNMENT, version, assignment)


def decode_assignment(data: bytes) -> Assignment:
    """Decode an assignment; no bytes stand for an assignment of nothing. Raises MalformedError."""
    if not data:
        return Assignment(partitions=())
    assignment: Assignment = _decoded(ASSIGNMENT, data)
    return assignment


def assign_range(
    subscriptions: Mapping[str, Iterable[str]], partition_counts: Mapping[str, int]
) -> dict[str, Partitions]:
    """Each topic's partitions in runs, to the members that want it, in the order given (Kafka's RangeAssignor).

    subscriptions: member id to topics; partition_counts: topic to count, without topics that are not there. The first
    members get one partition more where the count does not divide. Every member has an entry.
    """
    wanted = {member: frozenset(topics) for member, topics in subscriptions.items()}
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in wanted}
    for topic in sorted(frozenset().union(*wanted.values())):
        members = [member for member in assigned if topic in wanted[member]]
        for member, run in zip(members, _runs(partition_counts.get(topic, 0), len(members)), strict=True):
            assigned[member] += [TopicPartition(topic=topic, partition=index) for index in run]
    return {member: tuple(partitions) for member, partitions in assigned.items()}


def _runs(count: int, parts: int) -> list[range]:
    """[0, count) in `parts` runs whose lengths differ by one at most, the longer ones first."""
    ends = [(count // parts) * part + min(part, count % parts) for part in range(parts + 1)]
    return [range(start, end) for start, end in pairwise(ends)]


def _encoded(table: Struct, version: int, value: Any) -> bytes:
    return ENGINE.writer(table, version, flexible=False, bound=True).write(value, _VERSION.pack(version))


def _decoded(table: Struct, data: bytes) -> Any:
    try:
        (version,) = _VERSION.unpack_from(data)
        reader = ENGINE.reader(table, min(version, LAST_VERSION), flexible=False, bound=True)
        value, _ = reader.read(memoryview(data), _VERSION.size)
    except (MalformedError, UnicodeDecodeError, struct.error) as problem:
        raise MalformedError(f"not of the consumer protocol: {problem}") from None
    if version < 0:
        raise MalformedError(f"not of the consumer protocol: version {version}")
    return value
