"""Committed offsets against a model: a deleted topic's are found whatever was committed and removed before."""

from hypothesis import example, given
from hypothesis import strategies as st

from warmlog.broker.groups.offsets import Offsets, values_of
from warmlog.protocol.groups import OffsetToCommit
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


COMMITS = st.lists(
    st.builds(
        OffsetToCommit,
        topic=TOPICS,
        partition=st.integers(0, 2),
        offset=st.integers(0, 9),
        metadata=st.text("m", max_size=3),
    ),
    max_size=8,
)


def commit_of(*metadata: str) -> tuple[str, list[OffsetToCommit]]:
    """A commit of one partition, as often as there are metadata."""
    return "g", [OffsetToCommit(topic="orders", partition=0, offset=1, metadata=each) for each in metadata]


@example(commits=[commit_of("mmm"), commit_of("", "")], without=set(), stored=8)
@given(commits=st.lists(st.tuples(GROUPS, COMMITS), max_size=5), without=st.sets(TOPICS), stored=st.integers(0, 8))
def test_offsets_of_a_commit_are_put_as_one_after_the_other(
    commits: list[tuple[str, list[OffsetToCommit]]], without: set[str], stored: int
) -> None:
    together, alone, at = Offsets(), Offsets(), 0
    for group, requested in commits:
        values, topic_ids = values_of(requested, lambda topic: topic.encode() * 2, at, 7)
        assert topic_ids == {each.topic: each.topic.encode() * 2 for each in requested}
        record_offsets = range(at, at + min(stored, len(requested)))
        at += len(requested)
        growth = together.growth(group, requested)
        known = together.bytes_of(group)
        together.put_all(group, requested, values, record_offsets, without)
        assert together.bytes_of(group) <= known + growth
        for each, value, record_offset in zip(requested, values, record_offsets, strict=False):
            if each.topic not in without:
                alone.put(group, each.topic, each.partition, value, record_offset)
        for name in ("g", "h", "i"):
            assert list(together.of(name)) == list(alone.of(name))
            assert together.bytes_of(name) == alone.bytes_of(name)
            assert together.has_any(name) == alone.has_any(name)
