"""How far a reader is with what it was given."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from warmlog.client.handed import Handed, Place
from warmlog.client.stream import ConsumedRecord


def record(topic: str, partition: int, offset: int) -> ConsumedRecord:
    return ConsumedRecord(topic=topic, partition=partition, offset=offset, timestamp=0, key=None, value=b"")


RECORDS = [record("a", 0, 5), record("b", 1, 7), record("a", 0, 8), record("a", 0, 9)]
AFTER = {("a", 0): 12, ("b", 1): 8, ("c", 2): 3}


def test_nothing_given_is_done_where_reading_begins() -> None:
    handed = Handed()
    assert handed.done(with_last=True) == {}
    handed.reset(AFTER)
    assert handed.done(with_last=True) == handed.done(with_last=False) == AFTER


def test_a_record_is_done_when_the_next_one_is_asked_for() -> None:
    handed = Handed()
    handed.give(RECORDS, AFTER)
    assert handed.done(with_last=True) == {("a", 0): 5, ("b", 1): 7, ("c", 2): 3}
    next(handed.left)
    next(handed.left)
    assert handed.done(with_last=False) == {("a", 0): 8, ("b", 1): 7, ("c", 2): 3}
    assert handed.done(with_last=True) == {("a", 0): 8, ("b", 1): 8, ("c", 2): 3}
    assert [one.offset for one in handed.left] == [8, 9]
    assert handed.done(with_last=False) == {("a", 0): 9, ("b", 1): 8, ("c", 2): 3}
    assert handed.done(with_last=True) == AFTER
    handed.settle()
    assert handed.done(with_last=False) == AFTER


def test_a_whole_list_is_done_at_once() -> None:
    handed = Handed()
    handed.give_whole(RECORDS, AFTER)
    assert list(handed.left) == []
    assert handed.done(with_last=False) == {("a", 0): 5, ("b", 1): 7, ("c", 2): 3}
    assert handed.done(with_last=True) == AFTER


def test_only_the_beginning_of_a_list_is_taken() -> None:
    handed = Handed()
    handed.give_whole(RECORDS, AFTER)
    handed.cut_at(2)
    assert handed.done(with_last=True) == {("a", 0): 8, ("b", 1): 8, ("c", 2): 3}
    assert handed.done(with_last=False) == {("a", 0): 5, ("b", 1): 7, ("c", 2): 3}


steps = st.lists(st.sampled_from(["give", "take", "take", "take", "cut", "settle"]), max_size=30)


@given(steps, st.data())
def test_what_is_done_is_what_a_list_of_all_that_was_taken_says(steps: list[str], data: st.DataObject) -> None:
    """Against a model: the offsets of one partition, one after the other."""
    place: Place = ("t", 0)
    handed, position, taken = Handed(), 0, 0
    handed.reset({place: 0})
    in_hand = 0  # 1 while the record taken last may not be done

    def check() -> None:
        assert handed.done(with_last=True)[place] == taken
        assert handed.done(with_last=False)[place] == taken - in_hand

    for step in steps:
        if step == "take":
            found: Any = next(handed.left, None)
            if found is not None:
                assert found.offset == taken
                taken, in_hand = taken + 1, 1
        elif step == "cut":
            handed.cut()
            position = taken
        elif step == "settle":
            handed.settle()
            position, in_hand = taken, 0
        else:
            handed.settle()
            count = data.draw(st.integers(1, 5))
            position = taken + count
            handed.give([record("t", 0, offset) for offset in range(taken, position)], {place: position})
            in_hand = 0
        check()
