"""A streams group with its clock, topics, stores and answers. Waiters are numbers."""

import itertools
from collections.abc import Mapping
from typing import Any

from tests.broker.groups.consumer.driver import INTERVAL_MS, REBALANCE_MS, SESSION_MS, START, Cluster, result_of
from warmlog.broker.groups.automaton import Answer, Client, Instant
from warmlog.broker.groups.modern.effects import StoreRows
from warmlog.broker.groups.modern.topic_hash import group_hash
from warmlog.broker.groups.streams.assignor.sticky import assign_tasks
from warmlog.broker.groups.streams.effects import AssignTasks, Row, Store
from warmlog.broker.groups.streams.limits import StreamsLimits
from warmlog.broker.groups.streams.state import StreamsGroup
from warmlog.broker.groups.streams.tasks import Tasks
from warmlog.broker.groups.streams.topology.configured import ConfiguredTopology, configure, required_topics
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.groups.streams import (
    InternalTopic,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TaskIds,
    Topology,
)

TaskPairs = set[tuple[str, int]]
LATEST_VERSION = 1


def topology(*sources: str, epoch: int = 0, stateful: bool = False) -> Topology:
    """Return a topology with a subtopology for each source, whose id is the source's name."""
    return Topology(
        epoch=epoch,
        subtopologies=tuple(
            Subtopology(
                subtopology_id=source,
                sources=(source,),
                changelogs=(InternalTopic(topic=f"{source}-changelog"),) if stateful else (),
            )
            for source in sources or ("orders",)
        ),
    )


def task_ids(pairs: TaskPairs) -> tuple[TaskIds, ...]:
    """Return tasks as requests have them."""
    return tuple(
        TaskIds(subtopology_id=each, partitions=tuple(sorted(number for name, number in pairs if name == each)))
        for each in sorted({name for name, _ in pairs})
    )


def owning(active: TaskPairs | None = None, standby: TaskPairs | None = None) -> dict[str, Any]:
    """Return the fields of a request that report tasks."""
    return {"active": task_ids(active or set()), "standby": task_ids(standby or set()), "warmup": ()}


def pairs(tasks: tuple[TaskIds, ...] | None) -> TaskPairs | None:
    """Return tasks of a response as pairs of a subtopology and a number; None without tasks."""
    return None if tasks is None else {(each.subtopology_id, number) for each in tasks for number in each.partitions}


class Driver:
    """One group, whose effects are carried out at once, or collected where `auto` is false."""

    def __init__(self, cluster: Cluster | None = None, *, auto: bool = True, **limits: Any) -> None:
        given = {
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": INTERVAL_MS,
            "assignment_interval_ms": 0,
            "initial_rebalance_delay_ms": 0,
            "max_size": 100,
            "standby_replicas": 0,
        }
        self.limits = StreamsLimits(**{**given, **limits})
        self.cluster = cluster if cluster is not None else Cluster(orders=4)
        self.now = START
        self.group = StreamsGroup("g", self.limits, self.now)
        self.group.loaded(self.cluster, self.now)
        self.auto = auto
        self.answers: dict[int, StreamsGroupHeartbeatResponse] = {}
        self.stores: list[Store] = []
        self.assigns: list[AssignTasks] = []
        self.log: list[Row] = []  # what is stored
        self.waiters = itertools.count()

    # -- requests --

    def heartbeat(
        self, member_id: str, epoch: int, *, client: str = "c", version: int = LATEST_VERSION, **fields: Any
    ) -> int:
        """Send a heartbeat and return its waiter."""
        waiter = next(self.waiters)
        request = StreamsGroupHeartbeatRequest(group="g", member_id=member_id, member_epoch=epoch, **fields)
        self.group.limits = self.limits
        self.group.heartbeat(
            request,
            Client(client_id=client, host="/127.0.0.1", holder="127.0.0.1", new_id=""),
            waiter,
            self.cluster,
            self.now,
            configured=self.configured(request),
            version=version,
        )
        self.settle()
        return waiter

    def configured(self, request: StreamsGroupHeartbeatRequest) -> ConfiguredTopology | None:
        """Fit the topology to the topics, as the coordinator does."""
        wanted = self.group.topology_for(request)
        if self.group.configured is not None or wanted is None:
            return self.group.configured
        names = [name for name in required_topics(wanted) if self.cluster.named(name) is not None]
        hashes = {name: self.cluster.hash_of(name) or 0 for name in names}
        last, topics_hash = self.group.last_configured, group_hash(hashes)
        if last is not None and last.metadata_hash == topics_hash:
            return last
        return configure(wanted, self.cluster, topics_hash)

    def join(self, member_id: str, **fields: Any) -> int:
        """Send the first heartbeat of a member."""
        given = {"topology": topology(), "rebalance_timeout_ms": REBALANCE_MS, "process_id": f"p-{member_id}"}
        return self.heartbeat(member_id, 0, **{**given, **owning(), **fields})

    def joined(self, member_id: str, **fields: Any) -> StreamsGroupHeartbeatResponse:
        """Join and return the response."""
        return self.answers[self.join(member_id, **fields)]

    def beat(self, member_id: str, epoch: int, **fields: Any) -> StreamsGroupHeartbeatResponse:
        """Send a heartbeat and return the response."""
        return self.answers[self.heartbeat(member_id, epoch, **fields)]

    # -- effects --

    def take(self) -> None:
        """Sort the effects since the last call."""
        for effect in self.group.take_effects():
            if isinstance(effect, Answer):
                assert isinstance(effect.waiter, int)
                assert effect.waiter not in self.answers, "a heartbeat is answered once"
                self.answers[effect.waiter] = effect.response
            elif isinstance(effect, StoreRows):
                self.stores.append(effect)
            else:
                self.assigns.append(effect)

    def settle(self) -> None:
        """Take the effects, and carry them out if `auto` says so."""
        self.take()
        while self.auto and (self.stores or self.assigns):
            if self.stores:
                self.store()
            else:
                self.finish_assign()

    def store(self, error: ErrorCode = ErrorCode.NONE, *, written: bool = False) -> None:
        """Write the oldest records that wait for it, or fail; they may be `written` nevertheless."""
        store = self.stores.pop(0)
        if error is ErrorCode.NONE or written:
            self.log += store.rows
        self.group.stored(store.ticket, error, self.now)
        self.take()

    def finish_assign(self, *, fails: bool = False) -> None:
        """Complete the assignment that is being computed."""
        effect = self.assigns.pop(0)
        computed = assign_tasks(effect.members, effect.subtopologies, effect.standby_replicas)
        assignments: Mapping[str, Tasks] | None = None if fails else result_of(computed)
        for _ in self.group.assigned(effect.epoch, assignments, self.now):
            self.settle()
        self.settle()

    def pass_ms(self, delay_ms: float) -> None:
        """Let time pass, and expire what is due."""
        self.now = Instant(self.now.loop_s + delay_ms / 1000, self.now.wall_ms + int(delay_ms))
        while self.group.wake_at_s <= self.now.loop_s:
            self.group.expire(self.now)
            self.settle()

    def grow(self, name: str, count: int) -> None:
        """Create a topic, or change the number of its partitions."""
        self.cluster.create(name, count)
        self.group.topics_changed([name])

    def restarted(self) -> StreamsGroup:
        """Return a group that was loaded from the log."""
        group = StreamsGroup("g", self.limits, self.now)
        for key, value in self.log:
            group.apply(key, value)
        group.loaded(self.cluster, self.now)
        return group
