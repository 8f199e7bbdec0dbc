"""Committed offsets against a model: a deleted topic's are found whatever was committed and removed before."""

from hypothesis import given
from hypothesis import strategies as st

from warmlog.broker.groups.offsets import Offsets
from warmlog.protocol.kafka.group_records import OffsetAndMetadata

GROUPS = st.sampled_from(["g", "h", "i"])
TOPICS = st.sampled_from(["orders", "words"])
STEPS = st.lists(st.tuples(st.sampled_from(["put", "remove", "topic"]), GROUPS, TOPICS, st.integers(0, 2)), max_size=40)


@given(steps=STEPS, back=st.integers(0, 5))
def test_offsets_are_those_of_the_model(steps: list[tuple[str, str, str, int]], back: int) -> None:
    offsets = Offsets()
    model: dict[tuple[str, str, int], int] = {}
    for at, (what, group, topic, partition) in enumerate(steps):
        if what == "put":
            offsets.put(group, topic, partition, OffsetAndMetadata(offset=at, commit_ms=0), at)
            model[group, topic, partition] = at
        elif what == "remove":
            offsets.remove(group, topic, partition, at)
            model.pop((group, topic, partition), None)
        else:
            removed = {(name, index) for name, found in offsets.remove_topic(topic, at - back) for index in found}
            expected = {place for place, put_at in model.items() if place[1] == topic and put_at < at - back}
            assert removed == {(name, index) for name, _, index in expected}
            for place in expected:
                del model[place]
    found = {(group, *entry[:2]): entry[2].offset for group in "ghi" for entry in offsets.of(group)}
    assert found == model
    assert sorted(offsets.groups()) == sorted({group for group, _, _ in model})
    while offsets.forget(2):
        pass
    assert not len(offsets)
