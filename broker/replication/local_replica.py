"""One replica on this broker and its role: it leads in one leader epoch, follows the leader, or does neither.

    end        without waiting: hide it from clients, fail requests that wait for replicas, stop fetching
        quiet      wait until the role no longer uses the log
    begin      lead or follow, by the state of the partition

Invariants:
1. A role begins only after the earlier one has ended and the log is quiet: nothing is appended, fetched or truncated
   for two roles at the same time.
2. This broker leads exactly while the state names it with an epoch of the history that its data continues.
3. A log that has failed has no role.
4. While it does not lead, the log begins no leader epoch, and its high watermark follows a leader.
5. Copying from another cluster (`source_of`) appends to the log only while this broker leads, in one leader epoch, and
   truncates it only between two leader epochs.

A leader epoch is not written to the disk when it begins: batches contain it, and one without batches is of no use.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from warmlog.broker.cluster.node import ClusterNode
from warmlog.broker.cluster.rules import min_isr, source_of
from warmlog.broker.cluster.values import NO_EPOCH, PartitionState
from warmlog.broker.partitions.appends.errors import NotLeaderError
from warmlog.broker.partitions.partition import NOT_READABLE, Partition
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.partitions.topics.promotion import abort_open
from warmlog.broker.replication.following.fetcher import Following
from warmlog.broker.replication.following.follower import Follower
from warmlog.broker.replication.following.replica import PartitionReplica
from warmlog.broker.replication.leading.leader import Deadlines, PartitionLeader
from warmlog.broker.replication.leading.proposals import IsrProposals
from warmlog.broker.replication.peers.leaders import Leaders
from warmlog.broker.replication.throttle import Throttle
from warmlog.broker.settings.settings import Settings
from warmlog.broker.settings.topics import FOLLOWER_THROTTLED, LEADER_THROTTLED, names_replica
from warmlog.protocol.partitions import TopicIdPartition

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ReplicationCounts:
    """Counts of events of replicas since startup."""

    shrinks: int = 0  # changes of the ISRs of partitions that this broker leads
    expansions: int = 0
    disowned: int = 0  # replicas here that left ISR and ELR after losing records or their disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The objects that the replicas of one broker share."""

    node: ClusterNode
    partitions: Partitions
    leaders: Leaders
    follower: Follower
    deadlines: Deadlines
    proposals: IsrProposals
    wanted: Callable[[tuple[str, int]], None]  # called with a topic and partition whose replica has a step to take
    settings: Callable[[], Settings]
    sending: Throttle  # rate to followers
    receiving: Throttle  # rate from leaders
    counts: ReplicationCounts = field(default_factory=ReplicationCounts)


@dataclass(frozen=True, slots=True)
class Renewal:
    """The leader epoch that a leader copying from another cluster needs before it can continue.

    `at_least`: the epoch of the source. `cut`: truncates the log before that epoch begins, unless another broker leads
    by then; returns False if the log cannot be truncated now.
    """

    at_least: int
    cut: Callable[[], Awaitable[bool]] | None = None


