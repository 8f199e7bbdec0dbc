"""Decide about partitions of mirrors: their leaders copy records from another cluster, the source.

renew      the leader begins another leader epoch: the source has a later one, or the log has to be truncated
promote    the leader makes its partition writable

The batches of such a log have the source's leader epochs, so that a leader begins no epoch in it. The epoch of the
partition's state is never below those in the log: clients that have seen a batch take no metadata with a lower one.

Renewing before a truncation keeps a leader's knowledge of its followers correct: see point 6 of `rules`.
"""

from msgspec.structs import replace

from warmlog.broker.cluster.decisions import Refusal
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.rules.changes import Change, change_of
from warmlog.broker.cluster.values import Member, PartitionState, TopicState
from warmlog.protocol.partitions import TopicIdPartition


def source_of(topic: TopicState | None, state: PartitionState) -> str | None:
    """Return the id of the cluster whose records a partition follows; None if clients may write to it."""
    mirror = None if topic is None else topic.mirror
    is_followed = mirror is not None and not mirror.is_promoted and state.promoted_at is None
    return mirror.cluster_id if mirror is not None and is_followed else None


def renew(image: ClusterImage, key: TopicIdPartition, me: Member, at_least: int) -> Change | Refusal:
    """Begin a leader epoch, at least a given one, of a mirrored partition that this broker leads."""
    state = image.partitions.get(key)
    if state is None or state.leader is None or not _leads(image, state, me):
        return Refusal(f"broker {me.broker} does not lead")
    if _source(image, key, state) is None:
        return Refusal("it follows no other cluster")
    changed = replace(state, leader_epoch=max(state.leader_epoch + 1, at_least))
    return change_of(image, key, changed, (state.leader,))


def promote(
    image: ClusterImage, key: TopicIdPartition, me: Member, *, revision: int, end: int, log_epoch: int
) -> Change | Refusal:
    """Make a partition writable from the end of its leader's log on, in an epoch above all in the log.

    `revision`: the revision of the state in whose ISR every member has all records below `end`, which makes these
    durable.
    """
    state = image.partitions.get(key)
    if state is None or state.revision != revision:
        return Refusal(f"the partition has changed since revision {revision}")
    if state.leader is None or not _leads(image, state, me):
        return Refusal(f"broker {me.broker} does not lead")
    name = image.names.get(key.topic_id)
    topic = None if name is None else image.topics[name]
    if topic is None or topic.mirror is None or not topic.mirror.is_promoting or state.promoted_at is not None:
        return Refusal("no promotion was requested")
    changed = replace(state, leader_epoch=max(state.leader_epoch, log_epoch) + 1, promoted_at=end)
    return change_of(image, key, changed, (state.leader, *state.isr))


def _leads(image: ClusterImage, state: PartitionState, me: Member) -> bool:
    return state.leader is not None and state.leader.broker == me.broker and image.is_good(state.leader)


def _source(image: ClusterImage, key: TopicIdPartition, state: PartitionState) -> str | None:
    name = image.names.get(key.topic_id)
    return source_of(None if name is None else image.topics[name], state)
