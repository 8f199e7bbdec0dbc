"""Bring what this broker does with its replicas in line with the image of the cluster.

    the image has changed -> the partitions concerned are due -> for each, one step after the other:
        create the log | lead | follow the leader | resign | stop, and delete the log

Invariants:
1. A partition is either led or followed, or neither; a leader resigns before anything is truncated or fetched.
2. This broker leads exactly while the state names it with an epoch of the history that its data continues.
3. A replica whose data or disk is lost leaves ISR and ELR before it is led or followed again (`disown`).
4. No other task changes roles; steps of different partitions run at the same time.

Source: kafka.server.ReplicaManager (applyDelta), KIP-966 for replicas that lost data.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from uuid import UUID

import trio

from broker.cluster.image import ClusterImage, ImageDelta, PartitionKey
from broker.cluster.node import ClusterNode
from broker.cluster.rules import Change, Decision, LogEnd, Refusal, disown, min_isr, transaction
from broker.cluster.store import StoreError
from broker.cluster.topics import removed
from broker.cluster.values import Member, PartitionState
from broker.log.errors import LogError
from broker.metadata.topic import RefusedError
from broker.metrics.registry import Metrics
from broker.partitions.partition import Partition
from broker.partitions.partitions import Partitions
from broker.replication.brokers import ClusterBrokers
from broker.replication.errors import PeerError
from broker.replication.follower import Follower
from broker.replication.leader import Deadlines, PartitionLeader
from broker.replication.proposals import IsrProposals
from broker.replication.replica import PartitionReplica
from broker.settings.settings import Settings
from protocol.errors import ErrorCode
from protocol.kafka.peer_apis import LIST_OFFSETS
from protocol.kafka.values import KafkaListOffsetsRequest
from protocol.request import LATEST_TIMESTAMP, OffsetQuery

STEPS = 64  # at the same time
RETRY_S = 1.0  # after a log could not be created
LOG_END_TIMEOUT_S = 5.0
DEBUGGER = -2  # as a replica id: asks a broker for its own log, whoever leads

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
        self.shrinks = self.expansions = 0  # of the ISRs that this broker leads
        self._node = node
        self._partitions = partitions
        self._brokers = brokers
        self._follower = follower
        self._deadlines = deadlines
        self._settings = settings
        self._proposals = IsrProposals(node)
        self._leaders: dict[PartitionKey, PartitionLeader] = {}
        self._leads: dict[PartitionKey, int] = {}  # the leader epoch in which this broker leads
        self._copies: dict[PartitionKey, Partition] = {}  # that are followed
        self._here: dict[PartitionKey, Partition] = {}
        self._lost: set[tuple[str, int]] = set()  # replicas that have to leave ISR and ELR first
        self._due: dict[PartitionKey, None] = dict.fromkeys(node.image.held.get(node.id, ()))
        self._busy: set[PartitionKey] = set()
        self._names: dict[tuple[str, int], trio.Lock] = {}  # around steps of partitions with the same directory
        self._wanted = trio.Event()
        self._settled = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._slots = trio.CapacityLimiter(STEPS)
        for partition in partitions:
            topic = partitions.topic(partition.topic)
            if topic is not None:
                self._here[PartitionKey(topic.id, partition.index)] = partition
                partition.on_records_lost = partial(self.lost, partition.topic, partition.index)
        self._due.update(dict.fromkeys(self._here))
        node.on_change.append(self._note)
        partitions.on_offline.append(self.lost)

    # -- what is due ---------------------------------------------------------------------------------------------------

    def _note(self, image: ClusterImage, delta: ImageDelta) -> None:
        me = self._node.id
        for key in delta.partitions:
            state = image.partitions.get(key)
            if key in self._here or key in self._busy or (state is not None and me in state.replicas):
                self._due[key] = None
        for topic in delta.gone:
            if me in image.gone.get(topic, ()):
                self._due.update(dict.fromkeys([key for key in self._here if key.topic == topic]))
        if me in delta.brokers:
            self._due.update(dict.fromkeys(image.held.get(me, ())))
        if delta.topics:
            self._due.update(dict.fromkeys(self._keys_of(image, delta)))
        if delta.brokers or delta.configs:
            self._due.update(dict.fromkeys(self._leaders))  # followers may have to leave, and minimums may be others
        if self._due or delta.gone:
            self._wanted.set()

    def _keys_of(self, image: ClusterImage, delta: ImageDelta) -> Iterator[PartitionKey]:
        """Yield the partitions here of topics that have changed, whose settings may be others."""
        for name in delta.topics:
            topic = image.topics.get(name)
            if topic is not None:
                yield from (key for key in image.keys_of(topic) if key in self._here)

    def lost(self, topic: str, index: int) -> None:
        """Take note that records of a replica, or its disk, are lost: it leaves ISR and ELR before anything else."""
        self._lost.add((topic, index))
        found = self._node.image.topics.get(topic)
        if found is not None:
            self._due[PartitionKey(found.id, index)] = None
            self._wanted.set()

    # -- running -------------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry out what is due until cancelled; started when everything that was due at first is done."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._check_leaders)
            nursery.start_soon(self._begin_due)
            await self._remove_gone()
            while self._due or self._busy:
                self._settled = trio.Event()
                await self._settled.wait()
            task_status.started()

    async def _begin_due(self) -> None:
        assert self._nursery is not None
        while True:
            self._wanted = trio.Event()
            for key in [key for key in self._due if key not in self._busy]:
                del self._due[key]
                self._busy.add(key)
                self._nursery.start_soon(self._step, key)
            if self._node.image.gone:
                await self._remove_gone()
            await self._wanted.wait()

    async def _step(self, key: PartitionKey) -> None:
        """Take the steps of one partition until nothing more is due for it."""
        try:
            async with self._slots:
                name = self._node.image.names.get(key.topic)
                partition = self._here.get(key)
                place = (partition.topic if partition is not None else name or "", key.partition)
                async with self._names.setdefault(place, trio.Lock()):
                    await self._apply(key)
        except (OSError, LogError, StoreError, RefusedError) as error:
            logger.warning("%s-%d: trying again: %s", self._node.image.names.get(key.topic), key.partition, error)
            await trio.sleep(RETRY_S)
            self._due[key] = None
        finally:
            self._busy.discard(key)
            self._wanted.set()
            self._settled.set()

    async def _check_leaders(self) -> None:
        """Look for followers that lag, at half of `replica.lag.time.max.ms`."""
        while True:
            await trio.sleep(self._settings().replica_lag_time_max_ms / 2000)
            for leader in list(self._leaders.values()):
                leader.check()
                await trio.lowlevel.checkpoint()

    # -- steps ---------------------------------------------------------------------------------------------------------

    async def _apply(self, key: PartitionKey) -> None:
        image, me = self._node.image, self._node.id
        state, partition = image.partitions.get(key), self._here.get(key)
        if state is None or me not in state.replicas:
            if partition is not None:
                await self._drop(key, partition)
            return
        name = image.names.get(key.topic)
        if name is None:
            return  # the topic is not in the image yet, or any more: another change follows
        if (name, key.partition) in self._lost and not await self._disown(key, name):
            return
        if self._partitions.is_offline(name, key.partition):
            return
        if partition is None:
            partition = await self._partitions.make_replica(name, key.partition)
            self._here[key] = partition
            partition.on_records_lost = partial(self.lost, name, key.partition)
            state = self._node.image.partitions.get(key)
        if state is not None:
            await self._take_role(key, state, partition)

    async def _take_role(self, key: PartitionKey, state: PartitionState, partition: Partition) -> None:
        if not self._is_mine(state):
            self._resign(key, partition)
            self._follow(key, partition)
        elif self._leads.get(key) != state.leader_epoch:
            self._resign(key, partition)
            await self._stop_following(key, partition)
            self._lead(key, state, partition)
        else:
            self._continue(key, state, partition)

    def _is_mine(self, state: PartitionState) -> bool:
        """Whether this broker leads: with an epoch of the history that its data continues, registered or not."""
        leader, node = state.leader, self._node
        return leader is not None and leader.broker == node.id and node.since <= leader.epoch <= node.epoch

    def _lead(self, key: PartitionKey, state: PartitionState, partition: Partition) -> None:
        log = partition.log
        log.assign_epoch(state.leader_epoch)
        self._leads[key] = state.leader_epoch
        if len(state.replicas) > 1:
            self._replicate(key, state, partition)
        else:
            log.stop_following_replicas()
        logger.debug("%s-%d: leading in epoch %d", partition.topic, partition.index, state.leader_epoch)
        self._partitions.lead(partition)

    def _replicate(self, key: PartitionKey, state: PartitionState, partition: Partition) -> None:
        assert state.leader is not None
        leader = self._leaders[key] = PartitionLeader(
            partition,
            state,
            state.leader,
            min_isr=min_isr(self._node.image, key, state),
            brokers=self._node.image,
            deadlines=self._deadlines,
            propose=partial(self._proposals.send, key),
            max_lag_s=self._settings().replica_lag_time_max_ms / 1000,
        )
        leader.start()
        leader.check()

    def _continue(self, key: PartitionKey, state: PartitionState, partition: Partition) -> None:
        """Take over a new state in the same leader epoch."""
        leader = self._leaders.get(key)
        if leader is None:
            if len(state.replicas) > 1:
                self._replicate(key, state, partition)
            return
        self._count(leader.state, state, partition)
        leader.update(state, min_isr(self._node.image, key, state))
        if len(state.replicas) == 1:
            leader.resign()
            del self._leaders[key]
            partition.log.stop_following_replicas()

    def _count(self, old: PartitionState, new: PartitionState, partition: Partition) -> None:
        """Count and log a change of the in-sync replicas."""
        if len(old.isr) != len(new.isr):
            self.shrinks += len(new.isr) < len(old.isr)
            self.expansions += len(new.isr) > len(old.isr)
            members = [member.broker for member in new.isr]
            logger.info("%s-%d: in-sync replicas are %s", partition.topic, partition.index, members)

    def _resign(self, key: PartitionKey, partition: Partition) -> None:
        if self._leads.pop(key, None) is None:
            return
        self._partitions.resign(partition)
        leader = self._leaders.pop(key, None)
        if leader is not None:
            leader.resign()
        else:
            partition.wake_all()
        logger.debug("%s-%d: not leading any more", partition.topic, partition.index)

    def _follow(self, key: PartitionKey, partition: Partition) -> None:
        if key in self._copies:
            return
        settings = self._settings()
        self._copies[key] = partition
        self._follower.follow(
            PartitionReplica(
                partition,
                key.topic.bytes,
                self._brokers,
                self._partitions.checkpoint,
                max_bytes=settings.replica_fetch_max_bytes,
            )
        )

    async def _stop_following(self, key: PartitionKey, partition: Partition) -> None:
        if self._copies.pop(key, None) is not None:
            await self._follower.stop(partition.topic, partition.index)
        await partition.appends.settled(among=1)

    async def _drop(self, key: PartitionKey, partition: Partition) -> None:
        """Delete a replica that is not this broker's any more."""
        self._resign(key, partition)
        await self._stop_following(key, partition)
        await self._partitions.drop_replica(partition)
        self._here.pop(key, None)
        self._lost.discard((partition.topic, partition.index))
        await self._remove_gone()

    async def _remove_gone(self) -> None:
        """Remove the marks of deleted topics of which nothing is left here."""
        me, image = self._node.id, self._node.image
        for topic in [topic for topic, brokers in image.gone.items() if me in brokers]:
            if not any(key.topic == topic for key in self._here):
                self._node.spawn(partial(self._unmark, topic))
        await trio.lowlevel.checkpoint()

    async def _unmark(self, topic: UUID) -> None:
        def make(image: ClusterImage) -> Decision | None:
            decision = removed(image, topic, self._node.id)
            return None if isinstance(decision, Refusal) else decision

        await self._node.commit(make)

    async def _disown(self, key: PartitionKey, name: str) -> bool:
        """Leave ISR and ELR; return whether that is done."""
        partition = self._here.get(key)
        if partition is not None:
            self._resign(key, partition)
            if self._partitions.is_offline(name, key.partition):
                await self._stop_following(key, partition)
                self._here.pop(key, None)

        def make(image: ClusterImage) -> Decision | None:
            change = disown(image, key, self._node.me)
            return transaction([change]) if isinstance(change, Change) else None

        await self._node.commit(make)
        logger.warning("%s-%d: left the in-sync replicas: records or their disk are lost", name, key.partition)
        self._lost.discard((name, key.partition))
        return True

    # -- log ends ------------------------------------------------------------------------------------------------------

    async def ask_log_ends(self, key: PartitionKey, members: Sequence[Member]) -> Mapping[Member, LogEnd]:
        """Ask brokers where their logs of a partition end, whoever leads it.

        Those that do not answer, or have registered again meanwhile, are missing.
        """
        found: dict[Member, LogEnd] = {}
        name = self._node.image.names.get(key.topic)
        if name is not None:
            with trio.move_on_after(LOG_END_TIMEOUT_S):
                async with trio.open_nursery() as nursery:
                    for member in members:
                        nursery.start_soon(self._ask_log_end, name, key.partition, member, found)
        return {member: end for member, end in found.items() if self._node.image.current(member.broker) == member}

    async def _ask_log_end(self, topic: str, index: int, member: Member, found: dict[Member, LogEnd]) -> None:
        if member == self._node.me:
            here = self._partitions.local(topic, index)
            if here is not None:
                found[member] = LogEnd(here.log.epochs.latest, here.log.log_end_offset)
            return
        query = OffsetQuery(topic=topic, partition=index, timestamp=LATEST_TIMESTAMP)
        request = KafkaListOffsetsRequest(partitions=(query,), replica_id=DEBUGGER)
        try:
            answer = await self._brokers.ask(member.broker, LIST_OFFSETS, request)
        except PeerError as error:
            logger.debug("broker %d does not tell where its log ends: %s", member.broker, error)
            return
        for one in answer.partitions:
            if one.error is ErrorCode.NONE:
                found[member] = LogEnd(one.leader_epoch, one.offset)

    # -- sight ---------------------------------------------------------------------------------------------------------

    def declare(self, metrics: Metrics) -> None:
        """Register the metrics of replication."""
        gauges: Mapping[str, tuple[str, Callable[[], int]]] = {
            "warmlog_replication_leaders": ("Partitions that this broker leads.", lambda: len(self._leads)),
            "warmlog_replication_under_replicated": (
                "Partitions led by this broker whose in-sync replicas are fewer than its replicas.",
                lambda: sum(len(one.state.isr) < len(one.state.replicas) for one in list(self._leaders.values())),
            ),
            "warmlog_replication_below_min_isr": (
                "Partitions led by this broker with fewer in-sync replicas than min.insync.replicas.",
                lambda: sum(one.progress.is_under_min_isr for one in list(self._leaders.values())),
            ),
            "warmlog_replication_max_lag_records": (
                "Records that the slowest follower of any partition led by this broker lacks.",
                self._max_lag,
            ),
        }
        for name, (text, count) in gauges.items():
            metrics.gauge(name, text, lambda count=count: [((), count())])  # type: ignore[misc]
        metrics.counter(
            "warmlog_replication_isr_changes_total",
            "Changes of in-sync replicas by this broker.",
            lambda: [(("shrink",), self.shrinks), (("expand",), self.expansions)],
            ("kind",),
        )

    def _max_lag(self) -> int:
        lags = [
            one.progress.log_end - follower.log_end
            for one in list(self._leaders.values())
            for follower in list(one.progress.followers.values())
            if follower.log_end >= 0
        ]
        return max(lags, default=0)
