"""Moves of partitions (KIP-455)."""

import pytest

from tests.broker.cluster.stores import KEY, OnePartition, brokers_of
from warmlog.broker.cluster.rules import Change, Refusal, change_isr, reassign, transaction
from warmlog.broker.cluster.values import Member


def joined(store: OnePartition, *brokers: int) -> None:
    """Let the leader add followers to the ISR."""
    state = store.state
    assert state.leader is not None
    isr = [*state.isr, *[Member(broker, broker) for broker in brokers]]
    store.apply(change_isr(store.image, KEY, state.revision, state.leader, isr))


def test_added_replicas_come_first_and_removed_ones_stay_until_the_end() -> None:
    store = OnePartition()
    state = store.apply(reassign(store.image, KEY, [4, 1, 2]))
    assert (state.replicas, state.adding, state.removing) == ((4, 1, 2, 3), (4,), (3,))
    assert (brokers_of(state.isr), state.leader_epoch) == ([1, 2, 3], 0)


def test_it_ends_with_the_isr_that_covers_the_target() -> None:
    store = OnePartition()
    store.apply(reassign(store.image, KEY, [4, 1, 2]))
    joined(store, 4)
    state = store.state
    assert (state.replicas, state.adding, state.removing) == ((4, 1, 2), (), ())
    assert (brokers_of(state.isr), state.leader_id, state.leader_epoch) == ([1, 2, 4], 1, 1)


def test_a_leader_that_is_removed_hands_over() -> None:
    store = OnePartition()
    store.apply(reassign(store.image, KEY, [4, 3]))
    joined(store, 4)
    state = store.state
    assert (state.replicas, brokers_of(state.isr), state.leader_id, state.leader_epoch) == ((4, 3), [3, 4], 4, 1)


def test_enough_of_the_target_must_be_in_sync() -> None:
    store = OnePartition(min_insync_replicas="2")
    store.set_state((4, 3, 1, 2), isr=(2,), leader=2, adding=(4,), removing=(2,))
    joined(store, 4)
    assert store.state.adding == (4,), "with broker 4 alone it would be below the minimum"
    joined(store, 3)
    assert (store.state.replicas, store.state.adding) == ((4, 3, 1), ())


def test_replicas_are_removed_at_once_if_nothing_is_added() -> None:
    store = OnePartition()
    state = store.apply(reassign(store.image, KEY, [2, 3]))
    assert (state.replicas, brokers_of(state.isr), state.leader_id, state.leader_epoch) == ((2, 3), [2, 3], 2, 1)


def test_another_order_changes_the_preferred_replica_only() -> None:
    store = OnePartition()
    state = store.apply(reassign(store.image, KEY, [3, 2, 1]))
    assert (state.replicas, state.leader_id, state.leader_epoch) == ((3, 2, 1), 1, 0)


def test_a_cancelled_move_removes_what_it_added() -> None:
    store = OnePartition()
    assert isinstance(reassign(store.image, KEY, None), Refusal)
    store.apply(reassign(store.image, KEY, [4, 1, 2]))
    state = store.apply(reassign(store.image, KEY, None))
    assert (state.replicas, state.adding, state.removing) == ((1, 2, 3), (), ())
    assert state.leader_epoch == 1, "broker 4 deletes its log, and the leader must not count on it"


def test_another_target_replaces_a_move_in_progress() -> None:
    store = OnePartition()
    store.apply(reassign(store.image, KEY, [4, 1, 2]))
    state = store.apply(reassign(store.image, KEY, [1, 2]))
    assert (state.replicas, brokers_of(state.isr)) == ((1, 2), [1, 2])


def test_a_move_does_not_end_while_the_target_may_have_lost_its_data() -> None:
    store = OnePartition()
    store.set_state((1, 2, 3), isr=(1, 3), leader=3)
    store.register(1)
    state = store.apply(reassign(store.image, KEY, [1, 2]))
    assert (state.replicas, state.removing, brokers_of(state.isr)) == ((1, 2, 3), (3,), [1, 3])


def test_a_cancelled_move_does_not_remove_the_last_good_copy() -> None:
    store = OnePartition()
    store.set_state((4, 1, 2, 3), isr=(1, 4), leader=4, adding=(4,), removing=(3,))
    store.register(1)
    assert isinstance(reassign(store.image, KEY, None), Refusal)


def test_what_remains_in_sync_is_compared() -> None:
    store = OnePartition()
    change = reassign(store.image, KEY, [2, 3])
    assert isinstance(change, Change)
    store.register(2)
    assert not store.commit(transaction([change]))


@pytest.mark.parametrize("target", [[], [1, 1], [1, 9]])
def test_impossible_targets_are_refused(target: list[int]) -> None:
    assert isinstance(reassign(OnePartition().image, KEY, target), Refusal)


def test_a_replica_that_is_away_can_stay_in_the_target() -> None:
    store = OnePartition()
    store.end(3)
    assert store.apply(reassign(store.image, KEY, [3, 1, 4])).adding == (4,)
