"""Change topics, settings and counters of the cluster, from any broker.

Every call returns when this broker's image has the change. While the store is unavailable, the call waits; `in_time`
limits the wait.

Handlers validate names and settings; everything that depends on the cluster is decided in `topics`.
`partition_admin` changes states of partitions.
"""

from collections.abc import Awaitable, Callable, Collection, Container, Mapping, Sequence
from random import Random
from typing import TypeVar
from uuid import UUID

import trio

from warmlog.broker.cluster import topics
from warmlog.broker.cluster.decisions import Decision, Refusal
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.store import StoreError
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.cluster.topics import PARTITIONS_PER_STEP, TOPICS_PER_STEP, Assignment
from warmlog.broker.cluster.values import TopicState, TopicStatus
from warmlog.broker.metadata.assignment import InvalidAssignmentError, TooFewBrokersError, assign_replicas
from warmlog.broker.metadata.errors import MetadataError, MetadataTimeoutError
from warmlog.broker.metadata.topic import Mirror, RefusedError
from warmlog.protocol.partitions import TopicIdPartition

COMMIT_TIMEOUT_S = 20.0  # less than clients wait for a reply, usually 30 s

Configs = Mapping[str, str]
Failures = dict[str, Exception]  # by topic
T = TypeVar("T")


async def in_time(change: Callable[[], Awaitable[T]]) -> T:
    """Run a client's change with a deadline. Raises MetadataTimeoutError, MetadataError."""
    try:
        with trio.fail_after(COMMIT_TIMEOUT_S):
            return await change()
    except trio.TooSlowError:
        raise MetadataTimeoutError("the cluster's store does not answer; try again later") from None
    except StoreError as error:
        raise MetadataError(str(error)) from error


def place(
    image: ClusterImage, partitions: int, replication_factor: int, random: Random, *, first_partition: int = 0
) -> Assignment:
    """Choose brokers for the replicas of new partitions, spread over racks. Raises TooFewBrokersError.

    Leaders are alive. Brokers that are fenced get replicas if there are too few others, or none in their rack.
    """
    known = {broker: each for broker, each in (image.known | image.brokers).items() if broker not in image.draining}
    alive = sorted(filter(image.is_active, known))
    if not alive:
        raise TooFewBrokersError("no broker can lead: every one of them is fenced or shutting down")
    if replication_factor > len(known):
        raise TooFewBrokersError(
            f"replication factor {replication_factor} is larger than the number of registered brokers, {len(known)}"
        )
    return assign_replicas(
        alive,
        partitions,
        replication_factor,
        random,
        fenced=sorted(known.keys() - alive),
        racks={broker: registration.rack for broker, registration in known.items()},
        first_partition=first_partition,
    )


def check_assignment(image: ClusterImage, assignment: Assignment) -> None:
    """Raise InvalidAssignmentError unless every partition gets distinct brokers, equally many each, one of them alive.

    All brokers have to be registered.
    """
    if not assignment or len({len(replicas) for replicas in assignment}) != 1 or not assignment[0]:
        raise InvalidAssignmentError("every partition needs the same number of replicas, at least one")
    for index, replicas in enumerate(assignment):
        if len(set(replicas)) != len(replicas):
            raise InvalidAssignmentError(f"partition {index} has two replicas on the same broker: {list(replicas)}")
        unknown = [broker for broker in replicas if not image.is_known(broker)]
        if unknown:
            raise InvalidAssignmentError(f"partition {index}: broker {unknown[0]} is not registered")
        if not any(image.is_active(broker) for broker in replicas):
            raise InvalidAssignmentError(
                f"partition {index}: each of the brokers {list(replicas)} is fenced or shutting down, so none can lead"
            )


async def create_topic(node: StoreNode, name: str, topic: TopicState, assignment: Assignment) -> None:
    """Create a topic. Raises RefusedError if it exists, or if it was deleted before this call returned."""
    missed = node.missed

    def begin(image: ClusterImage) -> Decision | None:
        existing = image.topics.get(name)
        if existing is not None and existing.id == topic.id:
            return None  # the answer to an earlier attempt was lost
        if existing is None and node.may_be_deleted(topic.id, missed):
            return Refusal(f"topic {name!r} was deleted while it was being created")
        return topics.create(image, name, topic, assignment, node.me)

    await node.commit(begin)
    await _add_rest(node, name, topic.id, assignment, first=0)


async def grow_topic(node: StoreNode, name: str, topic_id: UUID, assignment: Assignment, first: int) -> None:
    """Add partitions to a topic, the first of which is number `first`. Raises RefusedError."""
    topic = node.image.topics.get(name)
    if topic is None or topic.id != topic_id or topic.status is not TopicStatus.LIVE:
        raise RefusedError(f"no topic {name!r}")
    if topic.partitions != first:
        raise RefusedError(f"topic {name!r} has {topic.partitions} partitions, not {first}")
    await _add_rest(node, name, topic_id, assignment, first=first)


