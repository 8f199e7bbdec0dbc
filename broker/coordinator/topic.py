"""The topic of a coordinator, and the partition that Kafka chooses for a name: by Java's hash.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorService (partitionFor), TransactionStateManager
(partitionFor, transactionTopicConfigs).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from warmlog.broker.settings.settings import Settings
from warmlog.protocol.records.codec import java_hash

R = TypeVar("R")

#: Returns the name that a key belongs to, and the decoded record; None for a record of an unknown type. Raises
#: MalformedError. May be called in a worker.
Decode: TypeAlias = Callable[[bytes, bytes], tuple[str, R] | None]
#: The same for the key of a tombstone.
DecodeTombstone: TypeAlias = Callable[[bytes], tuple[str, R] | None]


class TopicLayout(NamedTuple):
    """The number of partitions, the configs, and (in a cluster) the number of replicas of a topic to create."""

    partitions: int
    configs: Mapping[str, str]
    replication_factor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorTopic(Generic[R]):
    """The differences between the topics of coordinators.

    `keeps`: what its names identify, and `count_setting`: the setting of its number of partitions, for log messages.
    `decode_tombstone`: for a topic whose records add to earlier ones of their key. All of them are replayed, in order,
    including tombstones; without it, only the latest record of each key is replayed.
    """

    name: str
    keeps: str
    count_setting: str
    layout: Callable[[Settings], TopicLayout]
    decode: Decode[R]
    decode_tombstone: DecodeTombstone[R] | None = None


def partition_of(name: str, count: int) -> int:
    """Return the partition of a name among `count`."""
    return abs_int32(java_hash(name)) % count


def abs_int32(number: int) -> int:
    """Return Kafka's Utils.abs: 0 for -2^31, which has no positive counterpart in 32 bits."""
    return 0 if number == -(1 << 31) else abs(number)
