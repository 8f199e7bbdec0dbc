from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from warmlog.broker.cluster.values import Member, PartitionState
from warmlog.broker.replication.leading.progress import Progress, Proposal

ME = 0
LAG_S = 30.0
RETRY_S = 2.0


class Registrations:
    """The current epoch and the first good epoch of each broker."""

    def __init__(self, brokers: Iterable[int] = range(4)) -> None:
        self.epochs = dict.fromkeys(brokers, 10)
        self.since = dict.fromkeys(brokers, 10)
        self.draining: set[int] = set()

    def is_good(self, member: Member) -> bool:
        return member.broker in self.epochs and self.since[member.broker] <= member.epoch <= self.epochs[member.broker]

    def may_join(self, member: Member) -> bool:
        return self.is_latest(member) and member.broker not in self.draining

    def is_latest(self, member: Member) -> bool:
        return self.epochs.get(member.broker) == member.epoch


def state_of(
    *isr: int, replicas: tuple[int, ...] = (0, 1, 2), revision: int = 1, epoch: int = 10, leader_epoch: int = 5
) -> PartitionState:
    members = tuple(Member(broker, epoch) for broker in isr)
    leader = Member(ME, epoch)
    return PartitionState(replicas=replicas, leader=leader, leader_epoch=leader_epoch, isr=members, revision=revision)


def progress_of(
    state: PartitionState,
    *,
    brokers: Registrations | None = None,
    log_end: int = 0,
    high_watermark: int = 0,
    min_isr: int = 1,
) -> Progress:
    return Progress(
        ME,
        state,
        brokers or Registrations(),
        log_end=log_end,
        high_watermark=high_watermark,
        min_isr=min_isr,
        max_lag_s=LAG_S,
        retry_s=RETRY_S,
        now=0.0,
    )


def append(progress: Progress, log_end: int, now: float = 0.0) -> None:
    progress.appended(log_end, now)
    progress.own_end = log_end


def fetched(progress: Progress, broker: int, offset: int, now: float = 0.0, *, epoch: int = 10) -> bool:
    return progress.fetched(broker, epoch, offset, 0, now)


def test_the_high_watermark_is_the_smallest_log_end_of_the_isr() -> None:
    progress = progress_of(state_of(0, 1, 2))
    append(progress, 9)
    fetched(progress, 1, 7)
    assert not progress.advance(0.0), "broker 2 has not fetched in this epoch"
    fetched(progress, 2, 5)
    assert progress.advance(0.0)
    assert progress.high_watermark == 5


def test_the_leader_counts_only_what_it_has_synced() -> None:
    progress = progress_of(state_of(0, 1))
    progress.appended(9, 0.0)
    progress.own_end = 4
    fetched(progress, 1, 9)
    progress.advance(0.0)
    assert progress.high_watermark == 4


def test_the_high_watermark_does_not_fall_when_a_follower_has_lost_its_end() -> None:
    progress = progress_of(state_of(0, 1))
    append(progress, 9)
    fetched(progress, 1, 9)
    progress.advance(0.0)
    fetched(progress, 1, 3)
    assert not progress.advance(0.0)
    assert progress.high_watermark == 9


def test_the_high_watermark_stays_while_the_isr_is_below_the_minimum() -> None:
    progress = progress_of(state_of(0), min_isr=2)
    append(progress, 9)
    assert not progress.advance(0.0)
    progress.update(state_of(0, 1, revision=2), 2, 0.0)
    fetched(progress, 1, 9)
    assert progress.advance(0.0)


def test_the_high_watermark_stays_while_others_are_eligible_besides_the_isr() -> None:
    state = replace(state_of(0), elr=(Member(1, 10),))
    progress = progress_of(state, min_isr=1)
    append(progress, 9)
    assert not progress.advance(0.0)
    assert progress.propose(0.0) == Proposal(1, (Member(0, 10),), ()), "which ends that"


def test_nothing_is_proposed_for_those_eligible_while_the_isr_is_too_small() -> None:
    state = replace(state_of(0), elr=(Member(1, 10),))
    assert progress_of(state, min_isr=2).propose(0.0) is None


def test_a_follower_outside_the_isr_does_not_hold_the_high_watermark() -> None:
    progress = progress_of(state_of(0, 1))
    append(progress, 9)
    fetched(progress, 1, 9)
    fetched(progress, 2, 1)
    progress.advance(0.0)
    assert progress.high_watermark == 9


def test_a_follower_that_is_about_to_join_holds_the_high_watermark() -> None:
    progress = progress_of(state_of(0))
    fetched(progress, 2, 0, 100.0)
    append(progress, 9, 100.0)
    assert not progress.advance(100.0)
    assert progress.advance(100.0 + 2 * LAG_S), "it has not fetched any more"


