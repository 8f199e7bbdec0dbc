"""The streams group's state machine against its invariants, with random requests in random order.

A model of the clients owns what they were given, gives up what they no longer have, and drops everything when they are
fenced. Requests are repeated, answers are lost, writes fail, clients restart, the group is loaded from the log. Checked
after every step: no active task has two owners, no process has a task twice as active, standby or warm-up task, indexes
agree with the records, no deadline is before `wake_at_s`. After each failed write and each restart the state is that of
the log. At the end all clients send heartbeats until nothing changes: then they have all tasks.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

import pytest

from tests.broker.groups.modern.driver import REBALANCE_MS, SESSION_MS, Cluster
from tests.broker.groups.streams.driver import Driver, TaskPairs, owning, pairs, topology
from warmlog.broker.groups.streams.stored import StoredStreamsGroup
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import StreamsGroupState
from warmlog.protocol.kafka.messages.groups.streams import Endpoint, StreamsGroupHeartbeatResponse

TOPOLOGY = topology("logs", "orders", stateful=True)
TOPICS = ("logs", "orders")
INSTANCES = (None, None, None, "one", "two")
PROCESSES = ("p", "q", "r")
OF_INSTANCES = {"one": "p", "two": "q"}
MAX_MEMBERS = 5
GONE = {ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.GROUP_MAX_SIZE_REACHED}


@dataclass(eq=False)
class Client:
    """A thread of an application, as its library has it. It may own tasks only while it is a member."""

    member_id: str
    instance: str | None
    process: str
    epoch: int = 0
    active: TaskPairs = field(default_factory=set)
    standby: TaskPairs = field(default_factory=set)
    given: tuple[TaskPairs, TaskPairs] | None = None  # the latest assignment, if it is not taken over yet
    waiter: int | None = None
    has_left: bool = False
    must_tell: bool = True  # which tasks it owns: a request failed, or has just joined

    def drop(self) -> None:
        """Abandon all tasks, to join again."""
        self.epoch, self.active, self.standby, self.given = 0, set(), set(), None

    def take_over(self) -> None:
        """Give up what was taken away and begin with what was given."""
        if self.given is not None:
            (self.active, self.standby), self.given = self.given, None


class Machine:
    """A group, its clients and the steps that they take."""

    def __init__(self, random: Random, replicas: int) -> None:
        topics = {"logs": 1, "orders": 3, "logs-changelog": 1, "orders-changelog": 3}
        self.driver = Driver(
            Cluster(**topics),
            auto=False,
            max_size=MAX_MEMBERS,
            assignment_interval_ms=1000,
            initial_rebalance_delay_ms=random.choice([0, 500]),
            standby_replicas=replicas,
        )
        self.clients: list[Client] = []
        self.names = iter(range(10_000))
        self.random = random

    # -- clients --

    def active(self) -> list[Client]:
        return [client for client in self.clients if not client.has_left]

    def pick(self) -> Client:
        return self.random.choice(self.active())

    def join(self) -> None:
        instance, process = self.random.choice(INSTANCES), self.random.choice(PROCESSES)
        if instance is not None:
            process = OF_INSTANCES[instance]  # a static member that moves to another process takes its tasks along
        client = Client(f"m{next(self.names)}", instance, process)
        self.clients.append(client)
        self.send(client)

    def heartbeat(self) -> None:
        """Send a heartbeat; while another waits, it is given up."""
        self.send(self.pick(), tells=self.random.random() < 0.7)

    def take_over(self) -> None:
        self.pick().take_over()

    def lose_answer(self) -> None:
        """Disconnect a client; the broker may not notice."""
        client = self.pick()
        if client.waiter is not None and self.random.random() < 0.5:
            self.driver.group.forget_waiter(client.waiter, self.driver.now)
        client.waiter, client.must_tell = None, True

    def rejoin(self) -> None:
        """Abandon all tasks and join again with the same member id."""
        client = self.pick()
        client.drop()
        self.send(client)

    def send_wrong_epoch(self) -> None:
        client, stored = self.pick(), self.driver.group.rows()
        wrong = self.driver.group.epoch + self.random.randint(1, 5)
        waiter = self.driver.heartbeat(client.member_id, wrong, instance_id=client.instance)
        assert self.driver.answers[waiter].error is not ErrorCode.NONE
        assert self.driver.group.rows() == stored

    def leave(self) -> None:
        client = self.pick()
        client.drop()
        client.has_left = True
        epoch = -2 if client.instance is not None and self.random.random() < 0.5 else -1
        client.waiter = self.driver.heartbeat(client.member_id, epoch, instance_id=client.instance)
        self.settle()

    def send(self, client: Client, *, tells: bool = True) -> None:
        fields = {"instance_id": client.instance}
        if client.epoch == 0:
            client.drop()
            fields |= {"process_id": client.process, "topology": TOPOLOGY, "rebalance_timeout_ms": REBALANCE_MS}
            fields |= {"user_endpoint": Endpoint(host=client.process, port=1), **owning()}
        elif tells or client.must_tell:
            fields |= owning(client.active, client.standby)
            client.given = None  # it has reported that it does not own that, and gets it again
        if client.waiter is not None:
            client.must_tell = True  # that request has failed
        client.waiter = self.driver.heartbeat(client.member_id, client.epoch, **fields)
        self.settle()

    def settle(self) -> None:
        """Deliver answers."""
        self.driver.take()
        for client in self.clients:
            answer = self.driver.answers.get(-1 if client.waiter is None else client.waiter)
            if answer is not None:
                client.waiter = None
                if not client.has_left:
                    self.deliver(client, answer)

    def deliver(self, client: Client, answer: StreamsGroupHeartbeatResponse) -> None:
        if answer.error in {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}:
            client.drop()
        elif answer.error in GONE:
            client.drop()
            client.has_left = True
        elif answer.error is not ErrorCode.NONE:
            client.must_tell = True
        else:
            client.must_tell, client.epoch = False, answer.member_epoch
            active, standby = pairs(answer.active), pairs(answer.standby)
            if active is not None and standby is not None:
                client.given = active, standby

    def make_progress(self) -> None:
        """Let some clients in turn take over what they were given, and send heartbeats that are answered."""
        if self.random.random() < 0.5:
            self.pass_time(1000)
        active = self.active()
        for client in self.random.sample(active, self.random.randint(0, len(active))):
            client.take_over()
            self.send(client)
            self.carry_out()

    # -- the broker --

    def carry_out(self) -> None:
        """Carry out all effects."""
        while self.driver.stores or self.driver.assigns:
            if self.driver.stores:
                self.driver.store()
            else:
                self.driver.finish_assign()
            self.settle()

    def store(self) -> None:
        self.driver.store()
        self.settle()

    def fail_store(self) -> None:
        """Fail a write that may be in the log nevertheless; those that were begun after it succeed or fail, too.

        Then what has to be corrected is.
        """
        written = self.random.random() < 0.5
        later = self.random.choice([ErrorCode.NONE, ErrorCode.NOT_COORDINATOR])
        started = len(self.driver.stores)
        self.driver.store(ErrorCode.COORDINATOR_NOT_AVAILABLE, written=written)
        self.settle()
        if not written:
            assert dict(self.driver.group.rows()) == dict(self.driver.restarted().rows())
        for _ in range(started - 1):
            self.driver.store(later)
            self.settle()
        if not written and later is not ErrorCode.NONE:
            self.driver.store(later)  # the correction; the next change has it
            self.settle()
        while self.driver.stores:
            self.driver.store()
            self.settle()
        assert dict(self.driver.group.rows()) == dict(self.driver.restarted().rows())

    def finish_assign(self) -> None:
        self.driver.finish_assign(fails=self.random.random() < 0.1)
        self.settle()

    def pass_time(self, delay_ms: int | None = None) -> None:
        given = self.random.choice([10, 1000, 1000, 1000, 5000, 5000, SESSION_MS])
        self.driver.pass_ms(given if delay_ms is None else delay_ms)
        for client in self.clients:
            if client.member_id not in self.driver.group.members:
                client.active, client.standby, client.given = set(), set(), None
                client.waiter, client.must_tell = None, True  # an answer that comes after its session does not count
        self.settle()

    def grow(self) -> None:
        topic = self.random.choice(TOPICS)
        info = self.driver.cluster.named(topic)
        assert info is not None
        if info.partitions < 6:
            self.driver.grow(f"{topic}-changelog", info.partitions + 1)
            self.driver.grow(topic, info.partitions + 1)

    def restart(self) -> None:
        """Load the group from the log; what was being written is lost."""
        self.driver.stores.clear()
        self.driver.assigns.clear()
        self.driver.group = self.driver.restarted()
        for client in self.clients:
            client.waiter, client.must_tell = None, True

    # -- invariants --

    def check(self) -> None:
        owners = Counter(task for client in self.clients for task in client.active)
        assert max(owners.values(), default=0) <= 1, [(each.member_id, each.active) for each in self.clients]
        for process in PROCESSES:
            threads = [client for client in self.active() if client.process == process]
            held = Counter(task for client in threads for task in client.active | client.standby)
            assert max(held.values(), default=0) <= 1, [(each.member_id, each.active, each.standby) for each in threads]
        self.check_indexes()
        self.check_deadlines()
        assert len(self.driver.group.members) <= MAX_MEMBERS

    def check_indexes(self) -> None:
        group = self.driver.group._group
        rebuilt = StoredStreamsGroup("g")
        for key, value in group.rows():
            rebuilt.apply(key, value)
        assert vars(rebuilt).keys() == vars(group).keys()
        for name, value in vars(rebuilt).items():
            if name == "memory":
                assert value.held == group.memory.held
            else:
                assert value == vars(group)[name], name

    def check_deadlines(self) -> None:
        sessions = self.driver.group._progress.sessions
        ends = [*sessions._ends.values(), *sessions._revocations.values()]
        assert self.driver.group.wake_at_s <= min(ends, default=float("inf"))
        assert sessions._ends.keys() == self.driver.group.members.keys()

    def converge(self) -> None:
        """Let all members converge to the target."""
        self.carry_out()
        self.driver.pass_ms(SESSION_MS // 2)
        for _ in range(60):
            self.driver.pass_ms(1000)
            for client in self.active():
                client.waiter = None
                self.send(client)
                self.carry_out()
                client.take_over()
            self.carry_out()
        group = self.driver.group
        assert group.state in {StreamsGroupState.STABLE, StreamsGroupState.EMPTY}, str(group.rows())
        if self.active():
            counts = {topic: info.partitions for topic in TOPICS if (info := self.driver.cluster.named(topic))}
            wanted = {(topic, number) for topic, count in counts.items() for number in range(count)}
            assert {task for client in self.active() for task in client.active} == wanted
        self.check()
        assert dict(group.rows()) == dict(self.driver.restarted().rows())


WEIGHTS = {
    "make_progress": 12, "heartbeat": 8, "take_over": 8, "store": 8, "finish_assign": 6, "carry_out": 4, "join": 4,
    "rejoin": 2, "lose_answer": 3, "leave": 2, "fail_store": 2, "pass_time": 4, "grow": 1, "restart": 1,
    "send_wrong_epoch": 1,
}  # fmt: skip
WITHOUT_CLIENTS = {"join", "pass_time"}


def simulate(seed: int, steps: int) -> None:
    """Take random steps, of which those are frequent that move tasks."""
    random = Random(seed)
    machine = Machine(random, replicas=seed % 3)
    for _ in range(steps):
        names = set(WEIGHTS) if machine.active() else set(WITHOUT_CLIENTS)
        if len(machine.active()) > MAX_MEMBERS:
            names.discard("join")
        if not machine.driver.stores:
            names -= {"store", "fail_store"}
        if not machine.driver.assigns:
            names.discard("finish_assign")
        ordered = sorted(names)
        step: Callable[[], None] = partial(getattr(machine, random.choices(ordered, [WEIGHTS[n] for n in ordered])[0]))
        step()
        machine.check()
    machine.converge()


@pytest.mark.parametrize("seed", range(60))
def test_invariants_hold_while_tasks_move(seed: int) -> None:
    simulate(seed, 150)
