"""Decide whether a member may commit or fetch offsets.

Source: Kafka's ConsumerGroup.validateOffsetCommit and validateOffsetFetch (4.4); KIP-1251 (epochs of partitions).
"""

from typing import NamedTuple

from warmlog.broker.groups.consumer.stored.group import StoredGroup
from warmlog.broker.groups.consumer.stored.holding import Current
from warmlog.protocol.errors import ErrorCode

NO_EPOCH = -1
EPOCH_VERSION = 9  # version of OffsetCommit: the first with member epochs


class CommitVerdict(NamedTuple):
    """Whether a commit is accepted; with `current`, this is decided per partition."""

    error: ErrorCode
    epoch: int = NO_EPOCH  # the epoch that the member sent
    current: Current | None = None
    is_classic: bool = False

    def partition(self, topic_id: bytes, partition: int) -> ErrorCode:
        """Return NONE, or why this partition's offset may not be committed.

        A member in an earlier epoch may commit for partitions that it has had since then.
        """
        if self.current is None:
            return self.error
        since = self.current.partition_epoch(topic_id, partition)
        if since is not None and self.epoch >= since:
            return ErrorCode.NONE
        return _stale(self.is_classic)


def _stale(is_classic: bool) -> ErrorCode:
    return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH


def check_commit(
    group: StoredGroup, member_id: str, instance_id: str | None, epoch: int, *, transactional: bool, version: int | None
) -> CommitVerdict:
    """Check a commit. `epoch`: -1 for clients outside the group. `version`: that of OffsetCommit, if it is one."""
    has_no_member = not member_id and instance_id is None
    if (epoch < 0 and not group.metadata) or (transactional and epoch == NO_EPOCH and has_no_member):
        return CommitVerdict(ErrorCode.NONE)
    metadata = group.metadata.get(member_id)
    if metadata is None:
        return CommitVerdict(ErrorCode.UNKNOWN_MEMBER_ID)
    is_classic = metadata.classic is not None
    if not transactional and not is_classic and version is not None and version < EPOCH_VERSION:
        return CommitVerdict(ErrorCode.UNSUPPORTED_VERSION)
    current = group.current(member_id)
    if epoch > current.epoch:
        return CommitVerdict(_stale(is_classic))
    return CommitVerdict(ErrorCode.NONE, epoch, None if epoch == current.epoch else current, is_classic)


def check_fetch(group: StoredGroup, member_id: str | None, epoch: int) -> ErrorCode:
    """Check a fetch of committed offsets. None and -1: a client outside the group."""
    if member_id is None and epoch < 0:
        return ErrorCode.NONE
    metadata = group.metadata.get(member_id or "")
    if metadata is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if epoch != group.current(member_id or "").epoch:
        return _stale(metadata.classic is not None)
    return ErrorCode.NONE
