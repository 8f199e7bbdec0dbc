"""Truncations against a model: replicas as lists of the epoch in which each record was written."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from warmlog.broker.log.index.leader_epochs import UNDEFINED, LeaderEpochs
from warmlog.broker.replication.following.truncation import (
    EpochEnd,
    Proceed,
    TruncateFully,
    Truncation,
    after_divergence,
    after_out_of_range,
)

NODES = range(3)


class Replica:
    """The epoch of each record, and the epochs as the replica has noted them."""

    def __init__(self, *epochs: int) -> None:
        self.records: list[int] = []
        self.epochs = LeaderEpochs()
        for epoch in epochs:
            self.append(epoch)

    @property
    def end(self) -> int:
        return len(self.records)

    def append(self, epoch: int) -> None:
        if epoch != self.epochs.latest:
            self.epochs.assign(epoch, self.end)
        self.records.append(epoch)

    def truncate(self, offset: int) -> None:
        del self.records[offset:]
        self.epochs.truncate_from_end(self.end)

    def shared_with(self, other: "Replica") -> int:
        """How many records both have."""
        pairs = zip(self.records, other.records, strict=False)
        return next((offset for offset, (mine, theirs) in enumerate(pairs) if mine != theirs), min(self.end, other.end))

    def divergence(self, epoch: int, offset: int) -> EpochEnd | None:
        """As a leader answers a fetch from this offset, after a record of this epoch."""
        if epoch == UNDEFINED:
            return None
        found = EpochEnd(*self.epochs.end_offset(epoch, self.end))
        return found if found.epoch < epoch or found.end_offset < offset else None


def agree(follower: Replica, leader: Replica) -> int:
    """Let the follower truncate until it may fetch; return how many questions that took."""
    for questions in range(100):
        answer = leader.divergence(follower.epochs.latest, follower.end)
        if answer is None:
            return questions
        before = follower.epochs.latest
        truncation = after_divergence(follower.epochs, follower.end, 0, answer)
        assert truncation.offset <= follower.end
        follower.truncate(truncation.offset)
        assert truncation.is_final or follower.epochs.latest < before
        assert not truncation.is_final or leader.divergence(follower.epochs.latest, follower.end) is None
    raise AssertionError("it never ends")


class History:
    """What a cluster may have done, with elections of any replica, however much it has."""

    def __init__(self) -> None:
        self.replicas = [Replica() for _ in NODES]
        self.leader = self.replicas[0]
        self.epoch = 0
        self.elect(0)

    def elect(self, node: int) -> None:
        self.epoch += 1
        self.leader = self.replicas[node]
        self.leader.epochs.assign(self.epoch, self.leader.end)

    def write(self, count: int) -> None:
        for _ in range(count):
            self.leader.append(self.epoch)

    def copy(self, node: int, count: int) -> None:
        """Copy some records to a replica that was truncated by looking at all of both logs."""
        follower = self.replicas[node]
        if follower is not self.leader:
            follower.truncate(follower.shared_with(self.leader))
            for epoch in self.leader.records[follower.end : follower.end + count]:
                follower.append(epoch)


ACTIONS = st.one_of(
    st.tuples(st.just(History.elect), st.sampled_from(NODES)),
    st.tuples(st.just(History.write), st.integers(0, 4)),
    st.tuples(st.just(History.copy), st.sampled_from(NODES), st.integers(0, 6)),
)


@given(st.lists(ACTIONS, max_size=40))
def test_followers_keep_what_they_share_with_the_leader_and_nothing_else(actions: list[tuple[Any, ...]]) -> None:
    history = History()
    for act, *arguments in actions:
        act(history, *arguments)
    for follower in history.replicas:
        if follower is not history.leader:
            shared = follower.shared_with(history.leader)
            agree(follower, history.leader)
            assert follower.records == history.leader.records[:shared]


def test_the_records_of_an_epoch_go_from_where_the_leader_ended_it() -> None:
    """KIP-101: truncation to the high watermark would lose records, or keep those that the leader never had."""
    follower, leader = Replica(1, 1, 1), Replica(1, 1)
    leader.epochs.assign(2, 2)
    assert after_divergence(follower.epochs, 3, 0, EpochEnd(1, 2)) == Truncation(2, is_final=True)
    assert agree(follower, leader) == 1


def test_an_epoch_that_the_follower_does_not_know_is_asked_about_again() -> None:
    """KIP-279: two quick changes of the leader."""
    follower, leader = Replica(1, 1, 3, 3), Replica(1, 2, 2, 2)
    leader.epochs.assign(4, 4)
    assert after_divergence(follower.epochs, 4, 0, EpochEnd(2, 4)) == Truncation(2, is_final=False)
    assert agree(follower, leader) == 2
    assert follower.records == [1]


def test_an_epoch_without_records_ends() -> None:
    """KAFKA-10706: the truncation to the log end drops it."""
    follower, leader = Replica(1, 1), Replica(1, 1, 2, 2, 2)
    follower.epochs.assign(3, 2)
    leader.epochs.assign(4, 5)
    assert agree(follower, leader) == 1
    assert follower.records == [1, 1]


def test_leaders_that_know_less() -> None:
    epochs = LeaderEpochs([(2, 5), (4, 10)])
    nothing = EpochEnd(UNDEFINED, UNDEFINED)
    assert after_divergence(epochs, 20, 15, nothing) == Truncation(15, is_final=True)
    assert after_divergence(epochs, 12, 15, nothing) == Truncation(12, is_final=True)
    assert after_divergence(epochs, 20, 15, EpochEnd(UNDEFINED, 7)) == Truncation(7, is_final=True)
    assert after_divergence(epochs, 20, 15, EpochEnd(1, 3)) == Truncation(3, is_final=True)
    assert after_divergence(epochs, 20, 15, EpochEnd(1, 7)) == Truncation(5, is_final=True)
    assert after_divergence(epochs, 20, 15, EpochEnd(4, 99)) == Truncation(20, is_final=True)
    assert after_divergence(LeaderEpochs(), 20, 15, EpochEnd(1, 30)) == Truncation(20, is_final=True)


def test_an_offset_that_the_leader_does_not_have() -> None:
    assert after_out_of_range(100, leader_start=0, leader_end=90) == Truncation(90, is_final=False)
    assert after_out_of_range(100, leader_start=120, leader_end=150) == TruncateFully(120)
    assert after_out_of_range(100, leader_start=120, leader_end=120) == TruncateFully(120)
    assert after_out_of_range(100, leader_start=0, leader_end=100) == Proceed()
    assert after_out_of_range(100, leader_start=100, leader_end=200) == Proceed()
