"""Who leads: a member of the ISR, else of the ELR, else the longest log, else anybody where that is allowed."""

import pytest

from tests.broker.cluster.stores import KEY, OnePartition, brokers_of
from warmlog.broker.cluster.rules import (
    Change,
    LogEnd,
    Refusal,
    disown,
    elect,
    elect_preferred,
    log_end_holders,
    needs_election,
    step_aside,
    transaction,
)
from warmlog.broker.cluster.values import Member


def test_the_next_replica_of_the_isr_leads_in_the_next_epoch() -> None:
    store = OnePartition()
    assert isinstance(elect(store.image, KEY), Refusal)
    store.end(1)
    state = store.apply(elect(store.image, KEY))
    assert (state.leader, state.leader_epoch, brokers_of(state.isr)) == (Member(2, 2), 1, [2, 3])
    assert not needs_election(store.image, state)


def test_the_order_is_the_one_of_the_replicas() -> None:
    store = OnePartition()
    store.set_state((3, 1, 2), isr=(1, 2, 3))
    store.end(1)
    assert store.apply(elect(store.image, KEY)).leader_id == 3


def test_a_leader_that_registered_again_without_a_loss_leads_on() -> None:
    store = OnePartition()
    store.register(1, since=1)
    assert not needs_election(store.image, store.state)


def test_members_get_their_current_epochs() -> None:
    store = OnePartition()
    third = store.register(3, since=3)
    store.end(1)
    assert store.apply(elect(store.image, KEY)).isr == (Member(2, 2), third)


def test_a_leader_that_restarted_unclean_is_replaced() -> None:
    store = OnePartition()
    store.register(1)
    state = store.apply(elect(store.image, KEY))
    assert (state.leader_id, brokers_of(state.isr)) == (2, [2, 3])


def test_every_member_of_the_new_isr_is_compared() -> None:
    for broker in (2, 3):
        store = OnePartition()
        store.end(1)
        change = elect(store.image, KEY)
        assert isinstance(change, Change)
        store.register(broker, since=broker)
        assert not store.commit(transaction([change]))


def test_those_that_are_gone_stay_eligible_while_the_isr_is_small() -> None:
    store = OnePartition(min_insync_replicas="2")
    store.end(1, 2)
    state = store.apply(elect(store.image, KEY))
    assert (state.leader_id, brokers_of(state.isr), brokers_of(state.elr)) == (3, [3], [1, 2])


def test_an_eligible_replica_leads_if_nobody_in_the_isr_can() -> None:
    store = OnePartition(min_insync_replicas="2")
    store.set_state((1, 2, 3), isr=(1,), elr=(2, 3))
    store.end(1, 2)
    state = store.apply(elect(store.image, KEY))
    assert (state.leader_id, brokers_of(state.isr), brokers_of(state.elr)) == (3, [3], [2, 1])


# -- the longest log ---------------------------------------------------------------------------------------------------


def unclean(store: OnePartition) -> dict[int, Member]:
    """Let brokers 1, 2 and 3 restart after a power cut."""
    return {broker: store.register(broker) for broker in (1, 2, 3)}


def test_the_longest_log_leads_when_all_came_back_unclean() -> None:
    store = OnePartition(min_insync_replicas="2")
    back = unclean(store)
    assert set(log_end_holders(store.image, store.state)) == set(back.values())
    assert isinstance(elect(store.image, KEY), Refusal)
    ends = {back[1]: LogEnd(3, 10), back[2]: LogEnd(4, 8), back[3]: LogEnd(4, 9)}
    state = store.apply(elect(store.image, KEY, ends))
    assert (state.leader, state.isr) == (back[3], (back[3],)), "a later epoch counts for more than a higher offset"
    assert brokers_of(state.elr) == [1, 2], "until the leader's log is copied"


def test_the_epoch_is_later_than_those_of_all_logs() -> None:
    """Those of a store that was restored from a backup may be earlier."""
    store = OnePartition()
    back = unclean(store)
    ends = {back[1]: LogEnd(41, 10), back[2]: LogEnd(41, 9), back[3]: LogEnd(40, 12)}
    state = store.apply(elect(store.image, KEY, ends))
    assert (state.leader, state.leader_epoch) == (back[1], 42)


