"""The in-sync replicas while a leader lives, and what changes of partitions depend on."""

import pytest

from tests.broker.cluster.stores import KEY, TOPIC, OnePartition, brokers_of
from warmlog.broker.cluster.image import ClusterImage
from warmlog.broker.cluster.keys import broker_key, draining_key, partition_key
from warmlog.broker.cluster.rules import (
    Change,
    Refusal,
    batches,
    change_isr,
    disown,
    fence,
    is_current,
    min_isr,
    transaction,
)
from warmlog.broker.cluster.values import NO_EPOCH, Member, PartitionState
from warmlog.protocol.partitions import TopicIdPartition


def proposed(store: OnePartition, *isr: Member, image: ClusterImage | None = None) -> Change | Refusal:
    state = store.state
    assert state.leader is not None
    return change_isr(image or store.image, KEY, state.revision, state.leader, isr)


def members(*brokers: int) -> list[Member]:
    return [Member(broker, broker) for broker in brokers]


# -- proposals of leaders ----------------------------------------------------------------------------------------------


def test_a_leader_removes_a_follower() -> None:
    store = OnePartition()
    state = store.apply(proposed(store, *members(1, 2)))
    assert (brokers_of(state.isr), state.elr, state.leader_epoch) == ([1, 2], (), 0)


def test_who_leaves_an_isr_below_the_minimum_stays_eligible() -> None:
    store = OnePartition(min_insync_replicas="2")
    state = store.apply(proposed(store, *members(1)))
    assert (brokers_of(state.isr), brokers_of(state.elr)) == ([1], [2, 3])
    state = store.apply(proposed(store, *members(1, 3)))
    assert (brokers_of(state.isr), state.elr) == ([1, 3], ())


def test_the_same_isr_empties_an_elr_that_is_not_needed_any_more() -> None:
    store = OnePartition(min_insync_replicas="1")
    store.set_state((1, 2, 3), isr=(1,), elr=(2,))
    assert store.apply(proposed(store, *members(1))).elr == ()


def test_a_follower_joins_with_its_current_epoch_only() -> None:
    store = OnePartition()
    store.set_state((1, 2, 3), isr=(1,))
    current = store.register(2, since=2)
    assert isinstance(proposed(store, *members(1, 2)), Refusal), "it has registered again since it fetched"
    assert store.apply(proposed(store, *members(1), current)).isr == (Member(1, 1), current)


def test_a_member_that_is_renewed_joins_as_a_new_one() -> None:
    store = OnePartition()
    entry = Member(2, 9)
    refused = proposed(store, Member(1, 1), entry)
    assert isinstance(refused, Refusal), "no registration has this epoch"
    store.register(2)
    assert isinstance(proposed(store, *members(1, 2)), Refusal), "the history of the entry has ended"


@pytest.mark.parametrize("broker", [2, 3])
def test_every_member_of_the_new_isr_is_compared(broker: int) -> None:
    store = OnePartition()
    change = proposed(store, *members(1, 2, 3))
    assert isinstance(change, Change)
    store.register(broker, since=broker)
    assert not is_current(store.image, change)
    assert not store.commit(transaction([change]))


def test_the_leaders_own_registration_is_compared() -> None:
    store = OnePartition()
    change = proposed(store, *members(1))
    assert isinstance(change, Change)
    store.register(1, since=1)
    assert not store.commit(transaction([change]))


def test_a_proposal_for_an_older_state_is_refused() -> None:
    store = OnePartition()
    state, old = store.state, store.image
    assert state.leader is not None
    change = proposed(store, *members(1, 2), image=old)
    store.set_state((1, 2, 3), isr=(1, 3))
    assert isinstance(change, Change)
    assert not store.commit(transaction([change]))
    assert isinstance(change_isr(store.image, KEY, state.revision, state.leader, members(1)), Refusal)


def test_only_the_leader_of_this_epoch_proposes() -> None:
    store = OnePartition()
    state = store.state
    assert isinstance(change_isr(store.image, KEY, state.revision, Member(2, 2), members(1, 2)), Refusal)
    assert isinstance(change_isr(store.image, KEY, state.revision, Member(1, 1), members(2)), Refusal)


def test_a_broker_that_drains_does_not_join() -> None:
    store = OnePartition()
    store.set_state((1, 2, 3), isr=(1,))
    change = proposed(store, *members(1, 2))
    assert isinstance(change, Change)
    assert (draining_key(2), 0) in change.compares
    store.drain(2)
    assert not store.commit(transaction([change]))
    assert isinstance(proposed(store, *members(1, 2)), Refusal)


def test_a_broker_without_a_replica_does_not_join() -> None:
    store = OnePartition()
    refused = proposed(store, *members(1, 2, 3, 4))
    assert refused == Refusal("broker 4 has no replica")


