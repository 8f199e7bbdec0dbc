"""Decide about registrations, topics, settings and counters. Pure, like `rules`, which decides about partition states.

A topic with more partitions than fit into one transaction is created in several: it is `creating`, and invisible, until
all of its partitions exist. Its deletion also takes several transactions: the topic is marked `deleting` first. The
broker that begins such a change completes it (`admin`); if that broker is gone, the controller does.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace as copied
from uuid import UUID

from msgspec.structs import replace

from warmlog.broker.cluster.decisions import Decision, Refusal
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.keys import (
    CONTROLLER_KEY,
    FEATURES_KEY,
    MIRROR_KEY,
    PRODUCER_IDS_KEY,
    broker_key,
    configs_key,
    draining_key,
    encode,
    gone_key,
    known_key,
    partition_key,
    topic_key,
)
from warmlog.broker.cluster.store import ABSENT, MAX_OPERATIONS, Compare, Delete, Operation, Put, StoreTransaction
from warmlog.broker.cluster.values import (
    NO_EPOCH,
    ActiveController,
    Configs,
    Features,
    Member,
    PartitionState,
    ProducerIds,
    Registration,
    TopicState,
    TopicStatus,
)
from warmlog.broker.metadata.topic import Mirror
from warmlog.protocol.partitions import TopicIdPartition

PARTITIONS_PER_STEP = 100  # created in one transaction with the topic, within the store's limit
TOPICS_PER_STEP = 120  # changed in one transaction on a standalone broker, within the same limit

Assignment = Sequence[Sequence[int]]  # the replicas of each partition, preferred leader first


# -- brokers -----------------------------------------------------------------------------------------------------------


def register(image: ClusterImage, registration: Registration, lease: int) -> Decision:
    """Register a broker, or replace its own earlier registration, which its data directories identify.

    `registration.since` is NO_EPOCH after an unclean start.
    """
    broker = registration.broker
    known = image.brokers.get(broker)
    if known is not None and not set(known.directories) & set(registration.directories):
        return Refusal(f"node.id {broker} is in use by a broker with other data directories, at {known.where}")
    key, value = broker_key(broker), encode(replace(registration, lease=lease, epoch=NO_EPOCH))
    puts = Put(key, value, lease), Put(known_key(broker), value)
    return StoreTransaction((Compare(key, image.revision_of(key)),), (*puts, Delete(draining_key(broker))))


def end_registration(image: ClusterImage, broker: int) -> Decision:
    """End the registration of a broker that no longer answers. It stays known."""
    key = broker_key(broker)
    if broker not in image.brokers:
        return Refusal(f"broker {broker} is not registered")
    return StoreTransaction((Compare(key, image.revision_of(key)),), (Delete(key),))


def unregister(image: ClusterImage, broker: int) -> Decision:
    """Remove a broker that will not return: it gets no further replicas. Those it has stay assigned."""
    if broker in image.brokers:
        return Refusal(f"broker {broker} is running and cannot be unregistered")
    if broker not in image.known:
        return Refusal(f"broker {broker} is not registered")
    alive, known = broker_key(broker), known_key(broker)
    return StoreTransaction((Compare(alive, ABSENT), Compare(known, image.revision_of(known))), (Delete(known),))


def drain(image: ClusterImage, me: Member, lease: int) -> Decision:
    """Announce that a broker is about to stop, so that other leaders are elected."""
    if not image.may_join(me):
        return Refusal(f"broker {me.broker} is not registered, or already draining")
    key = broker_key(me.broker)
    return StoreTransaction((Compare(key, image.revision_of(key)),), (Put(draining_key(me.broker), b"", lease),))


def take_control(image: ClusterImage, me: Member, lease: int) -> Decision:
    """Become the controller if there is none, or if its registration has ended."""
    controller = image.controller
    if controller is not None and image.current(controller.broker) == Member(controller.broker, controller.epoch):
        return Refusal(f"broker {controller.broker} is the controller")
    key = broker_key(me.broker)
    compares = (Compare(CONTROLLER_KEY, image.revision_of(CONTROLLER_KEY)), Compare(key, image.revision_of(key)))
    return StoreTransaction(
        compares, (Put(CONTROLLER_KEY, encode(ActiveController(broker=me.broker, epoch=me.epoch)), lease),)
    )


def resign_control(image: ClusterImage, me: Member) -> Decision:
    """Stop being the controller, so that another broker takes over immediately."""
    controller = image.controller
    if controller is None or controller.broker != me.broker:
        return Refusal(f"broker {me.broker} is not the controller")
    return StoreTransaction((Compare(CONTROLLER_KEY, image.revision_of(CONTROLLER_KEY)),), (Delete(CONTROLLER_KEY),))


def take_mirroring(image: ClusterImage, me: Member, lease: int) -> Decision:
    """Become the broker that changes mirrored topics, if there is none or its registration has ended."""
    keeper = image.mirror_keeper
    if keeper is not None and image.current(keeper.broker) == Member(keeper.broker, keeper.epoch):
        return Refusal(f"broker {keeper.broker} manages the mirrored topics")
    key = broker_key(me.broker)
    compares = (Compare(MIRROR_KEY, image.revision_of(MIRROR_KEY)), Compare(key, image.revision_of(key)))
    return StoreTransaction(
        compares, (Put(MIRROR_KEY, encode(ActiveController(broker=me.broker, epoch=me.epoch)), lease),)
    )


def resign_mirroring(image: ClusterImage, me: Member) -> Decision:
    """Leave mirrored topics to another broker, because this one cannot reach their source."""
    keeper = image.mirror_keeper
    if keeper is None or keeper.broker != me.broker:
        return Refusal(f"broker {me.broker} does not manage the mirrored topics")
    return StoreTransaction((Compare(MIRROR_KEY, image.revision_of(MIRROR_KEY)),), (Delete(MIRROR_KEY),))


# -- topics ------------------------------------------------------------------------------------------------------------


def create(image: ClusterImage, name: str, topic: TopicState, assignment: Assignment, creator: Member) -> Decision:
    """Create a topic with its first partitions; it is live if it has no further ones."""
    if name in image.topics:
        return Refusal(f"topic {name!r} already exists")
    begun = replace(topic, status=TopicStatus.CREATING, creator=creator)
    is_whole = len(assignment) <= PARTITIONS_PER_STEP
    operations: list[Operation] = [Put(topic_key(name), encode(topic if is_whole else begun))]
    operations += _new_partitions(image, topic.id, assignment[:PARTITIONS_PER_STEP], 0)
    return StoreTransaction((Compare(topic_key(name), ABSENT),), tuple(operations))


def add_partitions(image: ClusterImage, name: str, assignment: Assignment) -> Decision:
    """Continue to create or grow a topic: add the next partitions."""
    topic = image.topics.get(name)
    if topic is None or topic.status is TopicStatus.DELETING:
        return Refusal(f"no topic {name!r}")
    first = image.counts[topic.id]
    added = assignment[:PARTITIONS_PER_STEP]
    changed = replace(topic, partitions=max(topic.partitions, first + len(added)))
    if topic.status is TopicStatus.CREATING and first + len(added) == topic.partitions:
        changed = replace(changed, status=TopicStatus.LIVE, creator=None)
    operations: list[Operation] = [Put(topic_key(name), encode(changed))]
    operations += _new_partitions(image, topic.id, added, first)
    return StoreTransaction((Compare(topic_key(name), topic.revision),), tuple(operations))


def _new_partitions(image: ClusterImage, topic: UUID, assignment: Assignment, first: int) -> list[Operation]:
    """Return the states of new partitions: all live replicas are in sync, as none has any record.

    If none is alive, all have to come back before one leads, as after a power cut.
    """
    operations: list[Operation] = []
    for index, replicas in enumerate(assignment, first):
        live = [image.current(broker) for broker in replicas if broker not in image.draining]
        alive = tuple([member for member in live if member is not None])
        state = PartitionState(
            replicas=tuple(replicas),
            leader=alive[0] if alive else None,
            leader_epoch=0,
            isr=alive or tuple([Member(broker, NO_EPOCH) for broker in replicas]),
        )
        operations.append(Put(partition_key(TopicIdPartition(topic, index)), encode(state)))
    return operations


def delete(image: ClusterImage, name: str) -> Decision:
    """Delete a topic, or begin to. Each broker with data of it gets a mark, which it removes with the data."""
    topic = image.topics.get(name)
    if topic is None:
        return Refusal(f"no topic {name!r}")
    deleted, operations = _deleted(image, topic)
    is_last = len(deleted) == image.counts[topic.id]
    compares = [Compare(topic_key(name), topic.revision)]
    if not is_last and topic.status is not TopicStatus.DELETING:
        begun = replace(topic, status=TopicStatus.DELETING)
        return StoreTransaction(tuple(compares), (Put(topic_key(name), encode(begun)),))
    compares += [Compare(partition_key(key), image.partitions[key].revision) for key in deleted]
    operations.append(Delete(topic_key(name)) if is_last else Put(topic_key(name), encode(topic)))
    return StoreTransaction(tuple(compares), tuple(operations))


def _deleted(image: ClusterImage, topic: TopicState) -> tuple[list[TopicIdPartition], list[Operation]]:
    """Return the last partitions, as many as one transaction can delete, and its operations."""
    marked, deleted = set(image.gone.get(topic.id, ())), []
    operations: list[Operation] = []
    for index in reversed(range(image.counts[topic.id])):
        key = TopicIdPartition(topic.id, index)
        holders = sorted(set(image.partitions[key].replicas) - marked)
        if len(operations) + len(holders) + 2 > MAX_OPERATIONS:
            break
        marked.update(holders)
        deleted.append(key)
        operations += [Delete(partition_key(key)), *[Put(gone_key(topic.id, broker), b"") for broker in holders]]
    return deleted, operations


def removed(image: ClusterImage, topic: UUID, broker: int) -> Decision:
    """Record that a broker no longer has data of a deleted topic."""
    if broker not in image.gone.get(topic, ()):
        return Refusal("this broker has no data of the topic")
    key = gone_key(topic, broker)
    return StoreTransaction((Compare(key, image.revision_of(key)),), (Delete(key),))


def is_abandoned(image: ClusterImage, topic: TopicState) -> bool:
    """Return whether the controller has to finish a creation, a deletion or a promotion."""
    if topic.status is TopicStatus.LIVE:
        return promoted_ends(image, topic) is not None
    if topic.status is TopicStatus.CREATING:
        return topic.creator is None or image.current(topic.creator.broker) != topic.creator
    return topic.status is TopicStatus.DELETING


# -- topics of a standalone broker, whose store has no states of partitions --------------------------------------------


def create_local(image: ClusterImage, created: Mapping[str, TopicState]) -> Decision:
    """Create topics."""
    taken = next((name for name in created if name in image.topics), None)
    if taken is not None:
        return Refusal(f"topic {taken!r} already exists")
    puts = tuple([Put(topic_key(name), encode(topic)) for name, topic in created.items()])
    return StoreTransaction(tuple([Compare(put.key, ABSENT) for put in puts]), puts)


def grow_local(image: ClusterImage, name: str, partitions: int) -> Decision:
    """Set the number of partitions of a topic."""
    topic = image.topics.get(name)
    if topic is None or topic.status is not TopicStatus.LIVE:
        return Refusal(f"no topic {name!r}")
    return _changed(name, topic, replace(topic, partitions=partitions))


def begin_local_deletion(image: ClusterImage, names: Sequence[str]) -> Decision:
    """Mark topics as being deleted: clients no longer see them, but their data still exists."""
    topics = {name: image.topics[name] for name in names if name in image.topics}
    puts = [Put(topic_key(name), encode(replace(each, status=TopicStatus.DELETING))) for name, each in topics.items()]
    return StoreTransaction(
        tuple(Compare(topic_key(name), each.revision) for name, each in topics.items()), tuple(puts)
    )


def finish_local_deletion(image: ClusterImage, names: Sequence[str], left: Container[str], broker: int) -> Decision:
    """Delete the keys of deleted topics; for each in `left`, record that `broker` still has data of it."""
    topics = {name: image.topics[name] for name in names if name in image.topics}
    operations: list[Operation] = [Delete(topic_key(name)) for name in topics]
    operations += [Put(gone_key(each.id, broker), b"") for name, each in topics.items() if name in left]
    compares = tuple(Compare(topic_key(name), each.revision) for name, each in topics.items())
    return StoreTransaction(compares, tuple(operations))


# -- settings ---------------------------------------------------------------------------------------------------------


def set_topic_configs(image: ClusterImage, name: str, configs: Mapping[str, str]) -> Decision:
    """Replace the settings of a topic. A new `min.insync.replicas` changes no partition's state: see `rules`."""
    topic = image.topics.get(name)
    if topic is None or topic.status is not TopicStatus.LIVE:
        return Refusal(f"no topic {name!r}")
    return _changed(name, topic, replace(topic, configs=dict(configs)))


