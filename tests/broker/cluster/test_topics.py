"""Registrations, topics, settings and counters."""

from uuid import UUID

import pytest

from tests.broker.cluster.stores import KEY, TOPIC, Contents, OnePartition, registration
from warmlog.broker.cluster import topics
from warmlog.broker.cluster.keys import broker_key, draining_key, topic_key
from warmlog.broker.cluster.rules import Decision, Refusal, elect, log_end_holders
from warmlog.broker.cluster.store import StoreTransaction
from warmlog.broker.cluster.values import NO_EPOCH, Member, TopicState, TopicStatus
from warmlog.protocol.partitions import TopicIdPartition

ME = Member(1, 1)


def done(store: Contents, decision: Decision) -> None:
    assert isinstance(decision, StoreTransaction), decision
    assert store.commit(decision), "a comparison does not hold"


def refused(decision: Decision) -> str:
    assert isinstance(decision, Refusal)
    return decision.reason


def three_brokers() -> Contents:
    store = Contents()
    for broker in (1, 2, 3):
        store.put(broker_key(broker), registration(broker))
    return store


# -- registrations -----------------------------------------------------------------------------------------------------


def test_a_broker_registers() -> None:
    store = Contents()
    done(store, topics.register(store.image, registration(7), 99))
    assert store.image.current(7) == Member(7, 1)
    assert store.image.brokers[7].since == 1


def test_a_clean_restart_keeps_the_history_and_an_unclean_one_does_not() -> None:
    store = three_brokers()
    done(store, topics.register(store.image, registration(1, since=1), 0))
    assert (store.image.brokers[1].since, store.image.brokers[1].epoch) == (1, 4)
    assert store.image.is_good(Member(1, 1))
    done(store, topics.register(store.image, registration(1), 0))
    assert store.image.brokers[1].since == 5
    assert not store.image.is_good(Member(1, 4))


def test_an_id_of_other_directories_is_refused() -> None:
    store = three_brokers()
    other = topics.register(store.image, registration(1), 0)
    assert isinstance(other, StoreTransaction), "the same directories: its own earlier registration"
    stranger = registration(2)
    assert "node.id 1 is in use" in refused(
        topics.register(store.image, type(stranger)(broker=1, directories=stranger.directories), 0)
    )


def test_two_brokers_do_not_register_with_one_id() -> None:
    store = Contents()
    first, second = (topics.register(store.image, registration(7), lease) for lease in (1, 2))
    done(store, first)
    assert isinstance(second, StoreTransaction)
    assert not store.commit(second)


def test_a_broker_that_comes_back_does_not_drain_any_more() -> None:
    store = OnePartition()
    done(store, topics.drain(store.image, ME, 0))
    assert store.image.draining == {1}
    assert "already draining" in refused(topics.drain(store.image, ME, 0))
    done(store, topics.register(store.image, registration(1, since=1), 0))
    assert store.image.draining == set()
    assert draining_key(1) not in store.items


def test_a_drain_of_an_earlier_registration_is_refused() -> None:
    store = OnePartition()
    late = topics.drain(store.image, ME, 0)
    store.register(1, since=1)
    assert isinstance(late, StoreTransaction)
    assert not store.commit(late)
    refused(topics.drain(store.image, ME, 0))


def test_a_registration_is_ended_once() -> None:
    store = three_brokers()
    late = topics.end_registration(store.image, 2)
    store.put(broker_key(2), registration(2, since=2))
    assert isinstance(late, StoreTransaction)
    assert not store.commit(late), "it has registered again"
    done(store, topics.end_registration(store.image, 2))
    refused(topics.end_registration(store.image, 2))


def test_a_broker_is_known_until_it_is_unregistered() -> None:
    store = Contents()
    done(store, topics.register(store.image, registration(7), 99))
    assert "broker 7 is running" in refused(topics.unregister(store.image, 7))
    done(store, topics.end_registration(store.image, 7))
    assert store.image.brokers == {}
    assert (store.image.known[7].epoch, store.image.known[7].since) == (1, 1)
    done(store, topics.unregister(store.image, 7))
    assert not store.image.is_known(7)
    assert "broker 7 is not registered" in refused(topics.unregister(store.image, 7))