def test_a_replica_outside_of_the_isr_leads_if_it_has_what_all_members_have_lost() -> None:
    store = OnePartition(min_insync_replicas="1")
    store.set_state((1, 2, 3), isr=(1,))
    back = {1: store.register(1)}
    others = {broker: store.image.current(broker) for broker in (2, 3)}
    assert set(log_end_holders(store.image, store.state)) == {back[1], *others.values()}
    assert isinstance(elect(store.image, KEY, {others[2]: LogEnd(0, 20)}), Refusal), "the member has to tell"
    ends = {back[1]: LogEnd(-1, 0), others[2]: LogEnd(0, 20)}  # the third one does not answer
    state = store.apply(elect(store.image, KEY, ends))
    assert (state.leader, state.isr) == (others[2], (others[2],))


def test_of_equal_logs_that_of_a_member_leads() -> None:
    store = OnePartition(min_insync_replicas="1")
    store.set_state((2, 1, 3), isr=(1,))
    back = store.register(1)
    ends = {store.image.current(2): LogEnd(0, 5), back: LogEnd(0, 5)}
    assert store.apply(elect(store.image, KEY, ends)).leader == back


def test_all_members_have_to_be_back() -> None:
    store = OnePartition()
    back = unclean(store)
    store.end(2)
    assert log_end_holders(store.image, store.state) == ()
    ends = {member: LogEnd(1, 1) for member in back.values()}
    assert isinstance(elect(store.image, KEY, ends), Refusal)


def test_all_members_have_to_answer() -> None:
    store = OnePartition()
    back = unclean(store)
    assert isinstance(elect(store.image, KEY, {back[1]: LogEnd(1, 1), back[2]: LogEnd(1, 1)}), Refusal)


def test_an_answer_counts_for_one_registration() -> None:
    store = OnePartition()
    back = unclean(store)
    ends = {member: LogEnd(1, 1) for member in back.values()}
    late = elect(store.image, KEY, ends)
    store.register(3)
    assert isinstance(late, Change)
    assert not store.commit(transaction([late])), "the ends of all logs are compared, not only the leader's"
    assert isinstance(elect(store.image, KEY, ends), Refusal)


def test_a_good_replica_is_waited_for_no_longer_than_it_is_away() -> None:
    store = OnePartition()
    unclean(store)
    store.set_state((1, 2, 3), isr=(1, 2), leader=None)
    store.register(2, since=2)
    assert log_end_holders(store.image, store.state) == ()
    assert store.apply(elect(store.image, KEY)).leader_id == 2


def test_a_disowned_replica_is_asked_where_its_log_ends() -> None:
    store = OnePartition()
    store.set_state((1,), isr=(1,))
    store.apply(disown(store.image, KEY, Member(1, 1)))
    assert log_end_holders(store.image, store.state) == (Member(1, 1),)
    assert store.apply(elect(store.image, KEY, {Member(1, 1): LogEnd(0, 3)})).leader_id == 1


# -- unclean elections -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["topic", "cluster", "request"])
def test_any_replica_leads_if_that_is_allowed(level: str) -> None:
    store = OnePartition(**{"unclean_leader_election_enable": "true"} if level == "topic" else {})
    if level == "cluster":
        store.set_defaults(unclean_leader_election_enable="true")
    store.set_state((1, 2, 3), isr=(1,), elr=(2,))
    store.end(1, 2)
    state = store.apply(elect(store.image, KEY, is_unclean=level == "request"))
    assert (state.leader_id, brokers_of(state.isr), state.elr) == (3, [3], ())


def test_a_topic_can_forbid_what_the_cluster_allows() -> None:
    store = OnePartition(unclean_leader_election_enable="false")
    store.set_defaults(unclean_leader_election_enable="true")
    store.set_state((1, 2, 3), isr=(1,))
    store.end(1)
    assert isinstance(elect(store.image, KEY), Refusal)


def test_an_eligible_replica_is_preferred_to_an_unclean_one() -> None:
    store = OnePartition(unclean_leader_election_enable="true", min_insync_replicas="2")
    store.set_state((1, 2, 3), isr=(1,), elr=(3,))
    store.end(1)
    assert store.apply(elect(store.image, KEY)).leader_id == 3


