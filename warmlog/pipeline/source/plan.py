"""The plan of a read: splits of a directory or of a cluster, each for one task, and the offsets that they cover."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from warmlog.pipeline.brokers import Brokers
from warmlog.pipeline.source.planning import Split
from warmlog.pipeline.source.ranges import Extent, Range
from warmlog.protocol.partitions import TopicPartition

RECORD_BYTES = 100  # assumed size of a record in a broker, which does not report sizes
TRIES = 5  # a broker replaces segments every few seconds; a plan takes milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSplit:
    """Offsets of a partition that one task reads; `end_offset` is excluded. `brokers`: the brokers to read from."""

    brokers: Brokers
    topic: str
    partition: int
    first_offset: int
    end_offset: int
    topic_id: str | None = None


AnySplit: TypeAlias = Split | RemoteSplit
# Called with the extents of all partitions to be read; returns the offsets to read from each.
Choice: TypeAlias = Callable[[list[Extent]], dict[TopicPartition, Range]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Splits, the offsets they cover in each partition, and the bytes they skip thanks to the indexes."""

    splits: list[AnySplit]
    ranges: dict[TopicPartition, Range]
    skipped_bytes: int = 0


def size_of_split(split: AnySplit) -> int:
    """Return the number of bytes that a split reads, which is an estimate if it reads from a broker."""
    return split.size if isinstance(split, Split) else (split.end_offset - split.first_offset) * RECORD_BYTES


def end_offset_of(split: AnySplit) -> int:
    """Return the end of a split's offsets (exclusive)."""
    return split.pieces[-1].end_offset if isinstance(split, Split) else split.end_offset


def first_offset_of(split: AnySplit) -> int:
    """Return the first offset of a split."""
    return split.pieces[0].first_offset if isinstance(split, Split) else split.first_offset