def test_a_broker_that_comes_back_meanwhile_is_not_unregistered() -> None:
    store = Contents()
    done(store, topics.register(store.image, registration(7), 99))
    done(store, topics.end_registration(store.image, 7))
    late = topics.unregister(store.image, 7)
    done(store, topics.register(store.image, registration(7, since=1), 99))
    assert isinstance(late, StoreTransaction)
    assert not store.commit(late)


def test_one_broker_controls_until_its_registration_ends() -> None:
    store = three_brokers()
    done(store, topics.take_control(store.image, ME, 0))
    assert "broker 1 is the controller" in refused(topics.take_control(store.image, Member(2, 2), 0))
    store.delete(broker_key(1))
    done(store, topics.take_control(store.image, Member(2, 2), 0))
    refused(topics.resign_control(store.image, ME))
    done(store, topics.resign_control(store.image, Member(2, 2)))
    assert store.image.controller is None


# -- topics ------------------------------------------------------------------------------------------------------------


def create(store: Contents, assignment: list[tuple[int, ...]], creator: Member = ME) -> None:
    topic = TopicState(id=TOPIC, partitions=len(assignment))
    done(store, topics.create(store.image, "t", topic, assignment, creator))


def test_a_small_topic_is_created_at_once() -> None:
    store = three_brokers()
    create(store, [(1, 2), (2, 3)])
    state = store.image.partitions[KEY]
    assert (store.image.topics["t"].status, store.image.topics["t"].creator) == (TopicStatus.LIVE, None)
    assert (state.replicas, state.leader, state.isr, state.leader_epoch) == ((1, 2), ME, (ME, Member(2, 2)), 0)
    assert "already exists" in refused(
        topics.create(store.image, "t", TopicState(id=UUID(int=8), partitions=1), [(1,)], ME)
    )


def test_brokers_that_are_gone_or_drain_do_not_begin_in_sync() -> None:
    store = three_brokers()
    store.put(draining_key(1), b"")
    store.delete(broker_key(2))
    create(store, [(1, 2, 3)])
    state = store.image.partitions[KEY]
    assert (state.leader, state.isr) == (Member(3, 3), (Member(3, 3),))


def test_a_partition_whose_replicas_have_all_gone_waits_for_them() -> None:
    store = three_brokers()
    for broker in (1, 2):
        store.delete(broker_key(broker))
    create(store, [(1, 2)], Member(3, 3))
    image = store.image
    assert image.partitions[KEY].leader is None
    assert isinstance(elect(image, KEY), Refusal)
    for broker in (1, 2):
        store.put(broker_key(broker), registration(broker))
    image = store.image
    assert len(log_end_holders(image, image.partitions[KEY])) == 2


def test_a_large_topic_is_created_in_steps_by_whoever_lives() -> None:
    store = three_brokers()
    assignment = [(1, 2)] * 250
    create(store, assignment)
    topic = store.image.topics["t"]
    assert (topic.status, len(store.image.partitions)) == (TopicStatus.CREATING, 100)
    assert not topics.is_abandoned(store.image, topic)
    store.put(broker_key(1), registration(1, since=1))
    assert topics.is_abandoned(store.image, topic), "its creator has restarted"
    done(store, topics.add_partitions(store.image, "t", assignment[100:]))
    late = topics.add_partitions(store.image, "t", assignment[200:])
    done(store, topics.add_partitions(store.image, "t", assignment[200:]))
    assert isinstance(late, StoreTransaction)
    assert not store.commit(late), "two brokers do not add the same partitions"
    topic = store.image.topics["t"]
    assert (topic.status, topic.creator, len(store.image.partitions)) == (TopicStatus.LIVE, None, 250)


def test_a_topic_grows() -> None:
    store = three_brokers()
    create(store, [(1, 2)])
    done(store, topics.add_partitions(store.image, "t", [(2, 3)]))
    assert store.image.topics["t"].partitions == 2
    assert store.image.partitions[TopicIdPartition(TOPIC, 1)].replicas == (2, 3)
    refused(topics.add_partitions(store.image, "other", [(1,)]))


