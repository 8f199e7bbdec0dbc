"""A consumer group with its clock, topics, stores and answers. Waiters are numbers."""

import itertools
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

from warmlog.broker.groups.automaton import Answer, Client, Instant
from warmlog.broker.groups.consumer.effects import Assign, Downgrade, Resolve, Row, Store
from warmlog.broker.groups.consumer.limits import ConsumerLimits
from warmlog.broker.groups.consumer.state import ConsumerGroup
from warmlog.broker.groups.modern.assignment import Assignment, Subscriber, TopicInfo
from warmlog.broker.groups.modern.effects import StoreRows
from warmlog.broker.groups.modern.topic_hash import topic_hash
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import JoinGroupRequest, LeavingMember, SyncGroupRequest, SyncGroupResponse
from warmlog.protocol.kafka.messages.groups.consumer import (
    AssignedPartitions,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

SESSION_MS = 45_000
REBALANCE_MS = 60_000
INTERVAL_MS = 5_000
START = Instant(1000.0, 1_700_000_000_000)


class Cluster:
    """The topics of a cluster."""

    def __init__(self, **partitions: int) -> None:
        self._topics: dict[str, TopicInfo] = {}
        for name, count in partitions.items():
            self.create(name, count)

    def create(self, name: str, partitions: int) -> None:
        """Create a topic, or change its number of partitions."""
        self._topics[name] = TopicInfo(topic_id(name), name, partitions)

    def delete(self, name: str) -> None:
        del self._topics[name]

    def named(self, name: str) -> TopicInfo | None:
        return self._topics.get(name)

    def identified(self, wanted: bytes) -> TopicInfo | None:
        return next((topic for topic in self._topics.values() if topic.id == wanted), None)

    def hash_of(self, name: str) -> int | None:
        topic = self._topics.get(name)
        return None if topic is None else topic_hash(topic)

    @property
    def names(self) -> list[str]:
        return sorted(self._topics)


def topic_id(name: str) -> bytes:
    return name.encode().ljust(16, b"\0")


def partitions(**topics: Iterable[int]) -> tuple[TopicPartitions, ...]:
    """Return partitions by topic as requests have them."""
    return tuple(
        TopicPartitions(topic_id=topic_id(name), partitions=tuple(numbers)) for name, numbers in topics.items()
    )


def flat(assigned: AssignedPartitions | None) -> set[tuple[str, int]] | None:
    """Return the partitions of a response as pairs of a topic and a number; None without an assignment."""
    if assigned is None:
        return None
    return {
        (each.topic_id.rstrip(b"\0").decode(), partition)
        for each in assigned.partitions
        for partition in each.partitions
    }


def deal(members: Mapping[str, Subscriber], topics: Mapping[bytes, TopicInfo]) -> dict[str, Assignment]:
    """Assign partitions in turn; a member keeps what it has as far as that is no more than its share."""
    result: dict[str, dict[bytes, set[int]]] = {member_id: {} for member_id in members}
    for topic in topics.values():
        takers = sorted(member_id for member_id, member in members.items() if topic.id in member.topics)
        if not takers:
            continue
        share = -(-topic.partitions // len(takers))
        for member_id in takers:
            kept = sorted(each for each in members[member_id].owned.get(topic.id, ()) if each < topic.partitions)
            result[member_id][topic.id] = set(kept[:share])
        given = {each for member_id in takers for each in result[member_id][topic.id]}
        for partition in range(topic.partitions):
            if partition not in given:
                fewest = min(takers, key=lambda member_id: len(result[member_id][topic.id]))
                result[fewest][topic.id].add(partition)
    return {
        member_id: {topic: frozenset(numbers) for topic, numbers in assigned.items() if numbers}
        for member_id, assigned in result.items()
    }


class Driver:
    """One group, whose effects are carried out at once, or collected where `auto` is false."""

    def __init__(self, cluster: Cluster | None = None, *, auto: bool = True, **limits: Any) -> None:
        given = {
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": INTERVAL_MS,
            "max_size": 100,
            "assignors": ("uniform", "range"),
            "regex_refresh_interval_ms": 600_000,
            "assignment_interval_ms": 0,
        }
        self.limits = ConsumerLimits(**{**given, **limits})
        self.cluster = cluster if cluster is not None else Cluster(orders=4)
        self.now = START
        self.group = ConsumerGroup("g", self.limits, self.now)
        self.group.loaded(self.cluster, self.now)
        self.auto = auto
        self.assign: Callable[[Mapping[str, Subscriber], Mapping[bytes, TopicInfo]], dict[str, Assignment]] = deal
        self.answers: dict[int, Any] = {}  # responses of heartbeats, JoinGroup, SyncGroup and LeaveGroup
        self.downgrades: list[Downgrade] = []  # what is stored
        self.stores: list[Store] = []
        self.assigns: list[Assign] = []
        self.resolves: list[Resolve] = []
        self.log: list[Row] = []  # what is stored
        self.waiters = itertools.count()

    # -- requests --

    def heartbeat(self, member_id: str = "", epoch: int = 0, *, client: str = "c", **fields: Any) -> int:
        """Send a heartbeat and return its waiter."""
        waiter = next(self.waiters)
        request = ConsumerGroupHeartbeatRequest(group="g", member_id=member_id, member_epoch=epoch, **fields)
        self.group.heartbeat(
            request,
            Client(client_id=client, host="/127.0.0.1", holder="127.0.0.1", new_id=f"id-{waiter}"),
            waiter,
            self.cluster,
            self.now,
        )
        self.settle()
        return waiter

    def join(self, member_id: str = "", **fields: Any) -> int:
        """Send the first heartbeat of a member."""
        given: dict[str, Any] = {"topics": ("orders",), "rebalance_timeout_ms": REBALANCE_MS, "owned": ()}
        if "regex" in fields:
            del given["topics"]
        return self.heartbeat(member_id, 0, **{**given, **fields})

    def joined(self, member_id: str = "", **fields: Any) -> ConsumerGroupHeartbeatResponse:
        """Join and return the response."""
        response: ConsumerGroupHeartbeatResponse = self.answers[self.join(member_id, **fields)]
        return response

    def beat(self, member_id: str, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        """Send a heartbeat and return the response."""
        response: ConsumerGroupHeartbeatResponse = self.answers[self.heartbeat(member_id, epoch, **fields)]
        return response

    def leave(self, member_id: str, epoch: int = -1, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        return self.beat(member_id, epoch, **fields)

    # -- requests of members of the classic protocol --

    def ask_to_join(self, request: JoinGroupRequest) -> int:
        """Send a JoinGroup and return its waiter."""
        waiter = next(self.waiters)
        client = Client(client_id="c", host="/127.0.0.1", holder="/127.0.0.1", new_id=f"id-{waiter}")
        self.group.join(request, client, waiter, self.cluster, self.now)
        self.settle()
        return waiter

    def sync(self, member_id: str, generation: int, **fields: Any) -> SyncGroupResponse:
        waiter = next(self.waiters)
        request = SyncGroupRequest(group="g", generation=generation, member_id=member_id, **fields)
        self.group.sync(request, waiter, self.cluster, self.now)
        self.settle()
        response: SyncGroupResponse = self.answers[waiter]
        return response

    def classic_beat(self, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        return self.group.heartbeat_as_classic(member_id, instance_id, generation, self.now)

    def leave_group(self, *members: LeavingMember) -> int:
        """Send a LeaveGroup and return its waiter."""
        waiter = next(self.waiters)
        self.group.leave(members, waiter, self.now)
        self.settle()
        return waiter

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
            elif isinstance(effect, Assign):
                self.assigns.append(effect)
            else:
                self.resolves.append(effect)

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
            self.downgrades += [store.successor] if store.successor is not None else []
        self.group.stored(store.ticket, error, self.now)
        self.take()

    def finish_assign(self, *, fails: bool = False) -> None:
        """Complete the assignment that is being computed."""
        effect = self.assigns.pop(0)
        assignments = None if fails else self.assign(effect.members, effect.topics)
        for _ in self.group.assigned(effect.epoch, assignments, self.now):
            self.settle()
        self.settle()

    def resolve(self, results: Mapping[str, Iterable[str]], version: int = 1) -> None:
        """Complete the oldest resolution of regular expressions."""
        self.resolves.pop(0)
        self.group.resolved({regex: tuple(names) for regex, names in results.items()}, version, self.now)
        self.settle()

    def pass_ms(self, delay_ms: float) -> None:
        """Let time pass, and expire what is due."""
        self.now = Instant(self.now.loop_s + delay_ms / 1000, self.now.wall_ms + int(delay_ms))
        while self.group.wake_at_s <= self.now.loop_s:
            self.group.expire(self.now)
            self.settle()

    def grow(self, name: str, count: int) -> None:
        """Change the number of a topic's partitions."""
        self.cluster.create(name, count)
        self.group.topics_changed([name])

    def restarted(self) -> ConsumerGroup:
        """Return a group that was loaded from the log."""
        return self.loaded_from(self.log)

    def loaded_from(self, log: Iterable[Row]) -> ConsumerGroup:
        """Return a group that was loaded from these records."""
        group = ConsumerGroup("g", self.limits, self.now)
        for key, value in log:
            group.apply(key, value)
        group.loaded(self.cluster, self.now)
        return group


def result_of(steps: Generator[None, None, Any]) -> Any:
    """Take all steps, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
