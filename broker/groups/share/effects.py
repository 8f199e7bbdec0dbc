"""The effects of a share group's state machine."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from warmlog.broker.groups.automaton import Answer
from warmlog.broker.groups.modern.assignment import Subscriber
from warmlog.broker.groups.modern.effects import StoreRows
from warmlog.broker.share.persister import InitialState
from warmlog.protocol.kafka.share_group_records import ShareGroupKey, ShareGroupValue

Row: TypeAlias = tuple[ShareGroupKey, ShareGroupValue | None]  # None: a tombstone
Store: TypeAlias = StoreRows[ShareGroupKey, ShareGroupValue]


class AssignShared(NamedTuple):
    """Effect: run the assignor, then drive the generator `ShareGroup.assigned(epoch, assignments, now)`.

    `partitions`: the assignable ones, by topic id.
    """

    epoch: int
    members: dict[str, Subscriber]
    partitions: Mapping[bytes, frozenset[int]]


class Start(NamedTuple):
    """Partitions of a topic, and their start offset; -1 leaves it to the partition's leader."""

    topic_id: bytes
    partitions: frozenset[int]
    offset: int


class Initialize(NamedTuple):
    """Effect: create the states of share-partitions, then call `ShareGroup.initialized` with the successful ones."""

    epoch: int
    starts: tuple[Start, ...]

    def states(self) -> Iterator[InitialState]:
        """Yield the state of each share-partition."""
        for topic_id, partitions, offset in self.starts:
            for partition in sorted(partitions):
                yield InitialState(topic_id, partition, self.epoch, offset)


Effect: TypeAlias = Answer | Store | AssignShared | Initialize