class LocalReplica:
    """A replica and its role. Belongs to the event loop; one task at a time changes the role."""

    __slots__ = (
        "_ending",
        "_shared",
        "copy",
        "is_sound",
        "key",
        "leader",
        "leader_epoch",
        "partition",
        "renewal",
        "source_epoch",
        "stop_source",
    )

    def __init__(self, key: TopicIdPartition, partition: Partition, shared: Surroundings) -> None:
        self.key = key
        self.partition = partition
        self.leader_epoch = NO_EPOCH  # in which this broker leads
        self.leader: PartitionLeader | None = None  # while it leads and there are several replicas
        self.copy: PartitionReplica | None = None  # while it follows
        self.is_sound = not partition.log.failed
        self.stop_source: Callable[[], Following | None] | None = None  # while records are copied from a source
        self.source_epoch = NO_EPOCH  # the source's latest known leader epoch
        self.renewal: Renewal | None = None
        self._shared = shared
        self._ending: list[Following] = []

    @property
    def leads(self) -> bool:
        """Whether this broker leads the partition."""
        return self.leader_epoch != NO_EPOCH

    def is_in_role(self, state: PartitionState) -> bool:
        """Return whether it has the role that a state gives it."""
        if not self.is_sound:
            return not self.leads and self.copy is None
        if self.is_mine(state):
            return self.leader_epoch == state.leader_epoch
        return self.copy is not None

    def source_in(self, state: PartitionState) -> str | None:
        """Return the id of the cluster whose records the partition follows, None if clients may write to it."""
        return source_of(self._shared.node.image.topics.get(self.partition.topic), state)

    def renew(self, renewal: Renewal) -> None:
        """Request another leader epoch; copying from the source pauses until it begins."""
        self.renewal = renewal
        self.want_step()

    def want_step(self) -> None:
        """Schedule the next step of this replica."""
        self._shared.wanted((self.partition.topic, self.partition.index))

    def is_mine(self, state: PartitionState) -> bool:
        """Return whether this broker leads."""
        node, leader = self._shared.node, state.leader
        if leader is None or leader.broker != node.id or node.is_fenced:
            return False
        return node.since <= leader.epoch <= node.latest_epoch

    # -- roles ---------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Stop leading or following. Before another role begins, the log must be `quiet`."""
        partition = self.partition
        self.end_source()
        if self.leads:
            self.leader_epoch = NO_EPOCH
            self._shared.partitions.availability.resign(partition)
            self._stop_replicating()
            partition.log.follow_replicas()
            logger.debug("%s-%d: no longer leading", partition.topic, partition.index)
        if self.copy is not None:
            self.copy = None
            partition.let_read(NOT_READABLE)
            self._note_ending(self._shared.follower.unfollow(partition.topic, partition.index))

    def end_source(self) -> None:
        """Stop copying from another cluster; `quiet` waits for the last result."""
        stop, self.stop_source = self.stop_source, None
        if stop is not None:
            self._note_ending(stop())

    def _note_ending(self, following: Following | None) -> None:
        if following is not None:
            self._ending.append(following)

    def _stop_replicating(self) -> None:
        leader, self.leader = self.leader, None
        if leader is not None:
            leader.resign()
            return
        partition = self.partition
        partition.appends.refuse_queued(NotLeaderError(f"{partition.topic}-{partition.index} has another leader now"))
        partition.wake_all()

    async def quiet(self) -> None:
        """Wait until an earlier role no longer uses the log."""
        while self._ending:
            following = self._ending[0]
            await following.ended()
            self._ending.remove(following)
        await self.partition.appends.quiet()

    def begin(self, state: PartitionState) -> None:
        """Lead or follow, unless the log has failed."""
        if not self.is_sound:
            return
        self.partition.mirror_of = self.source_in(state)
        if self.is_mine(state):
            self._lead(state)
        else:
            self._follow(state)

    async def cut(self, state: PartitionState) -> bool:
        """Truncate the log as the renewal of the leader epoch requires; return False if that has to be retried.

        The log must be `quiet`. If another broker leads, nothing is truncated: its log decides. Raises OSError.
        """
        renewal = self.renewal
        if renewal is not None and renewal.cut is not None and self.is_mine(state) and not await renewal.cut():
            return False
        self.renewal = None
        return True

    def needs_renewal(self, state: PartitionState) -> bool:
        """Return whether this broker leads a mirrored partition and has to begin another epoch."""
        if not self.is_sound or not self.is_mine(state) or self.source_in(state) is None:
            return False
        if self.partition.log.epochs.latest > state.leader_epoch:  # the store was restored from a backup
            return True
        return self.renewal is not None and self.leader_epoch == state.leader_epoch

    def is_to_be_promoted(self, state: PartitionState) -> bool:
        """Return whether this broker leads in the state's epoch and the topic is being promoted."""
        topic = self._shared.node.image.topics.get(self.partition.topic)
        is_promoting = topic is not None and topic.mirror is not None and topic.mirror.is_promoting
        return is_promoting and state.promoted_at is None and self.leads and self.is_in_role(state)

    def _lead(self, state: PartitionState) -> None:
        partition = self.partition
        if partition.mirror_of is None:
            partition.log.epochs.assign(state.leader_epoch, partition.log.offsets.log_end_offset)
        else:
            partition.log.epochs.lead_without_entry(state.leader_epoch)
        self.leader_epoch = state.leader_epoch
        partition.appends.gaps.note_refusal()
        partition.log.producers.guards.clear()
        if len(state.replicas) > 1:
            self._replicate(state)
        else:
            partition.log.stop_following_replicas()
        logger.debug("%s-%d: leading in epoch %d", partition.topic, partition.index, state.leader_epoch)
        self._shared.partitions.availability.lead(partition)
        promoted_at = state.promoted_at
        if promoted_at is not None and partition.log.producers.open_transactions:
            self._shared.node.spawn(partial(abort_open, partition, before=promoted_at))

    def _replicate(self, state: PartitionState) -> None:
        assert state.leader is not None
        shared = self._shared
        self.leader = PartitionLeader(
            self.partition,
            state,
            state.leader,
            min_isr=min_isr(shared.node.image, self.key, state),
            brokers=shared.node.image,
            deadlines=shared.deadlines,
            propose=partial(shared.proposals.send, self.key),
            max_lag_s=shared.settings().replica_lag_time_max_ms / 1000,
        )
        self._take_throttle()
        self.leader.start()
        self.leader.check()

    def _follow(self, state: PartitionState) -> None:
        shared, partition = self._shared, self.partition
        self.copy = PartitionReplica(
            partition,
            self.key.topic_id.bytes,
            shared.leaders,
            shared.partitions.checkpoint,
            max_bytes=shared.settings().replica_fetch_max_bytes,
            is_in_sync=lambda: self.is_in_sync,
        )
        self._take_throttle()
        self._let_consumers_read(state)
        shared.follower.follow(self.copy)

    def _let_consumers_read(self, state: PartitionState) -> None:
        """Allow consumers to read from this follower while it is in sync.

        Kafka lets them read from any replica, where they wait in vain if it cannot reach its leader.
        """
        node, leader = self._shared.node, state.leader
        is_led = leader is not None and leader.broker != node.id
        is_in_sync = any(member.broker == node.id and node.image.is_good(member) for member in state.isr)
        self.partition.let_read(state.leader_epoch if is_led and is_in_sync else NOT_READABLE)

    @property
    def is_in_sync(self) -> bool:
        """Whether this replica is in the ISR, according to the image."""
        state = self._shared.node.image.partitions.get(self.key)
        return state is not None and any(member.broker == self._shared.node.id for member in state.isr)

    @property
    def is_stuck(self) -> bool:
        """Whether the replica's disk is full, so that acknowledgements wait for records that it cannot append."""
        if not self.partition.log.appends.is_full:
            return False
        return self.leads if self.copy is None else self.is_in_sync and self.copy.problem is not None

    def _take_throttle(self) -> None:
        """Throttle sending or receiving by this replica if the topic's settings require it."""
        shared, partition = self._shared, self.partition
        topic = shared.node.image.topics.get(partition.topic)
        configs: Mapping[str, str] = {} if topic is None else topic.configs

        def chosen(setting: str, throttle: Throttle) -> Throttle | None:
            return throttle if names_replica(configs.get(setting, ""), partition.index, shared.node.id) else None

        if self.leader is not None:
            self.leader.throttle = chosen(LEADER_THROTTLED, shared.sending)
        if self.copy is not None:
            self.copy.throttle = chosen(FOLLOWER_THROTTLED, shared.receiving)

    # -- while it leads ------------------------------------------------------------------------------------------------

    def update(self, state: PartitionState) -> None:
        """Adopt a state in which the role is unchanged."""
        self.partition.mirror_of = self.source_in(state)
        if self.copy is not None:
            self._let_consumers_read(state)
        if not self.leads:
            return
        if self.leader is None:
            if len(state.replicas) > 1:
                self._replicate(state)
            return
        if len(state.replicas) == 1:
            self._stop_replicating()
            self.partition.log.stop_following_replicas()
            self.partition.wake_all()
            return
        change = len(state.isr) - len(self.leader.state.isr)
        self._shared.counts.shrinks += change < 0
        self._shared.counts.expansions += change > 0
        self.leader.update(state, min_isr(self._shared.node.image, self.key, state))

    def check(self) -> None:
        """Apply changed settings and brokers. A leader also proposes followers to remove from or add to the ISR."""
        self._take_throttle()
        if self.leader is None:
            return
        state = self._shared.node.image.partitions.get(self.key)
        if state is not None and self.is_in_role(state):
            self.update(state)
