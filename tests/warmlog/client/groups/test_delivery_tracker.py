"""The delivery tracker: which offsets may be committed."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from warmlog.client.consuming.stream import ConsumedRecord
from warmlog.client.groups.delivery_tracker import DeliveryTracker
from warmlog.protocol.partitions import TopicPartition


def record(topic: str, partition: int, offset: int) -> ConsumedRecord:
    return ConsumedRecord(topic=topic, partition=partition, offset=offset, timestamp=0, key=None, value=b"")


RECORDS = [record("a", 0, 5), record("b", 1, 7), record("a", 0, 8), record("a", 0, 9)]
AFTER = {("a", 0): 12, ("b", 1): 8, ("c", 2): 3}


def test_before_delivery_the_start_positions_are_committable() -> None:
    tracker = DeliveryTracker()
    assert tracker.committable(include_last=True) == {}
    tracker.reset(AFTER)
    assert tracker.committable(include_last=True) == tracker.committable(include_last=False) == AFTER


def test_a_record_is_committable_once_the_next_one_is_requested() -> None:
    tracker = DeliveryTracker()
    tracker.deliver(RECORDS, AFTER)
    assert tracker.committable(include_last=True) == {("a", 0): 5, ("b", 1): 7, ("c", 2): 3}
    next(tracker.remaining)
    next(tracker.remaining)
    assert tracker.committable(include_last=False) == {("a", 0): 8, ("b", 1): 7, ("c", 2): 3}
    assert tracker.committable(include_last=True) == {("a", 0): 8, ("b", 1): 8, ("c", 2): 3}
    assert [one.offset for one in tracker.remaining] == [8, 9]
    assert tracker.committable(include_last=False) == {("a", 0): 9, ("b", 1): 8, ("c", 2): 3}
    assert tracker.committable(include_last=True) == AFTER
    tracker.finish()
    assert tracker.committable(include_last=False) == AFTER


def test_a_list_delivered_at_once_is_committable_as_a_whole() -> None:
    tracker = DeliveryTracker()
    tracker.deliver_all(RECORDS, AFTER)
    assert list(tracker.remaining) == []
    assert tracker.committable(include_last=False) == {("a", 0): 5, ("b", 1): 7, ("c", 2): 3}
    assert tracker.committable(include_last=True) == AFTER


def test_records_after_a_position_can_be_revoked() -> None:
    tracker = DeliveryTracker()
    tracker.deliver_all(RECORDS, AFTER)
    tracker.revoke_after(2)
    assert tracker.committable(include_last=True) == {("a", 0): 8, ("b", 1): 8, ("c", 2): 3}
    assert tracker.committable(include_last=False) == {("a", 0): 5, ("b", 1): 7, ("c", 2): 3}


steps = st.lists(st.sampled_from(["give", "take", "take", "take", "cut", "settle"]), max_size=30)


@given(steps, st.data())
def test_committable_offsets_match_a_model_of_taken_records(steps: list[str], data: st.DataObject) -> None:
    """Compare with a model: the consecutive offsets of one partition."""
    place: TopicPartition = ("t", 0)
    tracker, position, taken = DeliveryTracker(), 0, 0
    tracker.reset({place: 0})
    in_hand = 0  # 1 while the record taken last is still being processed

    def check() -> None:
        assert tracker.committable(include_last=True)[place] == taken
        assert tracker.committable(include_last=False)[place] == taken - in_hand

    for step in steps:
        if step == "take":
            found: Any = next(tracker.remaining, None)
            if found is not None:
                assert found.offset == taken
                taken, in_hand = taken + 1, 1
        elif step == "cut":
            tracker.revoke()
            position = taken
        elif step == "settle":
            tracker.finish()
            position, in_hand = taken, 0
        else:
            tracker.finish()
            count = data.draw(st.integers(1, 5))
            position = taken + count
            tracker.deliver([record("t", 0, offset) for offset in range(taken, position)], {place: position})
            in_hand = 0
        check()


def test_records_that_were_kept_back_are_delivered_later_without_those_that_were_dropped() -> None:
    tracker = DeliveryTracker()
    tracker.deliver(RECORDS, AFTER)
    next(tracker.remaining)
    tracker.keep_back()
    assert list(tracker.remaining) == []
    assert tracker.committable(include_last=True) == {("a", 0): 8, ("b", 1): 7, ("c", 2): 3}
    assert tracker.committable(include_last=False) == {("a", 0): 5, ("b", 1): 7, ("c", 2): 3}
    tracker.finish()
    tracker.drop({("b", 1)})
    tracker.add({("a", 0): 0, ("d", 3): 4})
    assert tracker.committable(include_last=False) == {("a", 0): 8, ("c", 2): 3, ("d", 3): 4}
    kept = tracker.take_kept_back()
    assert kept == RECORDS[2:]
    tracker.deliver(kept, {("a", 0): 12, ("c", 2): 3, ("d", 3): 4})
    assert tracker.committable(include_last=True)["a", 0] == 8
    assert not tracker.take_kept_back()


def test_a_partition_that_moves_leaves_the_records_that_were_kept_back() -> None:
    tracker = DeliveryTracker()
    tracker.deliver(RECORDS, AFTER)
    next(tracker.remaining)
    tracker.keep_back()
    assert tracker.first_left(("a", 0)) == 8
    tracker.move(("a", 0), 2, keep_taken=False)
    assert tracker.committable(include_last=True)["a", 0] == 2
    assert tracker.take_kept_back() == [RECORDS[1]]


def test_revoked_records_are_not_kept_back() -> None:
    tracker = DeliveryTracker()
    tracker.deliver(RECORDS, AFTER)
    tracker.keep_back()
    tracker.revoke()
    assert not tracker.take_kept_back()
    assert tracker.committable(include_last=True) == {("a", 0): 5, ("b", 1): 7, ("c", 2): 3}