def set_mirror(image: ClusterImage, name: str, mirror: Mirror) -> Decision:
    """Replace the stored source of a mirrored topic."""
    topic = image.topics.get(name)
    if topic is None or topic.status is not TopicStatus.LIVE:
        return Refusal(f"no topic {name!r}")
    return _changed(name, topic, replace(topic, mirror=mirror))


def begin_promotion(image: ClusterImage, name: str) -> Decision:
    """Have the leaders of a mirrored topic's partitions promote them; see `rules.mirrored.promote`."""
    topic = image.topics.get(name)
    if topic is None or topic.status is not TopicStatus.LIVE:
        return Refusal(f"no topic {name!r}")
    if topic.mirror is None or topic.mirror.is_promoted:
        return Refusal(f"topic {name!r} is not a mirror" + (" any more" if topic.mirror else ""))
    return _changed(name, topic, replace(topic, mirror=copied(topic.mirror, is_promoting=True)))


def promoted_ends(image: ClusterImage, topic: TopicState) -> tuple[int, ...] | None:
    """Return the offsets at which all partitions of a topic were promoted; None if one is not promoted yet."""
    if topic.mirror is None or not topic.mirror.is_promoting:
        return None
    ends: list[int] = []
    for index in range(topic.partitions):
        state = image.partitions.get(TopicIdPartition(topic.id, index))
        if state is None or state.promoted_at is None:
            return None
        ends.append(state.promoted_at)
    return tuple(ends)


