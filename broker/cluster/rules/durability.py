"""The settings that decide how many copies an acknowledged record has, and whether an election may lose it.

In a cluster they come from the store only (a topic's setting, or the cluster-wide default): the broker that elects does
not know the configuration files of the others.
"""

from uuid import UUID

from warmlog.broker.cluster.image import BROKER_DEFAULTS, ClusterImage
from warmlog.broker.cluster.values import PartitionState
from warmlog.broker.settings.topics import MIN_ISR, default_min_isr
from warmlog.protocol.partitions import TopicIdPartition

UNCLEAN = "unclean.leader.election.enable"
SHARED = (MIN_ISR, UNCLEAN)  # settings that all brokers must agree on


def default_of(image: ClusterImage, name: str) -> str | None:
    """Return a cluster-wide default; None if it is not set."""
    defaults = image.configs.get(BROKER_DEFAULTS)
    return None if defaults is None else defaults.values.get(name)


def config_of(image: ClusterImage, topic: UUID, name: str) -> str | None:
    """Return a topic's setting, or the cluster-wide default; None if neither is set."""
    state = image.topics.get(image.names.get(topic, ""))
    text = None if state is None else state.configs.get(name)
    return default_of(image, name) if text is None else text


def min_isr(image: ClusterImage, key: TopicIdPartition, state: PartitionState) -> int:
    """Return how many members the ISR needs for acks=all: `min.insync.replicas`, at most the replication factor.

    Replicas that a reassignment adds count only after it ends: until then they do not make the partition safer.
    """
    replicas = len(state.replicas) - len(state.adding)
    text = config_of(image, key.topic_id, MIN_ISR)
    wanted = default_min_isr(replicas) if text is None else int(text)
    return max(1, min(wanted, replicas))


def allows_unclean(image: ClusterImage, key: TopicIdPartition) -> bool:
    """Return whether a replica that lacks acknowledged records may lead."""
    return (config_of(image, key.topic_id, UNCLEAN) or "false") == "true"
