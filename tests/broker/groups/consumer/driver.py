"""A consumer group with its clock, topics, stores and answers. Waiters are numbers."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests.broker.groups.modern.driver import INTERVAL_MS, REBALANCE_MS, SESSION_MS, Cluster, ModernDriver, topic_id
from warmlog.broker.groups.automaton import Client
from warmlog.broker.groups.consumer.effects import Assign, Downgrade, Resolve, Store
from warmlog.broker.groups.consumer.limits import ConsumerLimits
from warmlog.broker.groups.consumer.state import ConsumerGroup
from warmlog.broker.groups.modern.assignment import Assignment, Subscriber, TopicInfo
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import JoinGroupRequest, LeavingMember, SyncGroupRequest, SyncGroupResponse
from warmlog.protocol.kafka.messages.groups.consumer import (
    AssignedPartitions,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)


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


class Driver(ModernDriver):
    """A consumer group."""

    kind = ConsumerGroup

    def __init__(self, cluster: Cluster | None = None, *, auto: bool = True, **limits: Any) -> None:
        given = {
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": INTERVAL_MS,
            "max_size": 100,
            "assignors": ("uniform", "range"),
            "regex_refresh_interval_ms": 600_000,
            "assignment_interval_ms": 0,
        }
        super().__init__(ConsumerLimits(**{**given, **limits}), cluster, auto=auto)
        self.assign: Callable[[Mapping[str, Subscriber], Mapping[bytes, TopicInfo]], dict[str, Assignment]] = deal
        self.downgrades: list[Downgrade] = []  # what is stored
        self.resolves: list[Resolve] = []

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

    def keep(self, effect: Assign | Resolve) -> None:
        (self.assigns if isinstance(effect, Assign) else self.resolves).append(effect)

    def write(self, store: Store) -> None:
        super().write(store)
        self.downgrades += [store.successor] if store.successor is not None else []

    def computed(self, effect: Assign) -> dict[str, Assignment]:
        return self.assign(effect.members, effect.topics)

    def resolve(self, results: Mapping[str, Iterable[str]], version: int = 1) -> None:
        """Complete the oldest resolution of regular expressions."""
        self.resolves.pop(0)
        self.group.resolved({regex: tuple(names) for regex, names in results.items()}, version, self.now)
        self.settle()
