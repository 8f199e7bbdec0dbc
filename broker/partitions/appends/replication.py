"""A partition's interface to its replication: whether replicas have an append, and the progress of followers.

`broker.replication` implements it; a partition with one replica has none.

Invariant: an append with acks=all is settled without an error only by the leader that began it, once the high watermark
covers it. So a leader that has resigned acknowledges nothing.
"""

from typing import Protocol

from warmlog.broker.log.partition_log import PartitionLog
from warmlog.broker.partitions.appends.append import Append
from warmlog.broker.partitions.appends.errors import NotLeaderError


class ReplicatedAppend(Append):
    """An append with acks=all. It is settled when all in-sync replicas have it, or when it times out or fails."""

    __slots__ = ("replication", "tick", "timeout_ms")

    def __init__(self, log: PartitionLog, replication: "Replication", timeout_ms: int) -> None:
        super().__init__(log)
        self.replication = replication
        self.timeout_ms = timeout_ms  # counted from the write
        self.tick = -1  # key of its deadline, once it is written

    def settle(self, error: Exception | None = None) -> None:
        """Set the outcome unless it is set. An append that was only written fails: the leader has resigned."""
        if not self.done:
            super().settle(error or NotLeaderError(f"{self.log.topic}-{self.log.partition} has another leader now"))

    def replicated(self) -> None:
        """Settle it as successful, because all in-sync replicas have it."""
        if not self.done:
            super().settle()

    def expire(self) -> None:
        """Fail with a timeout."""
        self.replication.expired(self)


class Replication(Protocol):
    """The replication of a partition that this broker leads."""

    # -- appends --

    def begin_append(self, timeout_ms: int) -> ReplicatedAppend:
        """Begin an append with acks=all. Raises NotEnoughReplicasError."""

    def appended(self, size: int) -> None:
        """Record that the log has grown by `size` bytes."""

    def written(self, group: list[Append]) -> None:
        """Settle appends that are written (and flushed if required), now or when all in-sync replicas have them.

        They are in offset order, except that one may be a duplicate of an earlier one.
        """

    def flushed(self) -> None:
        """Record that the recovery point has advanced."""

    # -- deletions --

    async def until_removed(self, offset: int) -> None:
        """Wait until the logs of all registered followers begin at an offset or later. Raises NotLeaderError."""

    def expired(self, append: ReplicatedAppend) -> None:
        """Fail an append that has timed out."""

    def reconfigured(self) -> None:
        """Apply changed settings of the log."""

    # -- fetches --

    @property
    def shows_all_committed(self) -> bool:
        """Whether the high watermark is known to cover all records of earlier leaders (KIP-207)."""

    def is_follower(self, broker: int) -> bool:
        """Return whether another broker has a replica, or gets one."""

    def is_latest(self, broker: int, epoch: int) -> bool:
        """Return whether a broker's latest registration in the image has this epoch."""

    def is_throttled(self, broker: int) -> bool:
        """Return whether a follower gets no records now: it is not in sync, and the replication rate is exceeded."""

    @property
    def has_follower_readers(self) -> bool:
        """Whether consumers were sent to followers, which are therefore notified of the high watermark immediately."""

    def nearest(self, rack: str, offset: int) -> int | None:
        """Return the follower from which a consumer in a rack should read; None for this broker (KIP-392)."""

    def sent(self, broker: int, size: int) -> None:
        """Record that a follower gets `size` bytes of records."""

    def fetched(self, broker: int, epoch: int, offset: int, log_start: int) -> None:
        """Record that a follower fetches from `offset`, so that it has all records below."""
