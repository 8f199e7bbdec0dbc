"""Apply the image of the cluster to the replicas on this broker.

    the image changes -> the changed partitions are due -> for each, one step after the other until none is left:
        delete the log of another topic | leave ISR and ELR | create the log | lead or follow

Replicas are identified by (topic, partition), the name of the directory. The log there may belong to a deleted topic
whose name has been reused.

Invariants:
1. One task at a time works on a replica, and no other task changes its role, except that `end` may be called any time.
2. A replica that has lost its records, or its disk, has no role until it has left ISR and ELR (`disown`). Its role ends
   as soon as the loss is detected, before the log can be used again.
3. A log is used for the topic id that its directory names, or not at all: its role ends as soon as the image gives its
   name to another topic, since requests are compared with the image.
4. A failed step is retried while other replicas continue. A change of roles does not wait for their disks.

Source: kafka.server.ReplicaManager (applyDelta), KIP-966 for replicas that lost data.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from uuid import UUID

import trio

from warmlog.broker.cluster.image import ClusterImage, ImageDelta
from warmlog.broker.cluster.node import ClusterNode
from warmlog.broker.cluster.rules import Change, Decision, LogEnd, disown, step_aside, transaction
from warmlog.broker.cluster.store import StoreError
from warmlog.broker.cluster.values import NO_EPOCH, Member, PartitionState
from warmlog.broker.log.errors import LogError
from warmlog.broker.metadata.topic import RefusedError
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.partition import Partition
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.replication.deleted_topics import DeletedTopics
from warmlog.broker.replication.following.follower import Follower
from warmlog.broker.replication.leading.leader import Deadlines
from warmlog.broker.replication.leading.proposals import IsrProposals
from warmlog.broker.replication.local_replica import LocalReplica, Surroundings
from warmlog.broker.replication.log_ends import LogEnds
from warmlog.broker.replication.metrics import declare_replication_metrics
from warmlog.broker.replication.mirrored_leaders import MirroredLeaders, to_be_promoted
from warmlog.broker.replication.peers.brokers import ClusterBrokers
from warmlog.broker.replication.throttle import Throttle
from warmlog.broker.settings.settings import Settings
from warmlog.protocol.partitions import TopicIdPartition, TopicPartition

CREATIONS = 256  # concurrent creations or deletions of logs
COMMITS = 256  # at the same time
STEPS_PER_TURN = 100  # steps begun together
CHECKS_PER_TURN = 100  # leaders checked in one step: about a millisecond
RETRY_S = 1.0  # pause after a failed step
FULL_DISK_INTERVAL_S = 1.0
BURST_S = 1.0  # of throttled replication: longer than a fetch waits at the leader, so that no part of the rate is lost

logger = logging.getLogger(__name__)


class Replicas:
    """The replicas on this broker. Belongs to the event loop."""

    def __init__(
        self,
        node: ClusterNode,
        partitions: Partitions,
        *,
        brokers: ClusterBrokers,
        follower: Follower,
        deadlines: Deadlines,
        settings: Callable[[], Settings],
    ) -> None:
        """Use the open logs. The node must not follow the store yet, or changes would be missed."""
        self._node = node
        self._partitions = partitions
        self._shared = Surroundings(
            node=node,
            partitions=partitions,
            leaders=brokers,
            follower=follower,
            deadlines=deadlines,
            proposals=IsrProposals(node),
            wanted=self._want,
            settings=settings,
            sending=Throttle(lambda: max(1, settings().leader_replication_throttled_rate), burst_s=BURST_S),
            receiving=Throttle(lambda: max(1, settings().follower_replication_throttled_rate), burst_s=BURST_S),
        )
        self._log_ends = LogEnds(node, partitions, brokers)
        self._here: dict[TopicPartition, LocalReplica] = {}
        self._assignments: dict[TopicIdPartition, TopicPartition] = {}  # by partition id, the replicas here
        self._lost: set[TopicPartition] = set()  # replicas that first have to leave ISR and ELR
        self._topics = Counter[UUID]()  # number of replicas of each topic here
        self._stuck: set[TopicPartition] = set()  # in-sync replicas on full disks, which should leave the ISR
        self._deleted = DeletedTopics(node, lambda topic: self._topics[topic])
        self._first_epoch = NO_EPOCH  # of this broker since startup
        self._due: dict[TopicPartition, None] = {}
        self._busy: set[TopicPartition] = set()
        self._problems: dict[TopicPartition, str] = {}  # problems already logged
        self._untried: set[TopicPartition] = set()  # since startup
        self._all_tried = trio.Event()
        self._wanted = trio.Event()  # set when a step is due
        self._unchecked = trio.Event()  # set when brokers or settings that leaders depend on have changed
        self._disks = trio.CapacityLimiter(CREATIONS)
        self._store = trio.CapacityLimiter(COMMITS)
        self._mirrored = MirroredLeaders(node, self._store)
        for partition in partitions:
            # A restored store may assign the same epochs again: an epoch counts only if there are records of it.
            offsets = partition.log.offsets
            partition.log.epochs.drop_empty(offsets.log_start_offset, offsets.log_end_offset)
            if (topic := partitions.topic(partition.topic)) is not None:
                self._adopt(TopicIdPartition(topic.id, partition.index), partition)
        self._lost.update([replica for replica in self._here if partitions.was_cut(*replica)])
        self._lost.update(self._missing())
        node.on_change.append(self._note)
        partitions.availability.on_offline.append(self._lost_disk)

    def __len__(self) -> int:
        return len(self._here)

    def find(self, topic: str, index: int) -> LocalReplica | None:
        """Return a replica on this broker, or None."""
        return self._here.get((topic, index))

    @property
    def has_lost(self) -> bool:
        """Whether a replica has lost its records and not left ISR and ELR yet."""
        return bool(self._lost)

    async def ask_log_ends(self, key: TopicIdPartition, members: Sequence[Member]) -> Mapping[Member, LogEnd]:
        """Query the log end offsets of a partition's replicas; see `LogEnds.ask`."""
        return await self._log_ends.ask(key, members)

    def declare(self, metrics: Metrics) -> None:
        """Declare the metrics of replication."""
        declare_replication_metrics(metrics, lambda: list(self._here.values()), self._shared)

    def _adopt(self, key: TopicIdPartition, partition: Partition) -> None:
        replica = partition.topic, partition.index
        local = self._here[replica] = LocalReplica(key, partition, self._shared)
        self._assignments[key] = replica
        self._topics[key.topic_id] += 1
        partition.on_health = partial(self._examine, local)
        if not local.is_sound:
            self._lost.add(replica)

    def _forget(self, replica: TopicPartition) -> None:
        local = self._here.pop(replica)
        del self._assignments[local.key]
        self._topics[local.key.topic_id] -= 1
        if not self._topics[local.key.topic_id]:
            del self._topics[local.key.topic_id]
        local.partition.on_health = None

    # -- due partitions ------------------------------------------------------------------------------------------------

    def _note(self, image: ClusterImage, delta: ImageDelta) -> None:
        me = self._node.id
        for key in delta.partitions:
            replica, state, name = self._assignments.get(key), image.partitions.get(key), image.names.get(key.topic_id)
            if replica is None and name is not None and state is not None and me in state.replicas:
                replica = name, key.partition
            if replica is not None:
                self._due[replica] = None
                self._end_of_other_topic(replica)
        self._due.update(dict.fromkeys(to_be_promoted(image, delta)))
        if me in delta.brokers:
            self._due.update(dict.fromkeys(self._all_assigned()))
        if delta.brokers or delta.topics or delta.configs:
            self._unchecked.set()
        if delta.gone:
            self._unmark_deleted()
        self._wanted.set()

    def _end_of_other_topic(self, replica: TopicPartition) -> None:
        """End the role of a log that no longer belongs to the partition, and stop reporting its log end offset."""
        local = self._here.get(replica)
        if local is not None:
            assigned = self._assigned(replica)
            if assigned is None or assigned[0] != local.key:
                local.end()
                local.partition.is_of_deleted_topic = local.key.topic_id not in self._node.image.names

    def _unmark_deleted(self) -> None:
        if not self._partitions.has_offline_directories:
            self._deleted.unmark()

    def _all_assigned(self) -> list[TopicPartition]:
        """Return the partitions of which the image or the disk has a replica here."""
        image = self._node.image
        held = [(image.names.get(key.topic_id), key.partition) for key in image.held.get(self._node.id, ())]
        return [*self._here, *[(name, index) for name, index in held if name is not None]]

    def _want(self, replica: TopicPartition) -> None:
        self._due[replica] = None
        self._wanted.set()

    def _examine(self, local: LocalReplica) -> None:
        """Record that a log has failed, or was rebuilt."""
        is_sound = not local.partition.log.failed
        if is_sound == local.is_sound:
            return
        local.is_sound = is_sound
        replica = local.partition.topic, local.partition.index
        if not is_sound:  # rebuilding it shows whether records are lost, and makes it accept appends again
            local.end()
            self._lost.add(replica)
        self._want(replica)

    def _lost_disk(self, topic: str, index: int) -> None:
        """Record that the data directory of a replica is offline and its log is being closed."""
        replica = topic, index
        local = self._here.get(replica)
        if local is not None:
            local.end()
            self._forget(replica)
        self._lost.add(replica)
        self._want(replica)

    # -- running -------------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take due steps until cancelled; started when every replica has its role, or has failed to get it.

        The broker must be registered.
        """
        self._first_epoch = self._node.epoch
        missing = [each for each in self._lost - self._here.keys() if not self._partitions.may_be_offline(*each)]
        if self._node.since == self._first_epoch:
            self._lost.clear()  # in a new history they are not eligible anyway
            if missing:
                logger.error(
                    "%d in-sync or eligible replicas have no log on this broker; replicating them from their leaders",
                    len(missing),
                )
        else:
            for replica in sorted(missing):
                logger.error(
                    "%s-%d: in-sync or eligible, but has no log on this broker; replicating it from its leader",
                    *replica,
                )
        self._untried.update(self._all_assigned())
        self._due.update(dict.fromkeys(self._untried))
        self._unmark_deleted()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._check_leaders)
                nursery.start_soon(self._watch_disks)
                nursery.start_soon(self._begin_due, nursery)
                if self._untried:
                    await self._all_tried.wait()
                task_status.started()
        finally:
            for local in self._here.values():
                local.end()  # requests that wait for replicas would never end: the logs are closed next

    async def _begin_due(self, nursery: trio.Nursery) -> None:
        while True:
            self._wanted = trio.Event()
            due = [replica for replica in self._due if replica not in self._busy]
            for number, replica in enumerate(due, 1):
                del self._due[replica]
                self._busy.add(replica)
                nursery.start_soon(self._step, replica, nursery)
                if number % STEPS_PER_TURN == 0:
                    await trio.lowlevel.checkpoint()
            await self._wanted.wait()

    async def _step(self, replica: TopicPartition, nursery: trio.Nursery) -> None:
        """Take the steps of one replica until nothing is left to do."""
        try:
            while await self._advance(replica):
                pass
        except (OSError, LogError, StoreError, RefusedError) as error:
            if self._problems.get(replica) != str(error):
                self._problems[replica] = str(error)
                logger.warning("%s-%d: cannot update the replica, retrying: %s", *replica, error)
            nursery.start_soon(self._retry, replica)
        except Exception:  # a defect in one replica must not stop others
            logger.exception("%s-%d: unexpected error while updating the replica, retrying", *replica)
            nursery.start_soon(self._retry, replica)
        else:
            self._problems.pop(replica, None)
        finally:
            self._busy.discard(replica)
            self._untried.discard(replica)
            if not self._untried:
                self._all_tried.set()
            if replica in self._due:
                self._wanted.set()

    async def _retry(self, replica: TopicPartition) -> None:
        await trio.sleep(RETRY_S)
        self._want(replica)

    async def _check_leaders(self) -> None:
        """Check for lagging followers, every half `replica.lag.time.max.ms` and whenever brokers or settings change."""
        while True:
            with trio.move_on_after(self._shared.settings().replica_lag_time_max_ms / 2000):
                await self._unchecked.wait()
            self._unchecked = trio.Event()
            for number, local in enumerate(list(self._here.values()), 1):
                local.check()
                if number % CHECKS_PER_TURN == 0:
                    await trio.lowlevel.checkpoint()

    async def _watch_disks(self) -> None:
        """Remove in-sync replicas on full disks from the ISR periodically, so that no append waits for them."""
        while True:
            await trio.sleep(FULL_DISK_INTERVAL_S)
            for replica in [replica for replica, local in self._here.items() if local.is_stuck]:
                self._stuck.add(replica)
                self._want(replica)

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def _advance(self, replica: TopicPartition) -> bool:
        """Take the next step of a replica; return whether there may be another one."""
        local, assigned = self._here.get(replica), self._assigned(replica)
        if local is not None and (assigned is None or assigned[0] != local.key):
            await self._drop(replica, local)
            return True
        if assigned is None:
            self._lost.discard(replica)
            return False
        key, state = assigned
        if replica in self._lost:
            await self._disown(replica, key)
        elif local is None:
            return await self._make(replica, key, state)
        elif (is_again := await self._mirrored.step(local, state)) is not None:
            return is_again
        elif local.is_in_role(state):
            local.update(state)
            if replica not in self._stuck:
                return False
            self._stuck.discard(replica)
            if local.is_stuck:
                await self._step_aside(replica, key, "the disk is full")
        else:
            await self._change_role(replica, local, assigned)
        return True

    async def _change_role(
        self, replica: TopicPartition, local: LocalReplica, assigned: tuple[TopicIdPartition, PartitionState]
    ) -> None:
        """End the role of a replica, and begin the next one unless the state has changed in between."""
        local.end()
        await local.quiet()
        if replica in self._lost or self._assigned(replica) != assigned:
            return
        if not await local.cut(assigned[1]):
            await trio.sleep(RETRY_S)
        elif replica not in self._lost and self._assigned(replica) == assigned:
            local.begin(assigned[1])

    def _assigned(self, replica: TopicPartition) -> tuple[TopicIdPartition, PartitionState] | None:
        """Return the partition that a replica belongs to, and its state."""
        name, index = replica
        image = self._node.image
        topic = image.topics.get(name)
        if topic is None:
            return None
        key = TopicIdPartition(topic.id, index)
        state = image.partitions.get(key)
        return None if state is None or self._node.id not in state.replicas else (key, state)

    def _is_new(self, state: PartitionState) -> bool:
        """Return whether a partition was just assigned to this broker, so that there cannot be a log of it yet."""
        mine = self._member_of(state)
        return self._node.id in state.adding or (mine is not None and mine.epoch >= self._first_epoch)

    def _missing(self) -> list[TopicPartition]:
        """Return replicas that should have committed records but have no log. Call it before this broker registers.

        After that, an election may renew the epoch of the entry, which hides the missing log.
        """
        image, missing = self._node.image, list[TopicPartition]()
        for key in image.held.get(self._node.id, ()):
            name, mine = image.names.get(key.topic_id), self._member_of(image.partitions[key])
            if name is not None and (name, key.partition) not in self._here and mine is not None and mine.epoch >= 0:
                missing.append((name, key.partition))
        return missing

    def _member_of(self, state: PartitionState) -> Member | None:
        """Return the entry of this broker in the ISR or ELR."""
        return next((member for member in (*state.isr, *state.elr) if member.broker == self._node.id), None)

    async def _disown(self, replica: TopicPartition, key: TopicIdPartition) -> None:
        """Leave ISR and ELR. A further loss in the meantime is handled again."""

        def make(image: ClusterImage) -> Decision | None:
            change = disown(image, key, self._node.me)
            return transaction([change]) if isinstance(change, Change) else None

        self._lost.discard(replica)
        has_left = False
        try:
            async with self._store:
                await self._node.commit(make)
            has_left = True
        finally:
            if not has_left:  # the broker may be stopping: see `history`
                self._lost.add(replica)
        self._shared.counts.disowned += 1
        logger.warning("%s-%d: left the in-sync replicas: its log or disk has failed, or has lost records", *replica)

    async def _make(self, replica: TopicPartition, key: TopicIdPartition, state: PartitionState) -> bool:
        """Create the log, unless it may be on an offline disk; return whether there may be another step.

        If that fails, leave the ISR, so that no append waits for this replica. Raises OSError, LogError.
        """
        if self._partitions.may_be_offline(*replica) and not self._is_new(state):
            return False
        try:
            async with self._disks:
                if self._assigned(replica) != (key, state):
                    return True
                partition = await self._partitions.make_replica(*replica)
        except (OSError, LogError) as error:
            await self._step_aside(replica, key, f"its log cannot be created: {error}")
            raise
        self._adopt(key, partition)
        return True

    async def _step_aside(self, replica: TopicPartition, key: TopicIdPartition, reason: str) -> None:
        """Leave the in-sync replicas; if this broker leads, another in-sync replica takes over, if there is one."""
        image, me = self._node.image, self._node.me
        state = image.partitions.get(key)
        change = step_aside(image, key, me)
        if not isinstance(change, Change):
            return
        async with self._store:
            is_done = await self._node.attempt(transaction([change]))
        if is_done:
            did_lead = state is not None and state.leader_id == me.broker
            done = "resigned leadership" if did_lead else "left the in-sync replicas"
            logger.warning("%s-%d: %s: %s", *replica, done, reason)

    async def _drop(self, replica: TopicPartition, local: LocalReplica) -> None:
        """Delete a replica that is no longer assigned to this broker, or belonged to a deleted topic."""
        local.end()
        await local.quiet()
        async with self._disks:
            await self._partitions.drop_replica(local.partition)
        if self._here.get(replica) is local:
            self._forget(replica)
        self._lost.discard(replica)
        self._unmark_deleted()
