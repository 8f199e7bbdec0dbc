"""Copy the committed offsets of consumer groups, so that a group can go on here where it was at the source.

Offsets are the same here and there, so that they are copied as they are. Invariants:
1. Only offsets of mirrored partitions are copied, and only of groups without members here: a group that reads here has
   offsets of its own.
2. No committed offset is past the end of the log here. The copy of a log may be behind; a consumer whose offset does
   not exist would start over.
"""

from collections.abc import Iterable, Iterator

from warmlog.broker.groups.commits import Committer
from warmlog.broker.groups.service import GroupService
from warmlog.broker.mirror.source import GroupOffsets
from warmlog.broker.partitions.partitions import Partitions
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import NO_OFFSET, FetchedOffset, GroupState, OffsetToCommit
from warmlog.protocol.partitions import TopicPartition

_OUTSIDE = Committer(generation=-1, member_id="", instance_id=None)


class OffsetCopies:
    """Copies committed offsets of a source. Belongs to the event loop."""

    def __init__(self, groups: GroupService, partitions: Partitions, cluster_id: str) -> None:
        self._groups = groups
        self._partitions = partitions
        self._cluster_id = cluster_id

    async def copy(self, found: GroupOffsets) -> dict[TopicPartition, ErrorCode]:
        """Commit what has changed of a group's offsets; return the errors by topic and partition."""
        if not self._is_free(found.group):
            return {}
        changed = list(self._changed(found.group, found.offsets))
        if not changed:
            return {}
        codes = await self._groups.commits.commit(found.group, _OUTSIDE, changed, retention_ms=None)
        places = [(one.topic, one.partition) for one in changed]
        return {place: code for place, code in zip(places, codes, strict=True) if code is not ErrorCode.NONE}

    def _is_free(self, group: str) -> bool:
        known = self._groups.registry.get(group)
        return known is None or known.state is GroupState.EMPTY

    def _changed(self, group: str, offsets: Iterable[FetchedOffset]) -> Iterator[OffsetToCommit]:
        """Yield what to commit: offsets that differ from those committed here."""
        shard = self._groups.registry.shard_of(group)
        for one in offsets:
            partition = self._partitions.get(one.topic, one.partition)
            if partition is None or partition.mirror_of != self._cluster_id or one.offset == NO_OFFSET:
                continue
            offset = min(one.offset, partition.log.offsets.high_watermark)
            here = None if shard is None else shard.offsets.get(group, one.topic, one.partition)
            if here is None or (here.offset, here.metadata) != (offset, one.metadata):
                yield OffsetToCommit(
                    topic=one.topic,
                    partition=one.partition,
                    offset=offset,
                    leader_epoch=one.leader_epoch,
                    metadata=one.metadata,
                )