def test_the_high_watermark_waits_for_a_proposed_member() -> None:
    progress = progress_of(state_of(0))
    fetched(progress, 2, 0)
    proposal = progress.propose(0.0)
    assert proposal == Proposal(1, (Member(0, 10), Member(2, 10)), (Member(2, 10),))
    append(progress, 9, 0.0)
    assert not progress.advance(1000 * LAG_S), "the proposal may still be applied"
    progress.update(state_of(0, revision=2), 1, 1000 * LAG_S)
    assert progress.advance(1000 * LAG_S)


def test_a_member_that_a_proposal_removes_holds_the_high_watermark_until_then() -> None:
    progress = progress_of(state_of(0, 1))
    append(progress, 9)
    assert progress.propose(2 * LAG_S) == Proposal(1, (Member(0, 10),), ())
    assert not progress.advance(2 * LAG_S)
    progress.update(state_of(0, revision=2), 1, 2 * LAG_S)
    assert progress.advance(2 * LAG_S)


def test_one_proposal_is_in_flight() -> None:
    progress = progress_of(state_of(0))
    fetched(progress, 1, 0)
    assert progress.propose(0.0) is not None
    fetched(progress, 2, 0)
    assert progress.propose(0.0) is None


def test_after_an_unknown_outcome_another_proposal_counts_besides_the_first() -> None:
    brokers = Registrations()
    progress = progress_of(state_of(0), brokers=brokers)
    fetched(progress, 1, 0)
    assert progress.propose(0.0) is not None
    append(progress, 9)
    fetched(progress, 2, 9)
    del brokers.epochs[1]
    proposal = progress.propose(RETRY_S)
    assert proposal is not None
    assert proposal.added == (Member(2, 10),)
    assert not progress.advance(RETRY_S), "broker 1 may still become a member"


def test_a_proposal_that_is_of_no_use_any_more_is_ended_by_one_of_the_same_isr() -> None:
    brokers = Registrations()
    progress = progress_of(state_of(0), brokers=brokers)
    fetched(progress, 1, 0)
    progress.propose(0.0)
    del brokers.epochs[1]
    assert progress.propose(RETRY_S) == Proposal(1, (Member(0, 10),), ())


def test_a_refused_proposal_is_forgotten() -> None:
    progress = progress_of(state_of(0))
    fetched(progress, 1, 0)
    proposal = progress.propose(0.0)
    assert proposal is not None
    progress.withdraw(proposal)
    append(progress, 9, 2 * LAG_S)
    assert progress.advance(4 * LAG_S)


def test_a_proposal_that_was_sent_twice_is_not_forgotten_when_the_second_is_refused() -> None:
    progress = progress_of(state_of(0))
    fetched(progress, 1, 0)
    progress.propose(0.0)
    again = progress.propose(RETRY_S)
    assert again is not None
    progress.withdraw(again)
    append(progress, 9, RETRY_S)
    assert not progress.advance(1000 * LAG_S)


def test_a_follower_leaves_that_has_not_caught_up_for_too_long() -> None:
    progress = progress_of(state_of(0, 1, 2))
    append(progress, 9)
    fetched(progress, 1, 9, LAG_S)
    fetched(progress, 2, 8, LAG_S)
    assert progress.propose(LAG_S) is None
    proposal = progress.propose(LAG_S + 1)
    assert proposal is not None
    assert [member.broker for member in proposal.isr] == [0, 1]


def test_a_follower_stays_whose_every_fetch_reaches_the_log_end_of_the_fetch_before() -> None:
    progress = progress_of(state_of(0, 1))
    for second in range(200):
        append(progress, 10 * second + 10, float(second))
        fetched(progress, 1, 10 * second, float(second))
        assert progress.propose(float(second)) is None


def test_an_idle_follower_at_the_log_end_stays() -> None:
    progress = progress_of(state_of(0, 1), log_end=9, high_watermark=9)
    fetched(progress, 1, 9)
    assert progress.propose(1000 * LAG_S) is None
    append(progress, 10, 1000 * LAG_S)
    assert progress.propose(1001 * LAG_S) is None, "it was caught up until the append"


def test_a_member_leaves_at_once_when_its_entry_is_not_good() -> None:
    brokers = Registrations()
    progress = progress_of(state_of(0, 1, 2), brokers=brokers)
    del brokers.epochs[1]
    brokers.epochs[2] = brokers.since[2] = 12
    proposal = progress.propose(0.0)
    assert proposal is not None
    assert proposal.isr == (Member(0, 10),)


