"""The consumer group's state machine against its invariants, with random requests in random order.

A model of the clients owns what they were given, gives up what they no longer have, and drops everything when they are
fenced. Requests are repeated, answers are lost, writes fail, clients restart, the group is loaded from the log. Checked
after every step: no partition has two owners, indexes agree with the records, no deadline is before `wake_at_s`. After
each failed write and each restart the state is that of the log. At the end all clients send heartbeats until nothing
changes: then each has its part of the target, and together they have all partitions of what they subscribe to.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.broker.groups.consumer.driver import Driver, flat, partitions
from tests.broker.groups.modern.driver import REBALANCE_MS, SESSION_MS, Cluster
from warmlog.broker.groups.consumer.stored.group import StoredGroup
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import ConsumerGroupState
from warmlog.protocol.kafka.messages.groups.consumer import ConsumerGroupHeartbeatResponse, TopicPartitions

TOPICS = ("logs", "orders")
EXPRESSION = "~"  # before a regular expression
SUBSCRIPTIONS = (("orders",), ("logs",), ("logs", "orders"), ("missing", "orders"), ("~o.*",), ("~.*s",))
INSTANCES = (None, None, None, "one", "two")
MAX_MEMBERS = 5
picks = st.integers(0, 1000)


@dataclass(eq=False)
class Client:
    """A client as its library has it. It may own partitions only while it is a member."""

    member_id: str
    instance: str | None
    topics: tuple[str, ...]
    epoch: int = 0
    owned: set[tuple[str, int]] = field(default_factory=set)
    given: set[tuple[str, int]] | None = None  # the latest assignment, if it is not taken over yet
    waiter: int | None = None
    has_left: bool = False
    must_resend: bool = True  # everything: a request failed, or has just joined

    def drop(self) -> None:
        """Abandon all partitions, to join again."""
        self.epoch, self.owned, self.given, self.must_resend = 0, set(), None, True

    def take_over(self) -> None:
        """Give up what was taken away and begin with what was given."""
        if self.given is not None:
            self.owned, self.given = self.given, None

    def reported(self) -> tuple[TopicPartitions, ...]:
        return partitions(
            **{
                topic: sorted(number for name, number in self.owned if name == topic)
                for topic in sorted({name for name, _ in self.owned})
            }
        )


def subscription(topics: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a request that subscribe to topics, or to an expression."""
    if topics[0].startswith(EXPRESSION):
        return {"topics": (), "regex": topics[0].removeprefix(EXPRESSION)}
    return {"topics": topics, "regex": ""}


class ConsumerGroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(Cluster(logs=1, orders=3), auto=False, max_size=MAX_MEMBERS, assignment_interval_ms=1000)
        self.clients: list[Client] = []
        self.names = iter(range(10_000))
        self.highest = 0

    # -- clients --

    @precondition(lambda self: len(self._active()) < MAX_MEMBERS + 1)
    @rule(instance=st.sampled_from(INSTANCES), topics=st.sampled_from(SUBSCRIPTIONS))
    def join(self, instance: str | None, topics: tuple[str, ...]) -> None:
        client = Client(f"m{next(self.names)}", instance, topics)
        self.clients.append(client)
        self._send(client)

    @precondition(lambda self: self._active())
    @rule(pick=picks, full=st.booleans(), tells=st.booleans())
    def heartbeat(self, pick: int, full: bool, tells: bool) -> None:
        """Send a heartbeat; while another waits, it is given up."""
        self._send(self._pick(pick), full=full, tells=tells)

    @precondition(lambda self: self._active())
    @rule(pick=picks)
    def take_over(self, pick: int) -> None:
        self._pick(pick).take_over()

    @precondition(lambda self: self._active())
    @rule(pick=picks, topics=st.sampled_from(SUBSCRIPTIONS))
    def subscribe(self, pick: int, topics: tuple[str, ...]) -> None:
        client = self._pick(pick)
        client.topics = topics
        self._send(client, full=True)

    @precondition(lambda self: self._active())
    @rule(pick=picks, forgets=st.booleans())
    def lose_answer(self, pick: int, forgets: bool) -> None:
        """Disconnect a client; the broker may not notice."""
        client = self._pick(pick)
        if client.waiter is not None and forgets:
            self.driver.group.forget_waiter(client.waiter, self.driver.now)
        client.waiter, client.must_resend = None, True

    @precondition(lambda self: self._active())
    @rule(pick=picks)
    def rejoin(self, pick: int) -> None:
        """Abandon all partitions and join again with the same member id."""
        client = self._pick(pick)
        client.drop()
        self._send(client)

    @precondition(lambda self: self._active())
    @rule(pick=picks, wrong=st.integers(1, 30))
    def send_wrong_epoch(self, pick: int, wrong: int) -> None:
        client = self._pick(pick)
        stored = self.driver.group.rows()
        if wrong > self.driver.group.epoch:
            waiter = self.driver.heartbeat(client.member_id, wrong, instance_id=client.instance)
            assert self.driver.answers[waiter].error is not ErrorCode.NONE
            assert self.driver.group.rows() == stored

    @precondition(lambda self: self._active())
    @rule(pick=picks, restarts=st.booleans())
    def leave(self, pick: int, restarts: bool) -> None:
        client = self._pick(pick)
        client.drop()
        client.has_left = True
        epoch = -2 if restarts and client.instance is not None else -1
        client.waiter = self.driver.heartbeat(client.member_id, epoch, instance_id=client.instance)
        self._settle()

    def _active(self) -> list[Client]:
        return [client for client in self.clients if not client.has_left]

    def _pick(self, pick: int) -> Client:
        active = self._active()
        return active[pick % len(active)]

    def _send(self, client: Client, *, full: bool = False, tells: bool = True) -> None:
        fields = {}
        if client.epoch == 0 or full or client.must_resend or (tells and client.given is not None):
            fields = {**subscription(client.topics), "rebalance_timeout_ms": REBALANCE_MS, "owned": client.reported()}
            client.given = None  # it has reported that it does not own that, and gets it again
        elif tells:
            fields = {"owned": client.reported()}
        client.waiter = self.driver.heartbeat(client.member_id, client.epoch, instance_id=client.instance, **fields)
        self._settle()

    def _settle(self) -> None:
        """Deliver answers."""
        self.driver.take()
        for client in self.clients:
            answer = self.driver.answers.get(-1 if client.waiter is None else client.waiter)
            if answer is not None:
                client.waiter = None
                if not client.has_left:
                    self._deliver(client, answer)

    def _deliver(self, client: Client, answer: ConsumerGroupHeartbeatResponse) -> None:
        if answer.error in {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}:
            client.drop()
        elif answer.error in {
            ErrorCode.UNRELEASED_INSTANCE_ID,
            ErrorCode.FENCED_INSTANCE_ID,
            ErrorCode.GROUP_MAX_SIZE_REACHED,
        }:
            client.drop()
            client.has_left = True
        elif answer.error is not ErrorCode.NONE:
            client.must_resend = True
        else:
            client.must_resend = False
            client.epoch = answer.member_epoch
            given = flat(answer.assignment)
            if given is not None:
                client.given = given

    @rule(first=picks, count=st.integers(1, MAX_MEMBERS), delays=st.booleans())
    def make_progress(self, first: int, count: int, delays: bool) -> None:
        """Let some clients in turn take over what they were given, and send heartbeats that are answered."""
        if delays:
            self.pass_time(1000)
        active = self._active()
        for client in [*active, *active][first % (len(active) or 1) :][: min(count, len(active))]:
            client.take_over()
            self._send(client)
            self._carry_out()

    # -- the broker --

    @rule()
    def carry_out(self) -> None:
        """Carry out all effects."""
        self._carry_out()

    @precondition(lambda self: self.driver.stores)
    @rule()
    def store(self) -> None:
        self.driver.store()
        self._settle()

    @precondition(lambda self: self.driver.stores)
    @rule(later=st.sampled_from([ErrorCode.NONE, ErrorCode.NOT_COORDINATOR]), written=st.booleans())
    def fail_store(self, later: ErrorCode, written: bool) -> None:
        """Fail a write that may be in the log nevertheless; those that were begun after it succeed or fail, too.

        Then what has to be corrected is.
        """
        started = len(self.driver.stores)
        self.driver.store(ErrorCode.COORDINATOR_NOT_AVAILABLE, written=written)
        self._settle()
        if not written:
            assert dict(self.driver.group.rows()) == dict(self.driver.restarted().rows())
        for _ in range(started - 1):
            self.driver.store(later)
            self._settle()
        if not written and later is not ErrorCode.NONE:
            self.driver.store(later)  # the correction; the next change has it
            self._settle()
        while self.driver.stores:
            self.driver.store()
            self._settle()
        assert dict(self.driver.group.rows()) == dict(self.driver.restarted().rows())

    @precondition(lambda self: self.driver.assigns)
    @rule(fails=st.sampled_from([False, False, False, True]))
    def finish_assign(self, fails: bool) -> None:
        self.driver.finish_assign(fails=fails)
        self._settle()

    @rule(delay_ms=st.sampled_from([10, 1000, 1000, 1000, 5000, SESSION_MS - 1, SESSION_MS]))
    def pass_time(self, delay_ms: int) -> None:
        self.driver.pass_ms(delay_ms)
        for client in self.clients:
            if client.member_id not in self.driver.group.members:
                client.owned, client.given = set(), None
                client.waiter, client.must_resend = None, True  # an answer that comes after its session does not count
        self._settle()

    @rule(topic=st.sampled_from((*TOPICS, "others")))
    def grow(self, topic: str) -> None:
        info = self.driver.cluster.named(topic)
        count = 0 if info is None else info.partitions
        if count < 6:
            self.driver.grow(topic, count + 1)

    @precondition(lambda self: self.driver.resolves)
    @rule()
    def resolve(self) -> None:
        """Complete a resolution of regular expressions."""
        regexes = self.driver.resolves[0].regexes
        self.driver.resolve({regex: self._matching(EXPRESSION + regex) for regex in regexes})
        self._settle()

    def _matching(self, topic: str) -> list[str]:
        """Return the existing topics that a subscription is for."""
        names = self.driver.cluster.names
        if topic.startswith(EXPRESSION):
            return [name for name in names if re.fullmatch(topic.removeprefix(EXPRESSION), name)]
        return [name for name in names if name == topic]

    @rule(really=st.sampled_from([False, False, True]))
    def restart(self, really: bool) -> None:
        """Load the group from the log; what was being written is lost."""
        if not really:  # rarely
            return
        self.driver.stores.clear()
        self.driver.assigns.clear()
        self.driver.resolves.clear()
        self.driver.group = self.driver.restarted()
        for client in self.clients:
            client.waiter, client.must_resend = None, True

    # -- invariants --

    @invariant()
    def a_partition_has_one_owner(self) -> None:
        owned = [each for client in self.clients for each in client.owned]
        assert len(set(owned)) == len(owned), [(client.member_id, client.owned) for client in self.clients]

    @invariant()
    def indexes_agree_with_the_records(self) -> None:
        group = self.driver.group._group
        rebuilt = StoredGroup("g")
        for key, value in group.rows():
            rebuilt.apply(key, value)
        assert vars(rebuilt).keys() == vars(group).keys()
        for name, value in vars(rebuilt).items():
            if name == "memory":
                assert value.held == group.memory.held
            else:
                assert value == vars(group)[name], name

    @invariant()
    def no_deadline_is_missed(self) -> None:
        sessions = self.driver.group._sessions
        ends = [*sessions._ends.values(), *[end_s for end_s, _ in sessions._revocations.values()]]
        assert self.driver.group.wake_at_s <= min(ends, default=float("inf"))
        assert sessions._ends.keys() == self.driver.group.members.keys()

    @invariant()
    def members_are_no_more_than_allowed(self) -> None:
        assert len(self.driver.group.members) <= MAX_MEMBERS

    def check(self) -> None:
        self.a_partition_has_one_owner()
        self.indexes_agree_with_the_records()
        self.no_deadline_is_missed()
        self.members_are_no_more_than_allowed()

    def teardown(self) -> None:
        """Let all members converge to the target."""
        self._carry_out()
        for client in self.clients:
            if client.has_left:
                continue
            client.waiter, client.must_resend = None, True
        self.driver.pass_ms(SESSION_MS // 2)
        for _ in range(60):
            self.driver.pass_ms(1000)
            for client in self._active():
                self._send(client)
                self._carry_out()
                client.take_over()
            self._carry_out()
        for client in self._active():
            self._send(client)
            self._carry_out()
        group = self.driver.group
        assert group.state in {ConsumerGroupState.STABLE, ConsumerGroupState.EMPTY}, str(group.rows())
        wanted = {
            (topic, number)
            for topic in {each for client in self._active() for name in client.topics for each in self._matching(name)}
            if (info := self.driver.cluster.named(topic)) is not None
            for number in range(info.partitions)
        }
        assert {each for client in self._active() for each in client.owned} == wanted
        self.a_partition_has_one_owner()
        assert dict(group.rows()) == dict(self.driver.restarted().rows())

    def _carry_out(self) -> None:
        while self.driver.stores or self.driver.assigns or self.driver.resolves:
            if self.driver.stores:
                self.driver.store()
            elif self.driver.resolves:
                self.resolve()
            else:
                self.driver.finish_assign()
            self._settle()


WEIGHTS = {
    "make_progress": 12, "heartbeat": 8, "take_over": 8, "store": 8, "finish_assign": 6, "carry_out": 4, "join": 4,
    "subscribe": 2, "rejoin": 2, "lose_answer": 3, "leave": 2, "fail_store": 2, "pass_time": 4, "grow": 1, "restart": 1,
    "resolve": 6,
}  # fmt: skip


def simulate(seed: int, steps: int) -> None:
    """Take random steps, of which those are frequent that move partitions."""
    random, machine = Random(seed), ConsumerGroupMachine()
    delays = [10, 1000, 1000, 1000, 5000, 5000, SESSION_MS]
    for _ in range(steps):
        pick, coin = random.randrange(1000), random.random() < 0.5
        active, driver = machine._active(), machine.driver
        choices: dict[str, Callable[[], None] | None] = {
            "join": partial(machine.join, random.choice(INSTANCES), random.choice(SUBSCRIPTIONS)),
            "make_progress": partial(machine.make_progress, pick, random.randint(1, MAX_MEMBERS), coin),
            "heartbeat": partial(machine.heartbeat, pick, full=coin, tells=random.random() < 0.5),
            "take_over": partial(machine.take_over, pick),
            "subscribe": partial(machine.subscribe, pick, random.choice(SUBSCRIPTIONS)),
            "rejoin": partial(machine.rejoin, pick),
            "lose_answer": partial(machine.lose_answer, pick, forgets=coin),
            "leave": partial(machine.leave, pick, restarts=coin),
            "store": machine.store if driver.stores else None,
            "fail_store": partial(
                machine.fail_store, random.choice([ErrorCode.NONE, ErrorCode.NOT_COORDINATOR]), written=coin
            ),
            "finish_assign": partial(machine.finish_assign, fails=random.random() < 0.1) if driver.assigns else None,
            "carry_out": machine.carry_out,
            "resolve": machine.resolve if driver.resolves else None,
            "pass_time": partial(machine.pass_time, random.choice(delays)),
            "grow": partial(machine.grow, random.choice((*TOPICS, "others"))),
            "restart": partial(machine.restart, really=coin),
        }
        if not active:
            choices = {"join": choices["join"], "pass_time": choices["pass_time"]}
        elif len(active) > MAX_MEMBERS:
            del choices["join"]
        if not driver.stores:
            choices.pop("fail_store", None)
        names = [name for name, choice in choices.items() if choice is not None]
        step = choices[random.choices(names, [WEIGHTS[name] for name in names])[0]]
        assert step is not None
        step()
        machine.check()
    machine.teardown()


@pytest.mark.parametrize("seed", range(40))
def test_invariants_hold_while_partitions_move(seed: int) -> None:
    simulate(seed, 150)


ConsumerGroupMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestConsumerGroupMachine = ConsumerGroupMachine.TestCase
