"""The changes that the console can make. Each is a request of Kafka's protocol or the native one, with its rights.

A destructive change names its object twice: in the path, and as `confirm` in the body.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct

from warmlog.broker.console.values import Done
from warmlog.broker.console.visit import ConsoleError, Handler, Visit, kafka_error, whole_number
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import DeleteGroupsRequest, OffsetCommitRequest, OffsetToCommit, PartitionEntry
from warmlog.protocol.kafka.messages.topics.assignments import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    Reassignment,
)
from warmlog.protocol.native.groups import DescribeConsumerGroupsRequest
from warmlog.protocol.request import (
    AlterTopicsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ListOffsetsRequest,
    NewTopic,
    OffsetQuery,
    TopicAlteration,
)

EARLIEST: Final = -2
LATEST: Final = -1
MAX_PARTITIONS: Final = 1000  # partitions per reset


class Body(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of the bodies of changes."""


class CreateTopic(Body, frozen=True):
    """A topic to create; -1 is the broker's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: dict[str, str] = {}


class AlterTopic(Body, frozen=True):
    """Settings to change (null resets one to the broker's value), and a higher number of partitions."""

    configs: dict[str, str | None] = {}
    partitions: int | None = None


class Confirmation(Body, frozen=True):
    """The name of the object to delete."""

    confirm: str


class ResetOffsets(Body, frozen=True):
    """The new position of a group in a topic: "beginning", "end", an offset, or a time with `is_time`.

    It applies to `partitions`, by default to all partitions with a committed offset.
    """

    topic: str
    to: str
    is_time: bool = False
    partitions: tuple[int, ...] | None = None


class ElectLeader(Body, frozen=True):
    """An election in a partition: of its preferred replica or, if unclean, of any, which can lose records."""

    unclean: bool = False
    confirm: str = ""


class MoveReplicas(Body, frozen=True):
    """The new brokers of a partition; null cancels a move in progress."""

    replicas: tuple[int, ...] | None


class ChangeRoute(NamedTuple):
    """A change, made by a POST request to its path."""

    path: str
    handler: Handler
    takes: type[Body]
    summary: str
    needs: str


# -- topics ------------------------------------------------------------------------------------------------------------


async def create_topic(visit: Visit) -> Done:
    """Create a topic."""
    content = visit.content(CreateTopic)
    new = NewTopic(
        name=content.name,
        partitions=content.partitions,
        replication_factor=content.replication_factor,
        configs=content.configs,
    )
    response = await visit.ask(CreateTopicsRequest(topics=(new,)))
    _check(response.topics)
    return Done(done=f"created topic {content.name} with {response.topics[0].partitions} partitions")


async def alter_topic(visit: Visit, name: str) -> Done:
    """Change a topic's settings or add partitions."""
    content = visit.content(AlterTopic)
    alteration = TopicAlteration(name=name, configs=content.configs, partitions=content.partitions)
    _check((await visit.ask(AlterTopicsRequest(topics=(alteration,)))).topics)
    return Done(done=f"altered topic {name}")


async def delete_topic(visit: Visit, name: str) -> Done:
    """Delete a topic and its data."""
    _confirm(visit.content(Confirmation).confirm, name)
    _check((await visit.ask(DeleteTopicsRequest(topics=(name,)))).topics)
    return Done(done=f"deleted topic {name}")


# -- groups ------------------------------------------------------------------------------------------------------------


async def delete_group(visit: Visit, name: str) -> Done:
    """Delete a group and its committed offsets."""
    _confirm(visit.content(Confirmation).confirm, name)
    _check((await visit.ask(DeleteGroupsRequest(groups=(name,)))).groups)
    return Done(done=f"deleted group {name}")


async def reset_offsets(visit: Visit, name: str) -> Done:
    """Set the committed offsets of a group that has no members."""
    content = visit.content(ResetOffsets)
    described = (await visit.ask(DescribeConsumerGroupsRequest(groups=(name,)))).groups[0]
    if described.error:
        raise kafka_error(described.error, described.message)
    if described.members:
        text = f"group {name} has {len(described.members)} members, which would commit their own offsets: stop them"
        raise kafka_error(ErrorCode.NON_EMPTY_GROUP, text)
    partitions = content.partitions
    if partitions is None:
        partitions = tuple(each.partition for each in described.positions if each.topic == content.topic)
    if not partitions:
        text = f"group {name} has no offsets in topic {content.topic!r}: name its partitions"
        raise ConsoleError(400, "INVALID_REQUEST", text if content.partitions is None else "partitions: expected some")
    if len(partitions) > MAX_PARTITIONS:
        text = f"partitions: expected at most {MAX_PARTITIONS} at a time, not {len(partitions)}"
        raise ConsoleError(400, "INVALID_REQUEST", text)
    offsets = await _offsets(visit, content, partitions)
    commits = [OffsetToCommit(topic=content.topic, partition=index, offset=offset) for index, offset in offsets.items()]
    _check((await visit.ask(OffsetCommitRequest(group=name, partitions=tuple(commits)))).partitions)
    return Done(done=f"set {len(commits)} offsets of group {name} in {content.topic}")


async def _offsets(visit: Visit, reset: ResetOffsets, partitions: Sequence[int]) -> dict[int, int]:
    """Return the offset to set for each partition. Raises ConsoleError for an offset that is outside of a log."""
    if reset.to.isdigit() and not reset.is_time:
        offset = whole_number("to", reset.to)
        starts = await _list_offsets(visit, reset.topic, partitions, EARLIEST)
        ends = await _list_offsets(visit, reset.topic, partitions, LATEST)
        for index, start in starts.items():
            if not start <= offset <= ends[index]:
                text = f"to: {reset.topic}-{index} has the offsets {start} to {ends[index]}, not {offset}"
                raise kafka_error(ErrorCode.OFFSET_OUT_OF_RANGE, text)
        return dict.fromkeys(partitions, offset)
    special = {"beginning": EARLIEST, "end": LATEST}
    timestamp = whole_number("to", reset.to) if reset.is_time else special.get(reset.to)
    if timestamp is None:
        raise ConsoleError(400, "INVALID_REQUEST", f"to: expected beginning, end or a number, not {reset.to!r}")
    offsets = await _list_offsets(visit, reset.topic, partitions, timestamp)
    late = [index for index, offset in offsets.items() if offset < 0]  # no record is as new: the end
    return offsets | (await _list_offsets(visit, reset.topic, late, LATEST) if late else {})


async def _list_offsets(visit: Visit, topic: str, partitions: Sequence[int], timestamp: int) -> dict[int, int]:
    queries = [OffsetQuery(topic=topic, partition=index, timestamp=timestamp) for index in partitions]
    response = await visit.ask(ListOffsetsRequest(partitions=tuple(queries)))
    _check(response.partitions)
    return {each.partition: each.offset for each in response.partitions}


# -- partitions --------------------------------------------------------------------------------------------------------


async def elect_leader(visit: Visit, name: str, index: str) -> Done:
    """Elect a partition's preferred replica, or any."""
    content, number = visit.content(ElectLeader), whole_number("partition", index, most=1 << 31)
    if content.unclean:
        _confirm(content.confirm, f"{name}-{number}")
    entry = PartitionEntry(topic=name, partition=number)
    response = await visit.ask(ElectLeadersRequest(election_type=int(content.unclean), partitions=(entry,)))
    _check([response])
    _check(response.partitions, fine=(ErrorCode.ELECTION_NOT_NEEDED,))
    if any(each.error is ErrorCode.ELECTION_NOT_NEEDED for each in response.partitions):
        return Done(done=f"the leader of {name}-{number} is the right one: no election was needed")
    return Done(done=f"elected a leader of {name}-{number}")


async def move_replicas(visit: Visit, name: str, index: str) -> Done:
    """Move a partition to other brokers, or cancel a move."""
    content, number = visit.content(MoveReplicas), whole_number("partition", index, most=1 << 31)
    move = Reassignment(topic=name, partition=number, replicas=content.replicas)
    response = await visit.ask(AlterPartitionReassignmentsRequest(partitions=(move,)))
    _check([response])
    _check(response.partitions)
    what = "cancelled the move of" if content.replicas is None else "began to move"
    return Done(done=f"{what} {name}-{number}")


def _check(results: Sequence[Any], fine: Sequence[ErrorCode] = ()) -> None:
    """Raise ConsoleError for the first result that is an error."""
    for each in results:
        if each.error and each.error not in fine:
            raise kafka_error(each.error, each.message)


def _confirm(given: str, name: str) -> None:
    """Raise ConsoleError unless the object to delete was named."""
    if given != name:
        raise ConsoleError(400, "NOT_CONFIRMED", f"confirm: expected {name!r}, the name of what will be lost")


# fmt: off
CHANGES: Final = (
    ChangeRoute("topics", create_topic, CreateTopic, "Create a topic.", "CREATE Cluster or CREATE Topic"),
    ChangeRoute("topics/{topic}/alter", alter_topic, AlterTopic, "Change settings, or add partitions.",
          "ALTER_CONFIGS Topic for settings; ALTER Topic for partitions"),
    ChangeRoute("topics/{topic}/delete", delete_topic, Confirmation, "Delete a topic and its data.",
          "DELETE Cluster or DELETE Topic"),
    ChangeRoute("topics/{topic}/partitions/{partition}/elect", elect_leader, ElectLeader, "Elect a leader.",
                "ALTER Cluster"),
    ChangeRoute("topics/{topic}/partitions/{partition}/move", move_replicas, MoveReplicas,
          "Move a partition to other brokers.", "ALTER Cluster"),
    ChangeRoute("groups/{group}/reset", reset_offsets, ResetOffsets,
                "Set committed offsets of a group without members.",
          "DESCRIBE and READ Group; DESCRIBE and READ Topic"),
    ChangeRoute("groups/{group}/delete", delete_group, Confirmation, "Delete a group without members.", "DELETE Group"),
)
# fmt: on
