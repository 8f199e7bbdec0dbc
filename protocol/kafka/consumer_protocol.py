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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, TypeAlias

from protocol.groups import NO_GENERATION, TopicPartition
from protocol.kafka.primitives import UNREADABLE, MalformedError, Reader, Writer
from protocol.kafka.schema import DATA, INT32, STRING, Array, Field, Struct, array

RANGE = "range"  # the assignor's name in JoinGroup
LAST_VERSION = 3

Partitions: TypeAlias = tuple[TopicPartition, ...]

_VERSION = struct.Struct(">h")
_PARTITIONS = array(Field("topic", STRING), Field("partitions", Array(INT32)))
SUBSCRIPTION = Struct(
    Field("topics", Array(STRING)),
    Field("user_data", DATA, nullable=0, default=None),
    Field("owned_partitions", _PARTITIONS, since=1),
    Field("generation_id", INT32, since=2, default=NO_GENERATION),
    Field("rack_id", STRING, since=3, nullable=3, default=None),
)
ASSIGNMENT = Struct(
    Field("assigned_partitions", _PARTITIONS),
    Field("user_data", DATA, nullable=0, default=None),
)


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


def encode_subscription(subscription: Subscription, version: int = LAST_VERSION) -> bytes:
    """As it stands in a JoinGroup request."""
    return _encoded(
        SUBSCRIPTION,
        version,
        {
            "topics": subscription.topics,
            "user_data": subscription.user_data,
            "owned_partitions": _by_topic(subscription.owned),
            "generation_id": subscription.generation,
            "rack_id": subscription.rack,
        },
    )


def decode_subscription(data: bytes) -> Subscription:
    """Raises MalformedError where the bytes are no subscription."""
    values = _decoded(SUBSCRIPTION, data)
    return Subscription(
        topics=values["topics"],
        user_data=_copied(values["user_data"]),
        owned=_flat(values["owned_partitions"]),
        generation=values["generation_id"],
        rack=values["rack_id"],
    )


def encode_assignment(assignment: Assignment, version: int = LAST_VERSION) -> bytes:
    """As it stands in a SyncGroup request and its answer."""
    partitions = _by_topic(assignment.partitions)
    return _encoded(ASSIGNMENT, version, {"assigned_partitions": partitions, "user_data": assignment.user_data})


def decode_assignment(data: bytes) -> Assignment:
    """No bytes are an assignment of nothing: so a member without any is told. Raises MalformedError."""
    if not data:
        return Assignment(partitions=())
    values = _decoded(ASSIGNMENT, data)
    return Assignment(partitions=_flat(values["assigned_partitions"]), user_data=_copied(values["user_data"]))


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


def _encoded(table: Struct, version: int, values: Mapping[str, Any]) -> bytes:
    writer = Writer(_VERSION.pack(version))
    table.write(writer, version, values)
    return writer.written()


def _decoded(table: Struct, data: bytes) -> dict[str, Any]:
    try:
        (version,) = _VERSION.unpack_from(data)
        if version < 0:
            raise MalformedError(f"version {version}")
        return table.read(Reader(memoryview(data), _VERSION.size), min(version, LAST_VERSION))
    except UNREADABLE as problem:
        raise MalformedError(f"not of the consumer protocol: {problem}") from None


def _by_topic(partitions: Sequence[TopicPartition]) -> list[dict[str, Any]]:
    pairs = sorted((one.topic, one.partition) for one in partitions)
    return [
        {"topic": topic, "partitions": [index for _, index in run]} for topic, run in groupby(pairs, key=itemgetter(0))
    ]


def _flat(topics: Iterable[Mapping[str, Any]]) -> Partitions:
    return tuple([TopicPartition(topic=one["topic"], partition=index) for one in topics for index in one["partitions"]])


def _copied(data: memoryview | None) -> bytes | None:
    return None if data is None else bytes(data)