def test_a_deleted_topic_leaves_marks_for_the_brokers_with_its_data() -> None:
    store = three_brokers()
    create(store, [(1, 2), (2, 1)])
    done(store, topics.delete(store.image, "t"))
    assert (store.image.topics, store.image.partitions) == ({}, {})
    assert store.image.gone == {TOPIC: {1, 2}}
    for broker in (1, 2):
        done(store, topics.removed(store.image, TOPIC, broker))
    refused(topics.removed(store.image, TOPIC, 1))
    assert store.image.gone == {}
    refused(topics.delete(store.image, "t"))


def test_a_replica_that_is_added_meanwhile_gets_a_mark() -> None:
    store = three_brokers()
    create(store, [(1, 2)])
    late = topics.delete(store.image, "t")
    state = store.image.partitions[KEY]
    store.put("partitions/" + TOPIC.hex + "/0", type(state)(replicas=(3, 1), leader=None, leader_epoch=1, isr=()))
    assert isinstance(late, StoreTransaction)
    assert not store.commit(late)
    done(store, topics.delete(store.image, "t"))
    assert store.image.gone == {TOPIC: {1, 3}}


def test_a_topic_on_many_brokers_is_deleted_within_the_stores_limit() -> None:
    store = Contents()
    for broker in range(1, 201):
        store.put(broker_key(broker), registration(broker))
    assignment = [tuple(range(first, first + 5)) for first in range(1, 196)]
    create(store, assignment)
    done(store, topics.add_partitions(store.image, "t", assignment[100:]))
    while "t" in store.image.topics:
        done(store, topics.delete(store.image, "t"))
        topic = store.image.topics.get("t")
        assert topic is None or topics.is_abandoned(store.image, topic), "whoever controls continues"
    assert store.image.partitions == {}
    assert store.image.gone == {TOPIC: set(range(1, 200))}


def test_a_topic_that_is_deleted_does_not_grow() -> None:
    store = three_brokers()
    store.put(topic_key("t"), TopicState(id=TOPIC, partitions=1, status=TopicStatus.DELETING))
    refused(topics.add_partitions(store.image, "t", [(1,)]))
    refused(topics.set_topic_configs(store.image, "t", {}))


# -- settings and counters ---------------------------------------------------------------------------------------------


def test_settings_are_replaced() -> None:
    store = OnePartition(min_insync_replicas="2")
    late = topics.set_topic_configs(store.image, "t", {"a": "1"})
    done(store, topics.set_topic_configs(store.image, "t", {"b": "2"}))
    assert isinstance(late, StoreTransaction)
    assert not store.commit(late)
    assert store.image.topics["t"].configs == {"b": "2"}
    done(store, topics.set_configs(store.image, "", {"c": "3"}))
    done(store, topics.set_configs(store.image, "2", {"d": "4"}))
    assert {name: found.values for name, found in store.image.configs.items()} == {"": {"c": "3"}, "2": {"d": "4"}}


def test_features_that_are_not_named_stay() -> None:
    store = Contents()
    done(store, topics.set_features(store.image, {"a": 1}))
    done(store, topics.set_features(store.image, {"b": 2}))
    assert store.image.features.levels == {"a": 1, "b": 2}


@pytest.mark.parametrize(("at_least", "expected"), [(0, 1000), (5000, 5000)])
def test_producer_ids_are_given_once(at_least: int, expected: int) -> None:
    store = Contents()
    first, taken = topics.take_producer_ids(store.image, 1000, 0)
    _, late = topics.take_producer_ids(store.image, 1000, 0)
    done(store, taken)
    assert not store.commit(late)
    second, taken = topics.take_producer_ids(store.image, 1000, at_least)
    done(store, taken)
    assert (first, second) == (0, expected)
    assert store.image.producer_ids.next_id == expected + 1000


def test_a_creator_without_an_epoch_has_abandoned_its_topic() -> None:
    store = three_brokers()
    topic = TopicState(id=TOPIC, partitions=1, status=TopicStatus.CREATING, creator=Member(1, NO_EPOCH))
    assert topics.is_abandoned(store.image, topic)
