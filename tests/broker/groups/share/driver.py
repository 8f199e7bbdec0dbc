"""A share group with its clock, topics, stores, initializations and answers. Waiters are numbers."""

from collections.abc import Iterable
from typing import Any

from tests.broker.groups.modern.driver import INTERVAL_MS, SESSION_MS, Cluster, ModernDriver, result_of
from warmlog.broker.groups.automaton import Client
from warmlog.broker.groups.share.assignor import assign_shared
from warmlog.broker.groups.share.effects import AssignShared, Initialize, Row
from warmlog.broker.groups.share.limits import ShareLimits
from warmlog.broker.groups.share.partition_states import Numbers
from warmlog.broker.groups.share.state import ShareGroup
from warmlog.broker.share.persister import InitialState
from warmlog.protocol.kafka.messages.share.groups import ShareGroupHeartbeatRequest

RETRY_MS = 30_000


class Driver(ModernDriver):
    """A share group."""

    kind = ShareGroup

    def __init__(self, cluster: Cluster | None = None, *, auto: bool = True, **limits: int) -> None:
        given = {
            "session_timeout_ms": SESSION_MS,
            "heartbeat_interval_ms": INTERVAL_MS,
            "assignment_interval_ms": 0,
            "initialize_retry_interval_ms": RETRY_MS,
            "max_size": 100,
        }
        super().__init__(ShareLimits(**{**given, **limits}), cluster, auto=auto)
        self.initializes: list[Initialize] = []
        self.begun: list[tuple[InitialState, ...]] = []  # all initializations

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

    # -- effects --

    def keep(self, effect: AssignShared | Initialize) -> None:
        if isinstance(effect, AssignShared):
            self.assigns.append(effect)
        else:
            self.initializes.append(effect)
            self.begun.append(tuple(effect.states()))

    def carry_out(self) -> bool:
        if super().carry_out():
            return True
        if self.initializes:
            self.finish_initialize()
            return True
        return False

    def computed(self, effect: AssignShared) -> Any:
        return result_of(assign_shared(effect.members, effect.partitions))

    def finish_initialize(self, *, fails: bool = False) -> None:
        """Complete the oldest initialization."""
        states = numbers(tuple(self.initializes.pop(0).states()))
        self.group.initialized({} if fails else states, states if fails else {}, self.now)
        self.settle()

    def change(self, name: str, count: int) -> None:
        """Create a topic, change the number of its partitions, or delete it (0)."""
        if count:
            self.cluster.create(name, count)
        else:
            self.cluster.delete(name)
        self.group.topics_changed([name], self.cluster)
        self.settle()

    def loaded_from(self, log: Iterable[Row]) -> ShareGroup:
        latest = dict(log)  # as the coordinators' runtime loads them
        group: ShareGroup = super().loaded_from(latest.items())
        return group


def numbers(states: tuple[InitialState, ...]) -> Numbers:
    """Return the partitions of states by topic id."""
    by_topic: dict[bytes, set[int]] = {}
    for state in states:
        by_topic.setdefault(state.topic_id, set()).add(state.partition)
    return {topic_id: frozenset(partitions) for topic_id, partitions in by_topic.items()}
