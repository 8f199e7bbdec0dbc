"""Lead a partition with several replicas: bind `Progress` to its log, its appends and its waiting fetches.

    append    begin_append -> (written by the queue) -> appended, written -> settled when the high watermark covers it
    fetch     a follower's offset -> fetched -> high watermark -> appends settled, consumers notified, joins proposed
    image     update, check -> high watermark, joins, exclusions

Invariants:
1. A leader leads in one leader epoch, which its log has begun; `resign` ends it, and it never leads again.
2. The log's high watermark follows this leader only.
3. `propose` is called with proposals, and outcomes arrive as `update` (or `withdraw`): nothing here waits.
"""

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import trio

from warmlog.broker.cluster.values import Member, PartitionState
from warmlog.broker.partitions.appends.append import Append
from warmlog.broker.partitions.appends.append_queue import LOCAL
from warmlog.broker.partitions.appends.errors import (
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderError,
    ReplicasTooSlowError,
)
from warmlog.broker.partitions.appends.replication import ReplicatedAppend
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.replication.hidden_bytes import HiddenBytes
from warmlog.broker.replication.leading.progress import Brokers, Progress, Proposal
from warmlog.broker.replication.throttle import Throttle

MAX_LAG_S = 30.0  # Kafka's replica.lag.time.max.ms
RETRY_S = 2.0  # wait for the outcome of a proposal; etcd answers in milliseconds
READERS_S = 2400.0  # after a consumer was sent to a follower; it returns to the leader after 5 to 30 minutes


class KnownBrokers(Brokers, Protocol):
    """The leader's view of the brokers, from the image of the cluster."""

    def current(self, broker: int) -> Member | None:
        """Return a broker with the epoch of its registration; None without one."""

    def rack_of(self, broker: int) -> str | None:
        """Return the rack of a broker that is alive and not about to stop; None without one."""


class Deadlines(Protocol):
    """One timer for many appends; see `broker.net.turns.deadlines`."""

    def add(self, waiting: ReplicatedAppend, delay_s: float) -> int:
        """Call `waiting.expire()` after a delay; return a key for `remove`."""

    def remove(self, waiting: ReplicatedAppend, tick: int) -> None:
        """Remove a deadline."""


