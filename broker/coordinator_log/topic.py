"""The topic of a coordinator, and the partition that Kafka chooses for a name: by Java's hash.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorService (partitionFor), TransactionStateManager
(partitionFor, transactionTopicConfigs).
"""

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import mul
from sys import byteorder
from typing import Final, NamedTuple

from warmlog.broker.settings.settings import Settings

_UTF_16: Final = "utf-16-le" if byteorder == "little" else "utf-16-be"
_BITS_32: Final = 0xFFFFFFFF
_POWERS: Final = [pow(31, exponent, 1 << 32) for exponent in range(256)]  # of longer names, more are computed


class TopicLayout(NamedTuple):
    """The number of partitions, the configs, and (in a cluster) the number of replicas of a topic to create."""

    partitions: int
    configs: Mapping[str, str]
    replication_factor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorTopic:
    """The differences between the topics of coordinators. `keeps`: what its names identify, for log messages."""

    name: str
    keeps: str
    layout: Callable[[Settings], TopicLayout]


def partition_of(name: str, count: int) -> int:
    """Return the partition of a name among `count`."""
    return abs_int32(java_hash(name)) % count


def java_hash(text: str) -> int:
    """Return Java's String.hashCode: over UTF-16 code units, 32 bits, signed."""
    units = array("H", text.encode(_UTF_16, "surrogatepass"))
    count = len(units)
    powers = _POWERS if count <= len(_POWERS) else [pow(31, exponent, 1 << 32) for exponent in range(count)]
    digest: int = sum(map(mul, reversed(units), powers)) & _BITS_32
    return digest - (1 << 32) if digest >> 31 else digest


def abs_int32(number: int) -> int:
    """Return Kafka's Utils.abs: 0 for -2^31, which has no positive counterpart in 32 bits."""
    return 0 if number == -(1 << 31) else abs(number)
