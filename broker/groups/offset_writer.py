"""Write offsets, and their tombstones, to the log of groups, and apply them to memory afterwards."""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TypeAlias

import trio

from warmlog.broker.coordinator.answers import PendingAnswer
from warmlog.broker.coordinator.appends import LogProducer, Rows
from warmlog.broker.groups.group import Group
from warmlog.broker.groups.registry import GroupRegistry
from warmlog.broker.groups.shard import GroupShard
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.codec.engine import ENGINE
from warmlog.protocol.kafka.group_records import OffsetAndMetadata, encode_offset_key
from warmlog.protocol.partitions import TopicPartition

OFFSETS_PER_STEP = ENGINE.loop_work // 4  # offsets written as one batch between two checkpoints: about 2 ms


OffsetWrite: TypeAlias = PendingAnswer[ErrorCode]  # COORDINATOR_NOT_AVAILABLE until the outcome is known


def begun_write() -> OffsetWrite:
    """Return a write whose outcome is unknown."""
    return PendingAnswer(ErrorCode.COORDINATOR_NOT_AVAILABLE)


class OffsetWriter:
    """Writes for all groups of this broker."""

    def __init__(self, groups: GroupRegistry) -> None:
        self._groups = groups

    def write(
        self,
        shard: GroupShard,
        name: str,
        rows: Rows,
        then: Callable[[Sequence[int]], None],
        producer: LogProducer | None = None,
    ) -> OffsetWrite:
        """Append records, and call `then` with the offsets of written ones, even if no task waits for it."""
        write = begun_write()

        def settled(error: ErrorCode, record_offsets: Sequence[int]) -> None:
            if record_offsets:
                then(record_offsets)
            if producer is not None:
                shard.pending.end_write(producer.id)
            write.settle(error)

        if producer is not None:
            shard.pending.begin_write(producer.id)
        self._groups.runtime.append(shard.term, name, rows, settled, producer=producer)
        return write

    def write_tombstones(self, shard: GroupShard, name: str, partitions: Sequence[TopicPartition]) -> OffsetWrite:
        """Write tombstones for offsets, and remove the offsets from memory once they are written."""
        rows: Rows = [(encode_offset_key(name, *pair), None) for pair in partitions]

        def remove(record_offsets: Sequence[int]) -> None:
            for (topic, partition), offset in zip(partitions, record_offsets, strict=False):
                shard.offsets.remove(name, topic, partition, offset)
                shard.pending.remove(name, topic, partition, offset)

        return self.write(shard, name, rows, remove)

    async def remove(
        self,
        shard: GroupShard,
        name: str,
        offsets: Iterable[tuple[str, int, OffsetAndMetadata]],
        *,
        group: Group | None,
    ) -> ErrorCode:
        """Write tombstones for offsets, and for their group if it is given; return the first error.

        Skips offsets that have been committed again since, and a group that has been created again.
        """
        writes = []
        remaining = iter(offsets)
        while step := list(islice(remaining, OFFSETS_PER_STEP)):
            unchanged = [
                (topic, partition)
                for topic, partition, value in step
                if shard.offsets.get(name, topic, partition) is value
            ]
            if unchanged:
                writes.append(self.write_tombstones(shard, name, unchanged))
            await trio.lowlevel.checkpoint()
        tombstones: Rows = [] if group is None else [*group.replaced, *group.tombstones()]
        for start in range(0, len(tombstones), OFFSETS_PER_STEP):
            if shard.get(name) is None:
                writes.append(self.write(shard, name, tombstones[start : start + OFFSETS_PER_STEP], lambda _: None))
                await trio.lowlevel.checkpoint()
        outcomes = [await write.wait() for write in writes]
        return next((error for error in outcomes if error is not ErrorCode.NONE), ErrorCode.NONE)

    def time_limit(self) -> trio.CancelScope:
        """Return how long a request may wait for its write; see `OffsetWrite`."""
        return trio.move_on_after(self._groups.settings.offsets_commit_timeout_ms / 1000)