def test_without_any_replica_nobody_leads() -> None:
    store = OnePartition(unclean_leader_election_enable="true")
    store.end(1, 2, 3)
    assert isinstance(elect(store.image, KEY), Refusal)


# -- drains and preferred leaders --------------------------------------------------------------------------------------


def test_a_leader_that_drains_hands_over_and_leaves_the_isr() -> None:
    store = OnePartition()
    store.drain(1)
    state = store.apply(elect(store.image, KEY))
    assert (state.leader_id, brokers_of(state.isr)) == (2, [2, 3])


def test_a_leader_that_drains_leads_on_if_nobody_else_is_in_sync() -> None:
    store = OnePartition()
    store.set_state((1, 2, 3), isr=(1,))
    store.drain(1)
    assert isinstance(elect(store.image, KEY), Refusal)


def test_a_broker_that_drains_leads_if_it_is_the_only_one_left() -> None:
    store = OnePartition()
    store.end(1)
    store.drain(2, 3)
    state = store.apply(elect(store.image, KEY))
    assert (state.leader_id, brokers_of(state.isr)) == (2, [2, 3])


def test_the_preferred_replica_leads_again() -> None:
    store = OnePartition()
    store.set_state((2, 1, 3), isr=(1, 2, 3))
    state = store.apply(elect_preferred(store.image, KEY))
    assert (state.leader_id, state.leader_epoch, brokers_of(state.isr)) == (2, 1, [2, 1, 3])
    assert isinstance(elect_preferred(store.image, KEY), Refusal)


def test_a_preferred_replica_that_is_not_in_sync_or_drains_is_refused() -> None:
    store = OnePartition()
    store.set_state((2, 1, 3), isr=(1, 3))
    assert isinstance(elect_preferred(store.image, KEY), Refusal)
    store.set_state((2, 1, 3), isr=(1, 2, 3))
    store.drain(2)
    assert isinstance(elect_preferred(store.image, KEY), Refusal)


def test_a_leader_that_steps_aside_leaves_the_isr() -> None:
    store = OnePartition()
    state = store.apply(step_aside(store.image, KEY, Member(1, 1)))
    assert (state.leader_id, state.leader_epoch, brokers_of(state.isr), state.elr) == (2, 1, [2, 3], ())


def test_a_leader_that_has_registered_again_since_its_election_steps_aside() -> None:
    store = OnePartition()
    me = store.register(1, since=1)
    assert me != store.image.partitions[KEY].leader
    state = store.apply(step_aside(store.image, KEY, me))
    assert (state.leader_id, brokers_of(state.isr)) == (2, [2, 3])


def test_a_leader_that_steps_aside_stays_eligible_where_the_isr_is_too_small_without_it() -> None:
    store = OnePartition()
    store.set_state((1, 2, 3), isr=(1, 2))
    state = store.apply(step_aside(store.image, KEY, Member(1, 1)))
    assert (state.leader_id, brokers_of(state.isr), brokers_of(state.elr)) == (2, [2], [1])


def test_a_follower_that_steps_aside_leaves_the_isr_and_the_leader_leads_on() -> None:
    store = OnePartition()
    state = store.apply(step_aside(store.image, KEY, Member(2, 2)))
    assert (state.leader_id, state.leader_epoch, brokers_of(state.isr), state.elr) == (1, 0, [1, 3], ())


def test_a_follower_that_steps_aside_stays_eligible_where_the_isr_is_too_small_without_it() -> None:
    store = OnePartition()
    store.set_state((1, 2, 3), isr=(1, 2))
    state = store.apply(step_aside(store.image, KEY, Member(2, 2)))
    assert (state.leader_id, brokers_of(state.isr), brokers_of(state.elr)) == (1, [1], [2])


def test_only_in_sync_replicas_step_aside() -> None:
    store = OnePartition()
    store.set_state((1, 2, 3), isr=(1, 2))
    assert isinstance(step_aside(store.image, KEY, Member(3, 3)), Refusal)


def test_no_leader_steps_aside_without_another_replica_in_sync_that_stays() -> None:
    store = OnePartition()
    store.set_state((1, 2, 3), isr=(1, 2))
    store.drain(2)
    assert isinstance(step_aside(store.image, KEY, Member(1, 1)), Refusal)
