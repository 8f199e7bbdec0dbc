"""The group's state machine against its invariants, with random requests in random order.

A model of the clients records what each member has received. Checked after every step: no request is answered twice,
the generation only grows, a partition has one owner per generation, unknown members change nothing, and no deadline is
before `wake_at_s`. At the end all sessions expire, and every request must have been answered or its client gone.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.broker.groups.requests import REBALANCE_MS, SESSION_MS, Driver
from warmlog.broker.groups.automaton import NEVER
from warmlog.broker.groups.classic.rebalance import NEW_MEMBER_JOIN_TIMEOUT_MS
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.groups import GroupState, JoinGroupResponse, SyncGroupResponse

INSTANCES = (None, None, "one", "two")
PARTITIONS = 4
picks = st.integers(0, 1000)


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(max_size=4)
        self.driver.must_store = False
        self.asked: dict[int, tuple[str | None, str, int]] = {}  # waiter to its instance, member id, generation
        self.seen: set[int] = set()
        self.instances: dict[str, str | None] = {}  # member id to its instance id
        self.generations: dict[str, int] = {}  # the generation that each member joined last
        self.leaders: dict[int, str] = {}
        self.owners: dict[tuple[int, bytes], str] = {}
        self.known: list[str] = []
        self.highest = 0

    # -- clients --

    @rule(instance=st.sampled_from(INSTANCES), ids_first=st.booleans(), speaks=st.sampled_from(["ab", "ba", "a"]))
    def join_new(self, instance: str | None, ids_first: bool, speaks: str) -> None:
        self._asked(self.driver.join(instance_id=instance, requires_known_member=ids_first, speaks=speaks), instance)

    @precondition(lambda self: self.known)
    @rule(pick=picks, speaks=st.sampled_from(["ab", "ba", "a"]))
    def join_again(self, pick: int, speaks: str) -> None:
        member_id = self._pick(pick)
        instance = self.instances[member_id]
        self._asked(self.driver.join(member_id, instance_id=instance, speaks=speaks), instance)

    @precondition(lambda self: self.known)
    @rule(pick=picks)
    def sync(self, pick: int) -> None:
        member_id = self._pick(pick)
        members = [member.member_id for member in self.driver.group.members]
        generation = self.generations.get(member_id, 0)
        assignments = {each: bytes([index % PARTITIONS]) for index, each in enumerate(members) if index < PARTITIONS}
        waiter = self.driver.sync(member_id, generation, assignments, instance_id=self.instances[member_id])
        self._asked(waiter, self.instances[member_id], member_id, generation)

    @precondition(lambda self: self.known)
    @rule(pick=picks)
    def heartbeat(self, pick: int) -> None:
        member_id = self._pick(pick)
        self.driver.heartbeat(member_id, self.generations.get(member_id, 0), self.instances[member_id])

    @precondition(lambda self: self.known)
    @rule(pick=picks)
    def leave(self, pick: int) -> None:
        member_id = self._pick(pick)
        self.driver.leave(member_id, instance_id=self.instances[member_id])
        self._look()

    @precondition(lambda self: self.asked)
    @rule(pick=picks)
    def go_away(self, pick: int) -> None:
        waiting = sorted(self.asked)
        waiter = waiting[pick % len(waiting)]
        self.driver.group.forget_waiter(waiter, self.driver.now)
        del self.asked[waiter]

    @precondition(lambda self: self.driver.stores)
    @rule(error=st.sampled_from([ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_COORDINATOR]))
    def settle(self, error: ErrorCode) -> None:
        self.driver.settle_stores(error)
        self._look()

    @rule(milliseconds=st.sampled_from([1, 1000, 3000, SESSION_MS // 2, SESSION_MS, REBALANCE_MS]))
    def wait(self, milliseconds: int) -> None:
        self.driver.pass_ms(milliseconds)
        self._look()

    @rule(count=st.integers(1, 4), syncing=st.integers(0, 4))
    def gather(self, count: int, syncing: int) -> None:
        """Complete the join phase normally, and let some members sync: a useful start for most steps."""
        driver = self.driver
        for instance in INSTANCES[:count]:
            self.join_new(instance, ids_first=False, speaks="ab")
        for member in driver.group.members:
            self._asked(driver.join(member.member_id, instance_id=member.instance_id, speaks="ab"), member.instance_id)
        self.wait(3000)
        for member in list(driver.group.members)[:syncing]:
            if member.member_id in self.known:
                self.sync(self.known.index(member.member_id))

    # -- requests that must change nothing --

    @rule(generation=st.integers(-1, 4), instance=st.sampled_from([None, "one", "stranger"]))
    def unknown_members_change_nothing(self, generation: int, instance: str | None) -> None:
        before = self._state()
        driver = self.driver
        driver.join("stranger", instance_id=instance, speaks="ab")
        driver.sync("stranger", generation, {"stranger": b"mine"}, instance_id=instance)
        driver.heartbeat("stranger", generation, instance)
        driver.leave("stranger", instance_id=instance)
        driver.group.check_commit("stranger", instance, generation, driver.now)
        assert self._state() == before

    @precondition(lambda self: self.known)
    @rule(pick=picks)
    def a_stale_generation_changes_nothing(self, pick: int) -> None:
        member_id, driver = self._pick(pick), self.driver
        stale = driver.group.generation.number - 1
        before = self._state()
        driver.sync(member_id, stale, {member_id: b"mine"}, instance_id=self.instances[member_id])
        driver.heartbeat(member_id, stale, self.instances[member_id])
        if stale >= 0:
            driver.group.check_commit(member_id, self.instances[member_id], stale, driver.now)
        assert self._state() == before

    # -- invariants --

    @invariant()
    def the_generation_only_grows(self) -> None:
        assert self.driver.group.generation.number >= self.highest
        self.highest = self.driver.group.generation.number

    @invariant()
    def state_and_members_agree(self) -> None:
        group = self.driver.group
        if group.state is GroupState.EMPTY:
            assert not len(group.members)
        if group.state in {GroupState.STABLE, GroupState.COMPLETING_REBALANCE}:
            assert len(group.members)
        assert (group.members.leader is None) == (not len(group.members))
        assert group.members.leader is None or group.members.leader in group.members

    @invariant()
    def no_deadline_is_before_wake_at_s(self) -> None:
        group = self.driver.group
        rebalance = group._rebalance
        due = [rebalance.join_deadline_s, rebalance.sync_deadline_s, *rebalance.pending_ids.values()]
        due += [member.deadline_s for member in group.members]
        assert group.wake_at_s <= min(due, default=NEVER)

    def teardown(self) -> None:
        """Let all sessions expire: every request is answered, and no member is left."""
        self.driver.must_store = True
        self.driver.settle_stores()
        for _ in range(4):
            self.driver.pass_ms(NEW_MEMBER_JOIN_TIMEOUT_MS + REBALANCE_MS)
        self._look()
        assert not self.asked
        assert self.driver.group.state is GroupState.EMPTY
        assert not self.driver.group.pending_count
        assert self.driver.group.wake_at_s == NEVER

    # -- helpers --

    def _pick(self, pick: int) -> str:
        return self.known[pick % len(self.known)]

    def _asked(self, waiter: int, instance: str | None, member_id: str = "", generation: int = -1) -> None:
        self.asked[waiter] = (instance, member_id, generation)
        self._look()

    def _look(self) -> None:
        """Apply new responses to the model; members learn ids, generations and assignments from nothing else."""
        for waiter in sorted(self.driver.answers.keys() - self.seen):
            self.seen.add(waiter)
            instance, member_id, generation = self.asked.pop(waiter, (None, "", -1))
            response = self.driver.answers[waiter]
            if isinstance(response, JoinGroupResponse):
                self._learn(response, instance)
            elif response.error is ErrorCode.NONE and response.assignment:
                self._own(response, instance or member_id, generation)

    def _learn(self, response: JoinGroupResponse, instance: str | None) -> None:
        if response.error is ErrorCode.MEMBER_ID_REQUIRED or response.error is ErrorCode.NONE:
            if response.member_id not in self.instances:
                self.known.append(response.member_id)
            self.instances[response.member_id] = instance
        if response.error is ErrorCode.NONE:
            self.generations[response.member_id] = response.generation
            if response.members:
                assert response.leader == response.member_id
                assert len({member.member_id for member in response.members}) == len(response.members)

    def _own(self, response: SyncGroupResponse, owner: str, generation: int) -> None:
        """Check that a partition (the assignment's only byte) has one owner per generation, across its restarts."""
        assert self.owners.setdefault((generation, response.assignment), owner) == owner

    def _state(self) -> object:
        group = self.driver.group
        rebalance = group._rebalance
        members = [
            (m.member_id, m.instance_id, m.protocols, m.assignment, m.join_waiter,
             m.sync_waiter, m.deadline_s, m.is_new)
            for m in group.members
        ]  # fmt: skip
        return (
            group.state, group.generation.number, group.members.leader, members, dict(rebalance.pending_ids),
            set(rebalance.pending_sync), rebalance.join_deadline_s, rebalance.sync_deadline_s, list(self.driver.stores),
        )  # fmt: skip


GroupMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestGroupMachine = GroupMachine.TestCase
