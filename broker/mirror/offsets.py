"""Copy the committed offsets of consumer groups, so that a group can continue here from its position at the source.

Offsets are equal in both clusters, so they are copied unchanged. Invariants:
1. Only offsets of mirrored partitions are copied, and only for groups without members here: a group that reads here
   has offsets of its own.
2. No committed offset is past the end of the log here. The copy of a log may be behind, and a consumer whose offset
   does not exist would reset its position.
"""

from collections.abc import Iterable, Mapping

from warmlog.broker.groups.commits import Committer
from warmlog.broker.groups.service import GroupService
from warmlog.broker.mirror.own_cluster import OwnCluster
from warmlog.broker.mirror.source import GroupOffsets
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import NO_OFFSET, FetchedOffset, OffsetToCommit
from warmlog.protocol.partitions import TopicPartition

_OUTSIDE = Committer(generation=-1, member_id="", instance_id=None)


class OffsetCopies:
    """Copies committed offsets of a source. Belongs to the event loop."""

    def __init__(
        self, groups: GroupService, partitions: Partitions, cluster_id: str, own: OwnCluster | None = None
    ) -> None:
        """`own` is None for a standalone broker."""
        self._own = own
        self._groups = groups
        self._partitions = partitions
        self._cluster_id = cluster_id

    async def copy(self, of_group: GroupOffsets) -> dict[TopicPartition, ErrorCode]:
        """Commit a group's changed offsets; return the errors by topic and partition."""
        if not self._is_free(of_group.group):
            return {}
        differing = [
            offset for offset in of_group.offsets if self._is_mirrored(offset) and self._differs(of_group.group, offset)
        ]
        shown = await self._high_watermarks(differing)
        changed = [
            self._to_commit(offset, shown[offset.topic, offset.partition])
            for offset in differing
            if _key(offset) in shown
        ]
        changed = [offset for offset in changed if self._differs(of_group.group, offset)]
        if not changed:
            return {}
        codes = await self._groups.commits.commit(of_group.group, _OUTSIDE, changed, retention_ms=None)
        partitions = [(offset.topic, offset.partition) for offset in changed]
        return {
            topic_partition: code
            for topic_partition, code in zip(partitions, codes, strict=True)
            if code is not ErrorCode.NONE
        }

    def _is_free(self, group: str) -> bool:
        known = self._groups.registry.get(group)
        return known is None or known.is_empty

    def _is_mirrored(self, offset: FetchedOffset) -> bool:
        """Return whether an offset belongs to a partition that follows the source."""
        topic = self._partitions.topic(offset.topic)
        if topic is None or topic.mirror is None or topic.mirror.is_promoting:
            return False
        is_there = offset.partition < topic.partitions and offset.offset != NO_OFFSET
        return is_there and topic.mirror_of == self._cluster_id

    def _differs(self, group: str, offset: FetchedOffset | OffsetToCommit) -> bool:
        """Return whether an offset differs from the one committed here."""
        shard = self._groups.registry.shard_of(group)
        here = None if shard is None else shard.offsets.get(group, offset.topic, offset.partition)
        return here is None or (here.offset, here.metadata) != (offset.offset, offset.metadata)

    async def _high_watermarks(self, offsets: Iterable[FetchedOffset]) -> Mapping[TopicPartition, int]:
        """Return the high watermarks of the copies. Partitions whose leaders do not answer are omitted."""
        shown: dict[TopicPartition, int] = {}
        others: list[TopicPartition] = []
        for offset in offsets:
            partition = self._partitions.get(offset.topic, offset.partition)
            if partition is not None:
                shown[_key(offset)] = partition.log.offsets.high_watermark
            else:
                others.append(_key(offset))
        if self._own is not None and others:
            shown |= await self._own.high_watermarks(others)
        return shown

    def _to_commit(self, offset: FetchedOffset, shown: int) -> OffsetToCommit:
        """Return the offset to commit. Clients accept no metadata with an epoch below that of an offset."""
        leader_epoch = offset.leader_epoch
        if self._own is not None and leader_epoch > self._own.leader_epoch(offset.topic, offset.partition):
            leader_epoch = -1
        return OffsetToCommit(
            topic=offset.topic,
            partition=offset.partition,
            offset=min(offset.offset, shown),
            leader_epoch=leader_epoch,
            metadata=offset.metadata,
        )


def _key(offset: FetchedOffset) -> TopicPartition:
    return offset.topic, offset.partition