def test_a_follower_joins_at_the_high_watermark_and_the_start_of_the_epoch() -> None:
    progress = progress_of(state_of(0), log_end=8, high_watermark=5)
    fetched(progress, 1, 7)
    assert progress.propose(0.0) is None, "below the start of the epoch"
    fetched(progress, 1, 8)
    assert progress.propose(0.0) is not None


def test_a_follower_that_has_stopped_fetching_does_not_join() -> None:
    progress = progress_of(state_of(0, 1))
    fetched(progress, 2, 0, 0.0)
    append(progress, 9, 0.0)
    progress.update(state_of(0, 1, revision=2), 1, 0.0)
    fetched(progress, 1, 0, 2 * LAG_S)
    proposal = progress.propose(2 * LAG_S)
    assert proposal is not None
    assert proposal.isr == (Member(0, 10),), "both are at the high watermark, and far behind"
    progress.update(state_of(0, revision=3), 1, 2 * LAG_S)
    assert progress.propose(2 * LAG_S) is None


def test_a_replica_that_is_about_to_join_is_awaited_unless_it_is_throttled() -> None:
    progress = progress_of(state_of(0, 1))
    for end in (5, 9):
        append(progress, end)
        fetched(progress, 1, end)
        fetched(progress, 2, 5)
    assert progress.advance(0.0)
    assert progress.high_watermark == 5
    assert progress.advance(0.0, are_others_throttled=True)
    assert progress.high_watermark == 9
    append(progress, 10)
    assert not progress.advance(0.0, are_others_throttled=True), "those in sync are always awaited"


def test_a_follower_does_not_join_with_an_epoch_that_is_not_its_current_one() -> None:
    brokers = Registrations()
    progress = progress_of(state_of(0), brokers=brokers)
    brokers.epochs[1] = 11
    fetched(progress, 1, 0, epoch=10)
    brokers.draining.add(2)
    fetched(progress, 2, 0)
    assert progress.propose(0.0) is None
    fetched(progress, 1, 0, epoch=11)
    proposal = progress.propose(0.0)
    assert proposal is not None
    assert proposal.added == (Member(1, 11),)


@pytest.mark.parametrize("epoch", [-1, 9, 11, 2**62])
def test_a_fetch_with_another_epoch_than_that_of_the_registration_is_ignored(epoch: int) -> None:
    progress = progress_of(state_of(0, 1))
    append(progress, 9)
    fetched(progress, 1, 3)
    assert not fetched(progress, 1, 9, epoch=epoch)
    progress.advance(0.0)
    assert progress.high_watermark == 3
    fetched(progress, 1, 4)
    progress.advance(0.0)
    assert progress.high_watermark == 4


def test_a_broker_without_a_replica_is_ignored() -> None:
    assert not fetched(progress_of(state_of(0, 1)), 3, 0)


def test_a_replica_that_is_added_is_followed_from_then_on() -> None:
    progress = progress_of(state_of(0, 1))
    progress.update(state_of(0, 1, replicas=(0, 1, 3), revision=2), 1, 0.0)
    assert fetched(progress, 3, 0)
    progress.update(state_of(0, 1, replicas=(0, 1), revision=3), 1, 0.0)
    assert not fetched(progress, 3, 0)


def test_members_count_as_caught_up_when_the_epoch_begins() -> None:
    progress = progress_of(state_of(0, 1), log_end=9)
    assert progress.propose(LAG_S) is None
    assert progress.propose(LAG_S + 1) is not None


def test_a_follower_that_has_left_by_itself_holds_nothing_up_and_joins_once_it_has_everything() -> None:
    progress = progress_of(state_of(0, 1, 2))
    append(progress, 9)
    fetched(progress, 1, 9)
    fetched(progress, 2, 8)
    progress.update(state_of(0, 1, revision=2), 1, 1.0)
    assert progress.propose(1.0) is None
    assert progress.advance(1.0)
    assert progress.high_watermark == 9
    fetched(progress, 2, 9, 2.0)
    proposal = progress.propose(2.0)
    assert proposal is not None
    assert proposal.added == (Member(2, 10),)


def test_a_follower_that_has_left_although_it_lacks_nothing_joins_without_another_fetch() -> None:
    progress = progress_of(state_of(0, 1, 2))
    append(progress, 9)
    fetched(progress, 1, 9)
    fetched(progress, 2, 9)
    progress.update(state_of(0, 1, revision=2), 1, 1.0)
    proposal = progress.propose(1.0)
    assert proposal is not None
    assert proposal.added == (Member(2, 10),)
