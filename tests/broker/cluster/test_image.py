"""A broker's image of the store: from its contents, and by changes."""

from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.broker.cluster.stores import KEY, TOPIC, Contents, OnePartition, changes_between, registration
from warmlog.broker.cluster.image import BROKER_DEFAULTS, EMPTY, ClusterImage
from warmlog.broker.cluster.keys import (
    CONTROLLER_KEY,
    FEATURES_KEY,
    PRODUCER_IDS_KEY,
    broker_key,
    configs_key,
    draining_key,
    gone_key,
    partition_key,
    quotas_key,
    topic_key,
)
from warmlog.broker.cluster.store import Changes, KeyValue, Range, StoreMismatchError
from warmlog.broker.cluster.values import (
    ActiveController,
    Configs,
    Features,
    Member,
    PartitionState,
    ProducerIds,
    StoredQuotas,
    TopicState,
)
from warmlog.broker.security.quotas.entities import QuotaEntity
from warmlog.protocol.partitions import TopicIdPartition


def state(*replicas: int) -> PartitionState:
    isr = tuple([Member(broker, 1) for broker in replicas])
    return PartitionState(replicas=replicas, leader=isr[0], leader_epoch=3, isr=isr)


def seen(image: ClusterImage) -> dict[str, object]:
    """Everything that an image tells; holders of nothing are left out."""
    fields = {name: value for name, value in vars(image).items() if name not in {"held", "acls", "quotas"}}
    return {
        **fields,
        "acls": dict(image.acls.items()),
        "quotas": (dict(image.quotas.items()), +image.quotas.kinds, image.quotas.limits_clients),
        "held": {broker: keys for broker, keys in image.held.items() if keys},
    }


def test_epochs_and_revisions_are_those_of_the_keys() -> None:
    store = Contents()
    store.put(topic_key("t"), TopicState(id=TOPIC, partitions=1))
    epoch = store.put(broker_key(5), registration(5))
    revision = store.put(partition_key(KEY), state(5))
    image = store.image
    assert (image.brokers[5].epoch, image.brokers[5].since) == (epoch, epoch), "a new history begins"
    assert image.partitions[KEY].revision == revision == image.revision_of(partition_key(KEY))
    assert image.revision_of("topics/other") == 0
    again = store.put(broker_key(5), registration(5, since=epoch))
    assert (store.image.brokers[5].epoch, store.image.brokers[5].since) == (again, epoch)


def test_everything_in_the_store_is_in_the_image() -> None:
    store = OnePartition()
    store.drain(2)
    store.put(CONTROLLER_KEY, ActiveController(broker=1, epoch=1))
    store.put(configs_key(), Configs(values={"a": "1"}))
    store.put(configs_key("3"), Configs(values={"b": "2"}))
    store.put(FEATURES_KEY, Features(levels={"f": 2}))
    store.put(PRODUCER_IDS_KEY, ProducerIds(next_id=1000))
    store.put(gone_key(UUID(int=9), 3), b"")
    image = store.image
    assert (set(image.brokers), image.draining, image.controller) == (
        {1, 2, 3, 4},
        {2},
        ActiveController(broker=1, epoch=1),
    )
    assert (image.names, image.partition("t", 0)) == ({TOPIC: "t"}, image.partitions[KEY])
    assert (image.partition("t", 1), image.partition("other", 0)) == (None, None)
    assert {name: found.values for name, found in image.configs.items()} == {
        BROKER_DEFAULTS: {"a": "1"},
        "3": {"b": "2"},
    }
    assert (image.features.levels, image.producer_ids.next_id, image.gone) == ({"f": 2}, 1000, {UUID(int=9): {3}})
    assert image.held == {1: {KEY}, 2: {KEY}, 3: {KEY}}


def test_a_delta_names_what_has_changed() -> None:
    store = OnePartition()
    image, old = store.image, store.contents
    store.end(3)
    store.drain(2)
    store.put(topic_key("u"), TopicState(id=UUID(int=8), partitions=1))
    store.set_state((1, 2, 4), isr=(1,))
    store.set_defaults(x="1")
    delta = image.apply(changes_between(old, store.contents))
    assert (delta.brokers, delta.topics, delta.partitions, delta.configs) == (
        {2, 3},
        {"u": None},
        {KEY},
        {BROKER_DEFAULTS},
    )
    assert image.held == {1: {KEY}, 2: {KEY}, 3: set(), 4: {KEY}}


def test_a_topic_that_was_created_anew_is_named_with_its_old_id() -> None:
    store = OnePartition()
    image, old = store.image, store.contents
    store.delete(topic_key("t"))
    store.put(topic_key("t"), TopicState(id=UUID(int=8), partitions=1))
    delta = image.apply(changes_between(old, store.contents))
    assert delta.topics == {"t": TOPIC}
    assert image.names == {UUID(int=8): "t"}


def test_a_report_without_changes_advances_the_revision() -> None:
    image = ClusterImage(EMPTY)
    delta = image.apply(Changes(9, ()))
    assert (image.revision, delta.brokers) == (9, set())


def test_unknown_keys_are_ignored() -> None:
    store = Contents()
    store.put("later/x", b"?")
    assert store.image.revision_of("later/x") == 0


@pytest.mark.parametrize("key", ["brokers/x", "brokers/1", "partitions/zz/0", "topics/t", "gone/1"])
def test_unreadable_contents_are_another_clusters(key: str) -> None:
    item = KeyValue(key, b"{", 1, 1)
    with pytest.raises(StoreMismatchError, match=key):
        ClusterImage(Range(1, (item,)))


def test_a_store_that_went_back_is_refused() -> None:
    store = OnePartition()
    image = store.image
    with pytest.raises(StoreMismatchError, match="went back from revision 6 to 5"):
        image.replace(Range(5, ()))


@given(seed=st.integers(0, 2**32), steps=st.lists(st.integers(1, 6), max_size=12))
def test_changes_lead_to_the_same_image_as_the_contents(seed: int, steps: list[int]) -> None:
    random, store = Random(seed), Contents()
    followed, reread = store.image, store.image
    for count in steps:
        old = store.contents
        for _ in range(count):
            _change_something(store, random)
        followed.apply(changes_between(old, store.contents))
        if random.random() < 0.4:
            reread.replace(store.contents)
    reread.replace(store.contents)
    assert seen(followed) == seen(store.image) == seen(reread)


def _change_something(store: Contents, random: Random) -> None:
    broker, topic = random.randrange(3), UUID(int=random.randrange(2))
    key, value = random.choice(
        [
            (broker_key(broker), registration(broker)),
            (draining_key(broker), b""),
            (CONTROLLER_KEY, ActiveController(broker=broker, epoch=1)),
            (topic_key(f"t{topic.int}"), TopicState(id=topic, partitions=2)),
            (partition_key(TopicIdPartition(topic, 0)), state(*random.sample(range(3), 2))),
            (configs_key(random.choice(("", "1"))), Configs(values={"a": "b"})),
            (FEATURES_KEY, Features(levels={"f": broker})),
            (PRODUCER_IDS_KEY, ProducerIds(next_id=broker)),
            (quotas_key(QuotaEntity(f"u{broker}")), StoredQuotas(values={"producer_byte_rate": topic.int + 1.0})),
            (gone_key(topic, broker), b""),
        ]
    )
    if key in store.items and random.random() < 0.5:
        store.delete(key)
    else:
        store.put(key, value)
