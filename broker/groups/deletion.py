"""Delete groups, with their offsets and with the delivery state of share groups.

Invariant: a group being deleted is not served while its tombstones are written; if that fails, it is restored.

Source: org.apache.kafka.coordinator.group.GroupCoordinatorService.deleteGroups, GroupCoordinatorShard.deleteGroups.
"""

from functools import partial

import trio

from warmlog.broker.groups.group import Group
from warmlog.broker.groups.offset_writer import OFFSETS_PER_STEP, OffsetWrite, OffsetWriter, begun_write
from warmlog.broker.groups.registry import GroupRegistry
from warmlog.broker.groups.requests.share_offsets import ShareOffsetsCoordinator
from warmlog.broker.groups.shard import GroupShard
from warmlog.broker.groups.share.state import ShareGroup
from warmlog.protocol.errors import ErrorCode


class GroupDeletions:
    """Deletes the groups of a broker. Call all methods on the event loop."""

    def __init__(self, groups: GroupRegistry, share_offsets: ShareOffsetsCoordinator) -> None:
        self._groups = groups
        self._share_offsets = share_offsets
        self._writer = OffsetWriter(groups)

    async def delete(self, name: str) -> ErrorCode:
        """Delete a group that has no members, with its offsets.

        Waits for at most `offsets.commit.timeout.ms`, in addition to the share coordinators; a deletion that has begun
        is completed in any case.
        """
        error = self._groups.available(name)
        group = self._groups.get(name)
        if error is ErrorCode.NONE and isinstance(group, ShareGroup) and group.is_empty:
            error = await self._share_offsets.delete_all(group)
        error = error or self._groups.available(name)
        shard = self._groups.shard_of(name)
        group = None if shard is None else shard.get(name)
        if error is not ErrorCode.NONE or shard is None or group is None:
            return error or ErrorCode.GROUP_ID_NOT_FOUND
        if not group.is_empty:
            return ErrorCode.NON_EMPTY_GROUP
        self._groups.drop(shard, group)
        deletion = begun_write()
        self._groups.runtime.spawn(partial(self._delete, shard, group, deletion))
        with self._writer.time_limit():
            await deletion.wait()
        return deletion.value

    async def _delete(self, shard: GroupShard, group: Group, deletion: OffsetWrite) -> None:
        """Write the tombstones of a dropped group; restore it if that fails."""
        name = group.group_id
        pending = [pair for pair in shard.pending.of(name) if shard.offsets.get(name, *pair) is None]
        for start in range(0, len(pending), OFFSETS_PER_STEP):
            await self._writer.write_tombstones(shard, name, pending[start : start + OFFSETS_PER_STEP]).wait()
            await trio.lowlevel.checkpoint()
        error = await self._writer.remove(shard, name, shard.offsets.of(name), group=group)
        if error is not ErrorCode.NONE:
            self._groups.restore(shard, group)
        deletion.settle(error)