class PartitionLeader:
    """Leads a partition in one leader epoch: its `Replication` from `start` to `resign`. Belongs to the event loop."""

    def __init__(
        self,
        partition: Partition,
        state: PartitionState,
        me: Member,
        *,
        min_isr: int,
        brokers: KnownBrokers,
        deadlines: Deadlines,
        propose: Callable[["PartitionLeader", Proposal], None],
        max_lag_s: float = MAX_LAG_S,
        retry_s: float = RETRY_S,
    ) -> None:
        """Prepare to lead in the state's epoch, which was assigned to the log. `propose` must not wait.

        `min_isr`, by `cluster.rules.min_isr`, is from the same image as the state, here and in `update`.
        """
        log = partition.log
        assert log.epochs.current == state.leader_epoch, "assigned by the caller, who writes the epochs"
        self.partition = partition
        self.me = me
        self.progress = Progress(
            me.broker,
            state,
            brokers,
            log_end=log.offsets.log_end_offset,
            high_watermark=log.offsets.high_watermark,
            min_isr=min_isr,
            max_lag_s=max_lag_s,
            retry_s=retry_s,
            now=trio.current_time(),
        )
        self.throttle: Throttle | None = None  # of the followers, if the topic's settings throttle this replica
        self._log = log
        self._brokers = brokers
        self._deadlines = deadlines
        self._propose = propose
        self._waiting: OrderedDict[ReplicatedAppend, None] = OrderedDict()  # written, but above the high watermark
        self._hidden = HiddenBytes(log.offsets.high_watermark, log.offsets.log_end_offset)
        self._readers_until = -math.inf  # until then, consumers may read from followers
        self._removals = trio.lowlevel.ParkingLot()  # tasks waiting for the followers' log start offsets

    @property
    def state(self) -> PartitionState:
        """The state of the partition, as last updated."""
        return self.progress.state

    # -- the cluster --

    def start(self) -> None:
        """Begin to lead."""
        self._log.follow_replicas()
        self.partition.replication = self
        self.reconfigured()

    def resign(self) -> None:
        """Stop leading: fail all appends that are not yet written or replicated.

        One write may be in progress: await `AppendQueue.settled` before using the log otherwise. The high watermark
        does not change.
        """
        partition = self.partition
        if not self.is_leading:
            return
        partition.replication = None
        reason = NotLeaderError(f"{partition.topic}-{partition.index}: broker {self.me.broker} no longer leads")
        waiting, self._waiting = self._waiting, OrderedDict()
        for append in waiting:
            self._deadlines.remove(append, append.tick)
            append.settle(reason)
        partition.appends.refuse_queued(reason)
        partition.wake_all()
        self._removals.unpark_all()

    def update(self, state: PartitionState, min_isr: int) -> None:
        """Adopt a new revision of the partition's state in the same leader epoch, or a new minimum."""
        self.progress.update(state, min_isr, trio.current_time())
        self.check()

    def check(self) -> None:
        """Propose removing followers that lag from the ISR, and adding those that may join.

        Call it when brokers have changed, and at least every half `replica.lag.time.max.ms`.
        """
        now = trio.current_time()
        self._propose_change(now)
        self._advance(now)
        self._removals.unpark_all()

    def withdraw(self, proposal: Proposal) -> None:
        """Record that a proposal was refused, and will never be applied."""
        self.progress.withdraw(proposal)
        self._advance(trio.current_time())

    @property
    def is_leading(self) -> bool:
        """Whether it has started and not resigned."""
        return self.partition.replication is self

    def _propose_change(self, now: float) -> None:
        proposal = self.progress.propose(now) if self.is_leading else None
        if proposal is not None:
            self._propose(self, proposal)

    # -- appends --

    def begin_append(self, timeout_ms: int) -> ReplicatedAppend:
        """Begin an append with acks=all. Raises NotEnoughReplicasError."""
        progress = self.progress
        if progress.is_under_min_isr:
            partition = self.partition
            partition.appends.gaps.note_refusal()
            raise NotEnoughReplicasError(
                f"{partition.topic}-{partition.index} has {len(progress.state.isr)} in-sync replicas; "
                f"min.insync.replicas is {progress.min_isr}"
            )
        return ReplicatedAppend(self._log, self, timeout_ms)

    def appended(self, size: int) -> None:
        """Record that the log has grown by `size` bytes, and notify followers."""
        now, end = trio.current_time(), self._log.offsets.log_end_offset
        self._hidden.written(end, size)
        self.progress.appended(end, now)
        self.partition.waiters.appended(size)
        self._count_own(now)

    def flushed(self) -> None:
        """Record that the recovery point has advanced."""
        self._count_own(trio.current_time())

    def written(self, group: list[Append]) -> None:
        """Settle written appends, or keep them until the high watermark covers them."""
        shown = self._log.offsets.high_watermark
        for append in group:
            if not isinstance(append, ReplicatedAppend):
                append.settle()
            elif append.replication is not self:
                append.settle()  # begun under an earlier leader: fails
            elif append.planned.last_offset < shown:
                append.replicated()
            else:
                append.tick = self._deadlines.add(append, append.timeout_ms / 1000)
                self._waiting[append] = None

    def expired(self, append: ReplicatedAppend) -> None:
        """Fail an append that has timed out."""
        self._waiting.pop(append, None)
        progress, name = self.progress, f"{self.partition.topic}-{self.partition.index}"
        if progress.is_under_min_isr:
            minimum = f"min.insync.replicas ({progress.min_isr})"
            append.settle(NotEnoughReplicasAfterAppendError(f"{name}: the ISR became smaller than {minimum}"))
        else:
            within = f"within {append.timeout_ms} ms"
            append.settle(ReplicasTooSlowError(f"{name}: not all in-sync replicas had the append {within}"))

    def reconfigured(self) -> None:
        """Apply changed settings of the log."""
        self._count_own(trio.current_time())

    def _count_own(self, now: float) -> None:
        """Advance the leader's own offset to the log end, or to the flushed end if every append is flushed."""
        log = self._log
        self.progress.own_end = (
            log.durability.recovery_point if log.durability.flush_messages == 1 else log.offsets.log_end_offset
        )
        self._advance(now)

    def _advance(self, now: float) -> None:
        """Advance the high watermark as far as possible; settle the appends below it and notify consumers."""
        log, progress = self._log, self.progress
        if not self.is_leading:
            return
        is_throttled = self.throttle is not None and self.throttle.delay_s > 0
        if not progress.advance(now, are_others_throttled=is_throttled):
            return
        shown = progress.high_watermark
        log.offsets.advance_high_watermark(shown)
        waiting = self._waiting
        while waiting:
            append = next(iter(waiting))
            if append.planned.last_offset >= shown:
                break
            del waiting[append]
            self._deadlines.remove(append, append.tick)
            append.replicated()
        self.partition.waiters.shown(self._hidden.show(shown))
        if self.has_follower_readers:
            self.partition.waiters.wake_followers()

    # -- fetches --

    @property
    def shows_all_committed(self) -> bool:
        """Whether the high watermark is known to cover all records of earlier leaders (KIP-207)."""
        return self.progress.has_reached_epoch_start

    def is_follower(self, broker: int) -> bool:
        """Return whether another broker has a replica, or gets one."""
        return broker in self.progress.followers

    def is_latest(self, broker: int, epoch: int) -> bool:
        """Return whether a broker's latest registration in the image has this epoch."""
        return self._brokers.is_latest(Member(broker, epoch))

    def is_throttled(self, broker: int) -> bool:
        """Return whether a follower gets no records now: it is not in sync, and the replication rate is exceeded.

        Followers in sync are counted but never throttled: they would leave the ISR. Source: kafka.server.ReplicaManager
        (shouldLeaderThrottle).
        """
        throttle = self.throttle
        return throttle is not None and broker not in self.progress.in_sync and throttle.delay_s > 0

    @property
    def has_follower_readers(self) -> bool:
        """Whether a consumer was sent to a follower within the last READERS_S."""
        return trio.current_time() < self._readers_until

    def nearest(self, rack: str, offset: int) -> int | None:
        """Return the follower from which a consumer in a rack should read; None for this broker.

        Of the in-sync followers in that rack that have the offset, it is the one with the longest log; None if this
        broker is in that rack itself. Kafka also returns followers that are not in sync, where a consumer may wait in
        vain.

        Source: RackAwareReplicaSelector; kafka.server.ReplicaManager (findPreferredReadReplica).
        """
        rack_of = self._brokers.rack_of
        if rack_of(self.me.broker) == rack:
            return None
        near = [
            follower
            for broker, follower in self.progress.followers.items()
            if broker in self.progress.in_sync
            and follower.log_start <= offset <= follower.log_end
            and rack_of(broker) == rack
        ]
        if not near:
            return None
        self._readers_until = trio.current_time() + READERS_S
        return max(near, key=lambda follower: (follower.log_end, follower.caught_up_at)).broker

    def sent(self, broker: int, size: int) -> None:
        """Record that a follower gets `size` bytes of records."""
        if self.throttle is not None:
            self.throttle.count(size, is_held_up=broker not in self.progress.in_sync)

    def fetched(self, broker: int, epoch: int, offset: int, log_start: int) -> None:
        """Record that a follower fetches from `offset`, so that it has all records below."""
        now, progress = trio.current_time(), self.progress
        if progress.fetched(broker, epoch, offset, log_start, now):
            if broker not in progress.in_sync:
                self._propose_change(now)
            self._advance(now)
            if self._removals:
                self._removals.unpark_all()

    async def until_removed(self, offset: int) -> None:
        """Wait until the logs of all registered followers begin at an offset or later.

        Raises NotLeaderError. Source: kafka.server.DelayedDeleteRecords.
        """
        while any(
            follower.log_start < offset and self._brokers.current(broker) is not None
            for broker, follower in self.progress.followers.items()
        ):
            if not self.is_leading:
                raise NotLeaderError(f"{self.partition.topic}-{self.partition.index} has another leader now")
            await self._removals.park()


__all__ = ["LOCAL", "Deadlines", "KnownBrokers", "PartitionLeader"]