def finish_promotion(image: ClusterImage, name: str) -> Decision:
    """Record that all partitions of a topic are writable: it is no longer a mirror."""
    topic = image.topics.get(name)
    ends = None if topic is None else promoted_ends(image, topic)
    if topic is None or topic.mirror is None or ends is None:
        return Refusal(f"topic {name!r} has partitions that are not promoted")
    return _changed(name, topic, replace(topic, mirror=copied(topic.mirror, is_promoting=False, promoted_at=ends)))


def _changed(name: str, topic: TopicState, changed: TopicState) -> StoreTransaction:
    return StoreTransaction((Compare(topic_key(name), topic.revision),), (Put(topic_key(name), encode(changed)),))


def set_configs(image: ClusterImage, scope: str, configs: Mapping[str, str]) -> Decision:
    """Replace the settings of a key of `ClusterImage.configs`."""
    key = configs_key(scope)
    put = Put(key, encode(Configs(values=dict(configs))))
    return StoreTransaction((Compare(key, image.revision_of(key)),), (put,))


def set_features(image: ClusterImage, levels: Mapping[str, int]) -> Decision:
    """Set the levels of these features; other features keep theirs."""
    changed = Features(levels={**image.features.levels, **levels})
    return StoreTransaction(
        (Compare(FEATURES_KEY, image.revision_of(FEATURES_KEY)),), (Put(FEATURES_KEY, encode(changed)),)
    )


def take_producer_ids(image: ClusterImage, count: int, at_least: int) -> tuple[int, StoreTransaction]:
    """Return the first of `count` new producer ids, and the transaction that allocates them."""
    first = max(image.producer_ids.next_id, at_least)
    compare = Compare(PRODUCER_IDS_KEY, image.revision_of(PRODUCER_IDS_KEY))
    return first, StoreTransaction((compare,), (Put(PRODUCER_IDS_KEY, encode(ProducerIds(next_id=first + count))),))
