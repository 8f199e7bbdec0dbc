"""A share group with its clock, topics, stores, initializations and answers. Waiters are numbers."""

import itertools
from typing import Any

from tests.broker.groups.consumer.driver import INTERVAL_MS, SESSION_MS, START, Cluster, result_of
from warmlog.broker.groups.automaton import Answer, Client, Instant
from warmlog.broker.groups.modern.effects import StoreRows
from warmlog.broker.groups.share.assignor import assign_shared
from warmlog.broker.groups.share.effects import AssignShared, Initialize, Row, Store
from warmlog.broker.groups.share.limits import ShareLimits
from warmlog.broker.groups.share.partition_states import Numbers
from warmlog.broker.groups.share.state import ShareGroup
from warmlog.broker.share.persister import InitialState
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.share.groups import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

RETRY_MS = 30_000


class Driver:
    """One group, whose effects are carried out at once, or collected where `auto` is false."""

    def __init__(self, cluster: Cluster | None = None, *, auto: bool = True, **limits: int) -> None:
        given = {
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": INTERVAL_MS,
            "assignment_interval_ms": 0,
            "initialize_retry_interval_ms": RETRY_MS,
            "max_size": 100,
        }
        self.limits = ShareLimits(**{**given, **limits})
        self.cluster = cluster if cluster is not None else Cluster(orders=4)
        self.now = START
        self.group = ShareGroup("g", self.limits, self.now)
        self.group.loaded(self.cluster, self.now)
        self.auto = auto
        self.answers: dict[int, Any] = {}
        self.stores: list[Store] = []
        self.assigns: list[AssignShared] = []
        self.initializes: list[Initialize] = []
        self.begun: list[tuple[InitialState, ...]] = []  # all initializations
        self.log: list[Row] = []  # what is stored
        self.waiters = itertools.count()

    # -- requests --

    def heartbeat(self, member_id: str, epoch: int, **fields: Any) -> int:
        """Send a heartbeat and return its waiter."""
        waiter = next(self.waiters)
        client = Client(client_id="c", host="/127.0.0.1", holder="127.0.0.1", new_id="")
        request = ShareGroupHeartbeatRequest(group="g", member_id=member_id, member_epoch=epoch, **fields)
        self.group.heartbeat(request, client, waiter, self.cluster, self.now)
        self.settle()
        return waiter

    def join(self, member_id: str, *topics: str, **fields: Any) -> int:
        """Send the first heartbeat of a member."""
        return self.heartbeat(member_id, 0, topics=topics or ("orders",), **fields)

    def joined(self, member_id: str, *topics: str, **fields: Any) -> ShareGroupHeartbeatResponse:
        """Join and return the response."""
        response: ShareGroupHeartbeatResponse = self.answers[self.join(member_id, *topics, **fields)]
        return response

    def beat(self, member_id: str, epoch: int, **fields: Any) -> ShareGroupHeartbeatResponse:
        """Send a heartbeat and return the response."""
        response: ShareGroupHeartbeatResponse = self.answers[self.heartbeat(member_id, epoch, **fields)]
        return response

    # -- effects --

    def take(self) -> None:
        """Sort the effects since the last call."""
        for effect in self.group.take_effects():
            if isinstance(effect, Answer):
                assert isinstance(effect.waiter, int)
                assert effect.waiter not in self.answers, "a request is answered once"
                self.answers[effect.waiter] = effect.response
            elif isinstance(effect, StoreRows):
                self.stores.append(effect)
            elif isinstance(effect, AssignShared):
                self.assigns.append(effect)
            else:
                self.initializes.append(effect)
                self.begun.append(tuple(effect.states()))

    def settle(self) -> None:
        """Take the effects, and carry them out if `auto` says so."""
        self.take()
        while self.auto and (self.stores or self.assigns or self.initializes):
            if self.stores:
                self.store()
            elif self.assigns:
                self.finish_assign()
            else:
                self.finish_initialize()

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
        assignments = None if fails else result_of(assign_shared(effect.members, effect.partitions))
        for _ in self.group.assigned(effect.epoch, assignments, self.now):
            self.settle()
        self.settle()

    def finish_initialize(self, *, fails: bool = False) -> None:
        """Complete the oldest initialization."""
        states = numbers(tuple(self.initializes.pop(0).states()))
        self.group.initialized({} if fails else states, states if fails else {}, self.now)
        self.settle()

    def pass_ms(self, delay_ms: float) -> None:
        """Let time pass, and expire what is due."""
        self.now = Instant(self.now.loop_s + delay_ms / 1000, self.now.wall_ms + int(delay_ms))
        while self.group.wake_at_s <= self.now.loop_s:
            self.group.expire(self.now)
            self.settle()

    def change(self, name: str, count: int) -> None:
        """Create a topic, change the number of its partitions, or delete it (0)."""
        if count:
            self.cluster.create(name, count)
        else:
            self.cluster.delete(name)
        self.group.topics_changed([name], self.cluster)
        self.settle()

    def restarted(self) -> ShareGroup:
        """Return a group that was loaded from the log."""
        latest = dict(self.log)  # as the coordinators' runtime loads them
        group = ShareGroup("g", self.limits, self.now)
        for key, value in latest.items():
            group.apply(key, value)
        group.loaded(self.cluster, self.now)
        return group


def numbers(states: tuple[InitialState, ...]) -> Numbers:
    """Return the partitions of states by topic id."""
    by_topic: dict[bytes, set[int]] = {}
    for state in states:
        by_topic.setdefault(state.topic_id, set()).add(state.partition)
    return {topic_id: frozenset(partitions) for topic_id, partitions in by_topic.items()}