# -- brokers that end or drain -----------------------------------------------------------------------------------------


def test_those_that_are_gone_or_drain_are_fenced() -> None:
    store = OnePartition(min_insync_replicas="2")
    assert isinstance(fence(store.image, KEY), Refusal)
    store.end(2)
    store.drain(3)
    state = store.apply(fence(store.image, KEY))
    assert (brokers_of(state.isr), brokers_of(state.elr), state.leader_epoch) == ([1], [2, 3], 0)


def test_nothing_is_fenced_without_a_leader() -> None:
    store = OnePartition()
    store.end(1)
    assert isinstance(fence(store.image, KEY), Refusal)


# -- replicas that lost data -------------------------------------------------------------------------------------------


def test_a_follower_that_lost_its_data_leaves_and_a_leader_epoch_begins() -> None:
    store = OnePartition()
    state = store.apply(disown(store.image, KEY, Member(2, 2)))
    assert (brokers_of(state.isr), state.elr, state.leader, state.leader_epoch) == ([1, 3], (), Member(1, 1), 1)


def test_even_a_follower_outside_of_the_isr_begins_a_leader_epoch() -> None:
    store = OnePartition()
    store.set_state((1, 2, 3), isr=(1,), epoch=4)
    assert store.apply(disown(store.image, KEY, Member(2, 2))).leader_epoch == 5
    assert isinstance(disown(store.image, KEY, Member(4, 4)), Refusal)


def test_a_leader_that_lost_its_data_leads_no_more() -> None:
    store = OnePartition()
    state = store.apply(disown(store.image, KEY, Member(1, 1)))
    assert (brokers_of(state.isr), state.leader) == ([2, 3], None)


def test_the_last_copy_stays_eligible_but_is_never_good() -> None:
    store = OnePartition()
    store.set_state((1, 2, 3), isr=(1,))
    state = store.apply(disown(store.image, KEY, Member(1, 1)))
    assert (state.isr, state.elr, state.leader) == ((), (Member(1, NO_EPOCH),), None)
    assert not store.image.is_good(state.elr[0])


def test_a_copy_stays_eligible_if_those_that_remain_may_have_lost_theirs() -> None:
    store = OnePartition()
    store.register(2)  # an unclean start
    state = store.apply(disown(store.image, KEY, Member(1, 1)))
    assert (brokers_of(state.isr), state.elr) == ([2, 3], (Member(1, NO_EPOCH),))


# -- min.insync.replicas -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "default", "replicas", "adding", "expected"),
    [
        (None, None, 1, 0, 1),
        (None, None, 2, 0, 1),
        (None, None, 3, 0, 2),  # unlike Kafka
        (None, "1", 3, 0, 1),
        ("2", "1", 3, 0, 2),
        ("3", None, 2, 0, 2),
        (None, None, 4, 2, 1),  # what a reassignment adds counts when it ends
    ],
)
def test_the_minimum_is_the_topics_else_the_clusters_else_two_of_three(
    topic: str | None, default: str | None, replicas: int, adding: int, expected: int
) -> None:
    store = OnePartition(**{} if topic is None else {"min_insync_replicas": topic})
    if default is not None:
        store.set_defaults(min_insync_replicas=default)
    brokers = tuple(range(1, replicas + 1))
    state = PartitionState(replicas=brokers, leader=None, leader_epoch=0, isr=(), adding=brokers[:adding])
    assert min_isr(store.image, KEY, state) == expected


# -- transactions ------------------------------------------------------------------------------------------------------


def test_a_change_compares_the_state_that_it_was_decided_on() -> None:
    store = OnePartition()
    store.end(3)
    change = fence(store.image, KEY)
    assert isinstance(change, Change)
    store.set_state((1, 2, 3), isr=(1,))
    assert not is_current(store.image, change)
    assert not store.commit(transaction([change]))


def test_changes_of_many_partitions_are_divided_by_the_stores_limit() -> None:
    store = OnePartition()
    keys = [TopicIdPartition(TOPIC, index) for index in range(1, 300)]
    for key in keys:
        store.put(partition_key(key), store.state)
    store.end(3)
    changes = [change for key in keys if isinstance(change := fence(store.image, key), Change)]
    parts = batches(changes)
    assert [len(part) for part in parts] == [126, 126, 47], "two brokers are compared as well"
    assert all(store.commit(transaction(part)) for part in parts)
    assert all(brokers_of(state.isr) == [1, 2] for key, state in store.image.partitions.items() if key.partition)


def test_brokers_are_compared_once_for_all_changes() -> None:
    store = OnePartition()
    store.end(3)
    change = fence(store.image, KEY)
    assert isinstance(change, Change)
    compared = [key for key, _ in transaction([change, change]).compares]
    assert sorted(compared) == sorted({broker_key(1), broker_key(2), partition_key(KEY)})
