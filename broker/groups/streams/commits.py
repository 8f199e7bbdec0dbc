"""Decide whether a member of a streams group may commit or fetch offsets.

Source: Kafka's StreamsGroup.validateOffsetCommit, validateOffsetFetch and createAssignmentEpochValidator (4.4).
"""

from typing import NamedTuple

from warmlog.broker.groups.streams.holding import CurrentTasks
from warmlog.broker.groups.streams.stored import StoredStreamsGroup
from warmlog.protocol.errors import ErrorCode

NO_EPOCH = -1
EPOCH_VERSION = 9  # version of OffsetCommit: the first with member epochs


class StreamsCommitVerdict(NamedTuple):
    """Whether a commit is accepted; with `current`, this is decided per partition."""

    error: ErrorCode
    epoch: int = NO_EPOCH  # the epoch that the member sent
    current: CurrentTasks | None = None
    group: StoredStreamsGroup | None = None

    def partition(self, topic: str, partition: int) -> ErrorCode:
        """Return NONE, or why this partition's offset may not be committed.

        A member in an earlier epoch may commit for tasks that it has had since then.
        """
        if self.current is None or self.group is None:
            return self.error
        topology = self.group.topology
        subtopology_id = None if topology is None else topology.readers.get(topic)
        since = None if subtopology_id is None else self.current.task_epoch(subtopology_id, partition)
        return ErrorCode.NONE if since is not None and self.epoch >= since else ErrorCode.STALE_MEMBER_EPOCH


def check_commit(
    group: StoredStreamsGroup,
    member_id: str,
    instance_id: str | None,
    epoch: int,
    *,
    transactional: bool,
    version: int | None,
) -> StreamsCommitVerdict:
    """Check a commit. `epoch`: -1 for clients outside the group. `version`: that of OffsetCommit, if it is one."""
    has_no_member = not member_id and instance_id is None
    if (epoch < 0 and not group.metadata) or (transactional and epoch == NO_EPOCH and has_no_member):
        return StreamsCommitVerdict(ErrorCode.NONE)
    if member_id not in group.metadata:
        return StreamsCommitVerdict(ErrorCode.UNKNOWN_MEMBER_ID)
    if not transactional and version is not None and version < EPOCH_VERSION:
        return StreamsCommitVerdict(ErrorCode.UNSUPPORTED_VERSION)
    current = group.current(member_id)
    if epoch > current.epoch or (epoch < current.epoch and group.topology is None):
        return StreamsCommitVerdict(ErrorCode.STALE_MEMBER_EPOCH)
    return StreamsCommitVerdict(ErrorCode.NONE, epoch, None if epoch == current.epoch else current, group)


def check_fetch(group: StoredStreamsGroup, member_id: str | None, epoch: int) -> ErrorCode:
    """Check a fetch of committed offsets. None and -1: a client outside the group."""
    if member_id is None and epoch < 0:
        return ErrorCode.NONE
    if (member_id or "") not in group.metadata:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if epoch == group.current(member_id or "").epoch else ErrorCode.STALE_MEMBER_EPOCH
