"""The share group's state machine against its invariants, with random requests in random order.

Answers are lost, writes fail (and may be in the log nevertheless), initializations fail or get lost, topics come, grow
and go, and the group is loaded from the log. Checked after every step: only what is initialized is assigned, and
indexes agree with the records. After each failed write that was corrected, and each restart, the state is that of the
log. At the end all members send heartbeats until nothing changes: then together they have all partitions of what they
subscribe to.
"""

from random import Random

import pytest

from tests.broker.groups.consumer.driver import flat
from tests.broker.groups.modern.driver import SESSION_MS, Cluster
from tests.broker.groups.share.driver import RETRY_MS, Driver
from warmlog.broker.groups.share.stored import StoredShareGroup
from warmlog.protocol.errors import ErrorCode

TOPICS = ("logs", "orders", "others")
STEPS = 150


class Run:
    """One group, its clients by member id with their epochs, and what was ever initialized."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.driver = Driver(
            Cluster(orders=2, logs=1), auto=False, assignment_interval_ms=self.random.choice((0, 1000))
        )
        self.epochs: dict[str, int] = {}
        self.topics: dict[str, tuple[str, ...]] = {}
        self.waiting: dict[str, int] = {}
        self.deleted: set[str] = set()
        self.initialized: set[tuple[bytes, int]] = set()

    def step(self) -> None:
        verbs = (self.join, self.beat, self.subscribe, self.leave, self.store, self.assign, self.initialize, self.grow)
        weights = (3, 8, 2, 1, 12, 6, 5, 1)
        others = (self.delete, self.wait, self.restart)
        self.random.choices((*verbs, *others), (*weights, 0.3, 1, 0.5))[0]()
        self.answered()

    def join(self) -> None:
        self.ask(f"m{self.random.randrange(6)}", 0)

    def beat(self, *, full: bool = False) -> None:
        if self.epochs:
            member = self.random.choice(sorted(self.epochs))
            self.ask(member, self.epochs[member], full=full)

    def subscribe(self) -> None:
        self.beat(full=True)

    def leave(self) -> None:
        if self.epochs:
            member = self.random.choice(sorted(self.epochs))
            del self.epochs[member]
            self.driver.heartbeat(member, -1)

    def store(self) -> None:
        if self.driver.stores:
            error = ErrorCode.NOT_ENOUGH_REPLICAS if self.random.random() < 0.15 else ErrorCode.NONE
            self.driver.store(error, written=self.random.random() < 0.5)

    def assign(self) -> None:
        if self.driver.assigns:
            self.driver.finish_assign(fails=self.random.random() < 0.1)

    def initialize(self) -> None:
        if self.driver.initializes and self.random.random() < 0.2:
            self.driver.initializes.pop(0)  # lost
        elif self.driver.initializes:
            self.driver.finish_initialize(fails=self.random.random() < 0.2)

    def grow(self) -> None:
        name = self.random.choice(TOPICS)
        known = self.driver.cluster.named(name)
        if name not in self.deleted:  # a topic of the same name would have another id, which tests do not give it
            self.driver.change(name, 1 + (0 if known is None else min(known.partitions, 5)))

    def delete(self) -> None:
        if self.driver.cluster.names:
            name = self.random.choice(self.driver.cluster.names)
            self.deleted.add(name)
            self.driver.change(name, 0)

    def wait(self) -> None:
        self.driver.pass_ms(self.random.choice((500, 5000, RETRY_MS, SESSION_MS)))

    def ask(self, member: str, epoch: int, *, full: bool = False) -> None:
        if epoch == 0 or full or member not in self.topics:
            self.topics[member] = tuple(self.random.sample(TOPICS, self.random.randint(1, 2)))
            full = True
        self.epochs.setdefault(member, 0)
        topics = self.topics[member] if full else None
        self.waiting[member] = self.driver.heartbeat(member, epoch, topics=topics)

    def restart(self) -> None:
        """Load the group from the log, when nothing is being written."""
        if self.driver.stores:
            return
        self.driver.assigns.clear()
        self.driver.initializes.clear()
        before = rows_of(self.driver.group)
        self.driver.group = self.driver.restarted()
        assert rows_of(self.driver.group) == before
        self.waiting.clear()

    def answered(self) -> None:
        for member, waiter in list(self.waiting.items()):
            answer = self.driver.answers.get(waiter)
            if answer is None:
                continue
            del self.waiting[member]
            if member not in self.epochs:
                continue
            if answer.error in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH}:
                self.epochs[member] = 0
            elif answer.error is ErrorCode.NONE and self.random.random() < 0.9:  # or the answer is lost
                self.epochs[member] = answer.member_epoch

    def check(self) -> None:
        group = self.driver.group._group
        rebuilt = StoredShareGroup("g")
        for key, value in group.rows():
            rebuilt.apply(key, value)
        for name, value in vars(rebuilt).items():
            if name == "memory":
                assert value.held == group.memory.held
            elif name != "version":
                assert value == vars(group)[name], name
        for topic_id, known in group.states.initialized.items():
            self.initialized |= {(topic_id, partition) for partition in known.partitions}
        for current in group.currents.values():
            for topic_id, partitions in current.assigned.items():
                assert {(topic_id, partition) for partition in partitions} <= self.initialized
        assert group.target_epoch.epoch <= group.epoch.epoch
        assert group.targets.keys() | group.currents.keys() <= group.metadata.keys()

    def finish(self) -> None:
        """Let everything succeed, until nothing changes; then compare what members have with what there is."""
        driver = self.driver
        driver.auto = True
        driver.settle()
        driver.pass_ms(RETRY_MS)
        for _ in range(6):
            driver.pass_ms(1000)
            for member in sorted(driver.group.members):
                answer = driver.beat(member, 0, topics=self.topics[member])
                assert answer.error is ErrorCode.NONE
        have: dict[str, set[tuple[str, int]]] = {
            member: flat(driver.beat(member, 0, topics=self.topics[member]).assignment) or set()
            for member in driver.group.members
        }
        wanted = {name for member in have for name in self.topics[member]}
        expected = {
            (name, partition)
            for name in wanted
            if (topic := driver.cluster.named(name)) is not None
            for partition in range(topic.partitions)
        }
        assert set().union(*have.values()) == expected
        assert rows_of(driver.restarted()) == rows_of(driver.group)


def rows_of(group: object) -> list[str]:
    return sorted(map(repr, group.rows()))  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(100))
def test_invariants_hold_whatever_happens(seed: int) -> None:
    run = Run(seed)
    for _ in range(STEPS):
        run.step()
        run.check()
    run.finish()
    run.check()
