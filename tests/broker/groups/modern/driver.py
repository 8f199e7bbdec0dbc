"""What the drivers of groups with a target assignment have in common: a clock, topics, stores, assignments, answers."""

import itertools
from collections.abc import Generator, Iterable
from typing import Any

from warmlog.broker.groups.automaton import Answer, Instant
from warmlog.broker.groups.modern.assignment import TopicInfo
from warmlog.broker.groups.modern.effects import StoreRows
from warmlog.broker.groups.modern.topic_hash import topic_hash
from warmlog.protocol.errors import ErrorCode

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


class ModernDriver:
    """One group, whose effects are carried out at once, or collected where `auto` is false. Waiters are numbers.

    A subclass sets `kind`, the class of its group, and completes its assignments.
    """

    kind: Any

    def __init__(self, limits: Any, cluster: Cluster | None = None, *, auto: bool = True) -> None:
        self.limits = limits
        self.cluster = cluster if cluster is not None else Cluster(orders=4)
        self.now = START
        self.auto = auto
        self.answers: dict[int, Any] = {}
        self.stores: list[StoreRows[Any, Any]] = []
        self.assigns: list[Any] = []
        self.log: list[tuple[Any, Any]] = []  # what is stored
        self.waiters = itertools.count()
        self.group: Any = self.loaded_from([])

    def loaded_from(self, log: Iterable[tuple[Any, Any]]) -> Any:
        """Return a group that was loaded from these records."""
        group = self.kind("g", self.limits, self.now)
        for key, value in log:
            group.apply(key, value)
        group.loaded(self.cluster, self.now)
        return group

    def restarted(self) -> Any:
        """Return a group that was loaded from the log."""
        return self.loaded_from(self.log)

    # -- requests --

    def heartbeat(self, member_id: str, epoch: int, **fields: Any) -> int:
        """Send a heartbeat and return its waiter."""
        raise NotImplementedError

    def join(self, member_id: str, **fields: Any) -> int:
        """Send the first heartbeat of a member, and return its waiter."""
        raise NotImplementedError

    def joined(self, *member_and_topics: str, **fields: Any) -> Any:
        """Join and return the response."""
        return self.answers[self.join(*member_and_topics, **fields)]

    def beat(self, member_id: str, epoch: int, **fields: Any) -> Any:
        """Send a heartbeat and return the response."""
        return self.answers[self.heartbeat(member_id, epoch, **fields)]

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
            else:
                self.keep(effect)

    def keep(self, effect: Any) -> None:
        """Collect an effect that is not an answer or a store."""
        self.assigns.append(effect)

    def settle(self) -> None:
        """Take the effects, and carry them out if `auto` says so."""
        self.take()
        while self.auto and self.carry_out():
            pass

    def carry_out(self) -> bool:
        """Complete the oldest store, or else the oldest assignment; return False if there is none."""
        if self.stores:
            self.store()
        elif self.assigns:
            self.finish_assign()
        else:
            return False
        return True

    def store(self, error: ErrorCode = ErrorCode.NONE, *, written: bool = False) -> None:
        """Write the oldest records that wait for it, or fail; they may be `written` nevertheless."""
        store = self.stores.pop(0)
        if error is ErrorCode.NONE or written:
            self.write(store)
        self.group.stored(store.ticket, error, self.now)
        self.take()

    def write(self, store: StoreRows[Any, Any]) -> None:
        self.log += store.rows

    def finish_assign(self, *, fails: bool = False) -> None:
        """Complete the assignment that is being computed."""
        effect = self.assigns.pop(0)
        assignments = None if fails else self.computed(effect)
        for _ in self.group.assigned(effect.epoch, assignments, self.now):
            self.settle()
        self.settle()

    def computed(self, effect: Any) -> Any:
        """Return the result of an assignment."""
        raise NotImplementedError

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


def result_of(steps: Generator[None, None, Any]) -> Any:
    """Take all steps, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