async def _add_rest(node: StoreNode, name: str, topic_id: UUID, assignment: Assignment, *, first: int) -> None:
    """Add the partitions of an assignment that are missing in the store; the first one has number `first`."""

    def step(image: ClusterImage) -> Decision | None:
        topic = image.topics.get(name)
        if topic is None or topic.id != topic_id:
            return Refusal(f"topic {name!r} was deleted meanwhile")
        known = image.counts[topic_id]
        is_whole = known >= first + len(assignment) and topic.status is not TopicStatus.CREATING
        return None if is_whole else topics.add_partitions(image, name, assignment[known - first :])

    for _ in range(len(assignment) // PARTITIONS_PER_STEP + 1):
        await node.commit(step)


async def delete_topic(node: StoreNode, name: str, topic_id: UUID | None = None) -> None:
    """Delete a topic. Raises RefusedError if there is none, or only one with another id."""
    topic = node.image.topics.get(name)
    if topic is None or topic_id not in {None, topic.id}:
        raise RefusedError(f"no topic {name!r}")

    def step(image: ClusterImage) -> Decision | None:
        there = image.topics.get(name)
        return topics.delete(image, name) if there is not None and there.id == topic.id else None

    while (there := node.image.topics.get(name)) is not None and there.id == topic.id:
        await node.commit(step)


async def finish_topic(node: StoreNode, name: str) -> None:
    """Finish creating or deleting a topic that another broker began, or promoting one. Raises RefusedError."""
    topic = node.image.topics.get(name)
    if topic is None:
        return
    if topic.status is TopicStatus.DELETING:
        await delete_topic(node, name)
        return
    if topic.status is TopicStatus.LIVE:
        await node.commit(lambda image: topics.finish_promotion(image, name))
        return
    image, known = node.image, node.image.counts[topic.id]
    factor = len(image.partitions[TopicIdPartition(topic.id, 0)].replicas)
    missing = topic.partitions - known
    placed = place(image, missing, factor, node.random, first_partition=known) if missing else ()
    await _add_rest(node, name, topic.id, placed, first=known)


async def create_local(node: StoreNode, wanted: Mapping[str, TopicState]) -> Failures:
    """Create topics on a standalone broker, and return the failures by name."""

    def decide(image: ClusterImage, names: Sequence[str]) -> Decision:
        return topics.create_local(image, {name: wanted[name] for name in names})

    return await _in_pieces(node, wanted, decide, TOPICS_PER_STEP)


async def grow_local(node: StoreNode, name: str, partitions: int) -> None:
    """Set the number of partitions of a topic on a standalone broker. Raises RefusedError."""
    await node.commit(lambda image: topics.grow_local(image, name, partitions))


async def begin_local_deletion(node: StoreNode, names: Collection[str]) -> Failures:
    """Hide topics of a standalone broker from clients, until their data is deleted. Return the failures by name."""
    return await _in_pieces(node, names, topics.begin_local_deletion, TOPICS_PER_STEP)


async def finish_local_deletion(node: StoreNode, names: Collection[str], left: Container[str]) -> Failures:
    """Remove deleted topics of a standalone broker; `left` are those with data that could not be deleted."""

    def decide(image: ClusterImage, names: Sequence[str]) -> Decision:
        return topics.finish_local_deletion(image, names, left, node.id)

    return await _in_pieces(node, names, decide, TOPICS_PER_STEP // 2)


async def _in_pieces(
    node: StoreNode, names: Collection[str], decide: Callable[[ClusterImage, Sequence[str]], Decision], size: int
) -> Failures:
    """Change topics in concurrent transactions, which share writes to the disk; return the failures by name."""
    failures: Failures = {}

    async def change(piece: Sequence[str]) -> None:
        try:
            await node.commit(lambda image: decide(image, piece))
        except (RefusedError, StoreError) as error:
            reason = MetadataError(str(error)) if isinstance(error, StoreError) else error
            failures.update(dict.fromkeys(piece, reason))

    left = list(names)
    async with trio.open_nursery() as nursery:
        for start in range(0, len(left), size):
            nursery.start_soon(change, left[start : start + size])
    return failures


async def set_mirror(node: StoreNode, name: str, mirror: Mirror) -> None:
    """Replace the stored source of a mirrored topic. Raises RefusedError."""
    await node.commit(lambda image: topics.set_mirror(image, name, mirror))


async def begin_promotion(node: StoreNode, name: str) -> None:
    """Have the leaders of a mirrored topic's partitions promote them. Raises RefusedError."""

    def make(image: ClusterImage) -> Decision | None:
        topic = image.topics.get(name)
        is_begun = topic is not None and topic.mirror is not None and topic.mirror.is_promoting
        return None if is_begun else topics.begin_promotion(image, name)

    await node.commit(make)


async def set_topic_configs(node: StoreNode, name: str, change: Callable[[Configs], Configs]) -> None:
    """Replace the settings of a topic by the result of `change`. Raises RefusedError, and what `change` raises."""

    def make(image: ClusterImage) -> Decision | None:
        topic = image.topics.get(name)
        return topics.set_topic_configs(image, name, change(topic.configs if topic is not None else {}))

    await node.commit(make)


async def set_configs(node: StoreNode, scope: str, change: Callable[[Configs], Configs]) -> None:
    """Replace the settings of a key of `ClusterImage.configs`; see `set_topic_configs`."""

    def old(image: ClusterImage) -> Configs:
        config = image.configs.get(scope)
        return {} if config is None else config.values

    await node.commit(lambda image: topics.set_configs(image, scope, change(old(image))))


async def set_features(node: StoreNode, levels: Mapping[str, int]) -> None:
    """Set the levels of these features; other features keep theirs."""
    await node.commit(lambda image: topics.set_features(image, levels))


async def take_producer_ids(node: StoreNode, count: int, *, at_least: int = 0) -> int:
    """Allocate consecutive new producer ids, none below `at_least`, and return the first.

    If the store's answer is lost, so are the ids: the next attempt allocates others.
    """
    first = 0

    def make(image: ClusterImage) -> Decision:
        nonlocal first
        first, taken = topics.take_producer_ids(image, count, at_least)
        return taken

    await node.commit(make)
    return first


async def unregister_broker(node: StoreNode, broker: int) -> None:
    """Remove a broker that will not return. Raises RefusedError if it is alive or not registered."""
    await node.commit(lambda image: topics.unregister(image, broker) if image.is_known(broker) else None)
