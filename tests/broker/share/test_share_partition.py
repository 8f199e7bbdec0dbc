"""The automaton of share-partitions. Cases from kafka.server.share.SharePartitionTest where they say what holds."""

import pytest

from tests.broker.share.partition_driver import Group, ranges
from warmlog.broker.share.partitions.acquiring import MAX_RANGES
from warmlog.broker.share.partitions.spans import RecordState
from warmlog.broker.share.partitions.state import AcknowledgeError
from warmlog.broker.share.partitions.transitions import DeadLetter, Transition
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.share.state import StateBatch

AVAILABLE, ACKNOWLEDGED, ARCHIVING, ARCHIVED = 0, 2, 3, 4
FIVES = ((0, 4), (5, 9), (10, 14))


def refused(group: Group, member: str, text: str) -> ErrorCode:
    before = str(group)
    with pytest.raises(AcknowledgeError) as refusal:
        group.begin(member, text)
    assert str(group).replace(" | ", "") != "" or before == ""
    return refusal.value.code


# -- acquire: SharePartitionTest.testAcquire* --


def test_whole_batches_are_acquired_up_to_the_number_of_records() -> None:
    group = Group(*FIVES)
    assert group.fetch("a", 6) == [(0, 9, 1)]
    assert group.fetch("b", 100) == [(10, 14, 1)]
    assert group.fetch("c") == []
    assert str(group) == "0-9 acquired a 1 | 10-14 acquired b 1"


def test_not_one_record_more_is_acquired_in_exact_mode() -> None:
    group = Group(*FIVES)
    assert group.fetch("a", 3, is_exact=True) == [(0, 2, 1)]
    assert group.fetch("b", 3, is_exact=True) == [(3, 5, 1)]
    assert group.fetch("a") == [(6, 14, 1)]


def test_acquired_records_are_divided_into_units_of_about_the_batch_size() -> None:
    assert Group(*FIVES).fetch("a", batch_size=5) == [(0, 4, 1), (5, 9, 1), (10, 14, 1)]
    assert Group(*FIVES).fetch("a", batch_size=7) == [(0, 9, 1), (10, 14, 1)]
    assert Group((0, 14)).fetch("a", batch_size=5) == [(0, 14, 1)]


def test_a_group_that_begins_within_a_batch_acquires_from_there() -> None:
    group = Group(*FIVES, start=7)
    assert group.fetch("a") == [(7, 14, 1)]


def test_no_more_is_in_flight_than_there_are_locks_apart_from_the_rest_of_a_batch() -> None:
    group = Group((0, 4), (5, 14), (15, 19), max_locks=8)
    assert group.fetch("a") == [(0, 14, 1)]
    assert not group.partition.can_acquire()
    assert group.fetch("a") == []
    group.ack("a", "0-9 accept")
    assert group.partition.in_flight == 5
    assert group.fetch("b") == [(15, 19, 1)]


def test_released_records_are_acquired_again_although_there_are_no_locks_left() -> None:
    group = Group((0, 9), (10, 19), max_locks=10)
    group.fetch("a", 10)
    group.ack("a", "3-5 release")
    assert group.fetch("b") == [(3, 5, 2)]
    assert group.fetch("b") == []


def test_records_between_that_are_held_are_skipped() -> None:
    group = Group(*FIVES)
    group.fetch("a", 15)
    group.ack("a", "0-1 release, 8-8 release")
    assert group.fetch("b") == [(0, 1, 2), (8, 8, 2)]


def test_available_records_that_compaction_removed_are_archived() -> None:
    group = Group(*FIVES, (20, 24))
    group.fetch("a")
    group.ack("a", "5-24 release")
    group.log = [group.log[0], group.log[3]]
    assert group.fetch("b", 5) == [(20, 24, 2)]
    assert str(group) == "0-4 acquired a 1 | 5-19 archived 1 | 20-24 acquired b 2"
    group.ack("a", "0-4 accept")
    assert group.partition.start_offset == 20


def test_offsets_that_compaction_removed_before_the_first_delivery_are_skipped() -> None:
    group = Group((0, 4), (10, 14))
    assert group.fetch("a", 5) == [(0, 4, 1)]
    assert group.fetch("a") == [(10, 14, 1)]
    group.ack("a", "0-4 accept")
    assert group.partition.start_offset == 10


def test_a_group_that_begins_before_the_first_record_moves_there() -> None:
    group = Group((10, 14))
    assert group.fetch("a") == [(10, 14, 1)]
    assert (group.partition.start_offset, group.partition.in_flight) == (10, 5)


# -- acknowledge: testAcknowledge* --


@pytest.mark.parametrize(
    ("text", "written", "left"),
    [
        ("0-14 accept", [(0, 14, ACKNOWLEDGED, 1)], ""),
        ("0-14 reject", [(0, 14, ARCHIVED, 1)], ""),
        ("0-14 gap", [(0, 14, ARCHIVED, 1)], ""),
        ("0-14 release", [(0, 14, AVAILABLE, 1)], "0-14 available 1"),
        ("5-9 accept", [(5, 9, ACKNOWLEDGED, 1)], "0-4 acquired a 1 | 5-9 acknowledged 1 | 10-14 acquired a 1"),
        ("0-2 accept", [(0, 2, ACKNOWLEDGED, 1)], "3-14 acquired a 1"),
        (
            "0-3 accept reject gap release",
            [(0, 0, ACKNOWLEDGED, 1), (1, 2, ARCHIVED, 1), (3, 3, AVAILABLE, 1)],
            "3-3 available 1 | 4-14 acquired a 1",
        ),
        (
            "0-1 accept, 2-2 release, 3-14 accept",
            [(0, 1, ACKNOWLEDGED, 1), (2, 2, AVAILABLE, 1), (3, 14, ACKNOWLEDGED, 1)],
            "2-2 available 1 | 3-14 acknowledged 1",
        ),
    ],
)  # fmt: skip
def test_an_acknowledgement_stores_and_leaves(text: str, written: object, left: str) -> None:
    group = Group(*FIVES)
    group.fetch("a")
    assert group.ack("a", text) == written
    assert str(group) == left


@pytest.mark.parametrize(
    ("member", "text", "code"),
    [
        ("b", "0-4 accept", ErrorCode.INVALID_RECORD_STATE),  # held by a
        ("a", "5-6 accept", ErrorCode.INVALID_RECORD_STATE),  # released already
        ("a", "0-14 accept", ErrorCode.INVALID_RECORD_STATE),  # in part
        ("a", "15-16 accept", ErrorCode.INVALID_REQUEST),  # never delivered
        ("a", "14-15 accept", ErrorCode.INVALID_REQUEST),
        ("a", "0-4 accept, 5-6 accept", ErrorCode.INVALID_RECORD_STATE),  # the first batch is undone
    ],
)
def test_an_acknowledgement_of_what_is_not_held_is_refused(member: str, text: str, code: ErrorCode) -> None:
    group = Group(*FIVES, (15, 19))
    group.fetch("a", 15)
    group.ack("a", "5-6 release")
    before = str(group), group.partition.complete_count
    assert refused(group, member, text) is code
    assert (str(group), group.partition.complete_count) == before


def test_nothing_of_an_empty_share_partition_can_be_acknowledged() -> None:
    assert refused(Group(*FIVES), "a", "0-4 accept") is ErrorCode.INVALID_RECORD_STATE


def test_acknowledgements_before_the_start_offset_are_ignored() -> None:
    group = Group(*FIVES)
    group.fetch("a")
    group.ack("a", "0-4 accept")
    assert group.ack("a", "0-4 accept") == []
    assert group.ack("b", "0-4 reject, 2-3 release") == []
    assert group.ack("a", "3-6 accept") == [(5, 6, ACKNOWLEDGED, 1)]


def test_records_are_neither_acquired_nor_acknowledged_while_a_change_is_being_stored() -> None:
    group = Group(*FIVES)
    group.fetch("a")
    transition = group.begin("a", "0-4 release")
    assert group.partition.fetch_offset() == 15
    assert refused(group, "a", "0-4 accept") is ErrorCode.INVALID_RECORD_STATE
    assert group.partition.complete(transition, 0.0, is_stored=True)
    assert group.partition.fetch_offset() == 0


def test_a_change_that_is_not_stored_is_undone() -> None:
    group = Group(*FIVES)
    group.fetch("a")
    assert group.ack("a", "0-4 accept, 5-9 release", is_stored=False) == [(0, 4, 2, 1), (5, 9, 0, 1)]
    assert str(group) == "0-14 acquired a 1"
    assert group.partition.complete_count == 0
    group.ack("a", "0-9 accept")
    assert group.partition.start_offset == 10


def test_a_lock_that_ran_out_while_its_change_failed_to_be_stored_is_released() -> None:
    group = Group(*FIVES)
    group.fetch("a")
    transition = group.begin("a", "0-4 accept")
    assert group.wait(30) == [(5, 14, AVAILABLE, 1)]
    group.partition.complete(transition, group.now, is_stored=False)
    assert str(group) == "0-14 available 1"


# -- locks --


def test_a_lock_that_runs_out_makes_its_records_available() -> None:
    group = Group(*FIVES)
    group.fetch("a", 5)
    assert group.partition.wake_at_s == 30
    group.wait(20)
    group.fetch("b", 5)
    assert group.wait(10) == [(0, 4, AVAILABLE, 1)]
    assert group.partition.wake_at_s == 50
    assert group.fetch("c", 5) == [(0, 4, 2)]
    assert refused(group, "a", "0-4 accept") is ErrorCode.INVALID_RECORD_STATE


def test_a_renewed_lock_lasts_from_then_on() -> None:
    group = Group(*FIVES)
    group.fetch("a", 5)
    group.wait(20)
    assert group.ack("a", "1-2 renew") == []
    assert group.wait(10) == [(0, 0, AVAILABLE, 1), (3, 4, AVAILABLE, 1)]
    assert group.wait(20) == [(1, 2, AVAILABLE, 1)]


def test_locks_are_not_renewed_where_the_group_does_not_allow_it() -> None:
    group = Group(*FIVES, renews=False)
    group.fetch("a", 5)
    assert refused(group, "a", "0-4 renew") is ErrorCode.INVALID_RECORD_STATE


def test_what_a_member_holds_is_given_back_when_it_leaves() -> None:
    group = Group(*FIVES)
    group.fetch("a", 5)
    group.fetch("b", 5)
    assert group.leave("a") == [(0, 4, AVAILABLE, 1)]
    assert str(group) == "0-4 available 1 | 5-9 acquired b 1"


# -- deliveries --


@pytest.mark.parametrize(("dead_letters", "state"), [(False, ARCHIVED), (True, ARCHIVING)])
@pytest.mark.parametrize("end", ["release", "lock", "leave"])
def test_a_record_is_not_delivered_more_often_than_allowed(end: str, dead_letters: bool, state: int) -> None:
    group = Group((0, 0), max_deliveries=2, dead_letters=dead_letters)
    written = []
    for deliveries in (1, 2):
        assert group.fetch("a") == [(0, 0, deliveries)]
        match end:
            case "release":
                written = group.ack("a", "0 release")
            case "lock":
                written = group.wait(30)
            case "leave":
                written = group.leave("a")
    assert written == [(0, 0, state, 2)]
    assert group.fetch("a") == []
    assert str(group) == ("0-0 archiving 2" if dead_letters else "")


def test_a_rejected_record_waits_for_its_dead_letter() -> None:
    group = Group((0, 4), dead_letters=True)
    group.fetch("a")
    assert group.ack("a", "0-4 reject") == [(0, 4, ARCHIVING, 1)]
    assert group.partition.complete_count == 0
    assert group.partition.archiving() == [DeadLetter(0, 4, 1, None)]
    assert list(group.partition.written(0, 4)) == [StateBatch(0, 4, RecordState.ARCHIVED, 1)]
    assert group.partition.trim()
    assert group.partition.start_offset == 5


def test_records_that_failed_often_are_delivered_in_ever_smaller_parts() -> None:
    group = Group((0, 15), (16, 20))
    delivered = []
    for _ in range(3):
        delivered.append(group.fetch("a", 16))
        group.leave("a")
    assert delivered == [[(0, 15, 1)], [(0, 15, 2)], [(0, 15, 3)]]
    assert group.fetch("a", 100) == [(0, 7, 4)]  # half of them, and nothing else
    assert group.fetch("b", 100) == [(8, 15, 4)]
    group.leave("a")
    assert [group.fetch(name, 100) for name in "cd"] == [[(0, 0, 5)], [(1, 1, 5)]]  # the last time each alone


def test_records_that_failed_often_are_not_delivered_with_others() -> None:
    group = Group((0, 3), (4, 7))
    group.fetch("a", batch_size=4)
    for _ in range(2):
        group.ack("a", "4-7 release")
        group.fetch("a")
    group.ack("a", "0-7 release")
    assert group.fetch("a") == [(0, 3, 2)]
    assert group.fetch("a") == [(4, 5, 4)]


# -- the log --


def test_the_log_start_offset_drops_records_whoever_holds_them() -> None:
    group = Group(*FIVES)
    group.fetch("a", 15)
    group.ack("a", "0-1 release, 3-3 accept")
    assert group.partition.move_start(7)
    assert str(group) == "7-14 acquired a 1"
    assert (group.partition.start_offset, group.partition.complete_count) == (7, 0)
    assert group.ack("a", "0-6 accept") == []
    assert group.partition.move_start(20)
    assert (group.partition.start_offset, group.partition.next_offset, str(group)) == (20, 20, "")
    assert not group.partition.move_start(20)


def test_a_change_of_dropped_records_is_completed() -> None:
    group = Group(*FIVES)
    group.fetch("a", 15)
    transition = group.begin("a", "0-9 accept")
    group.partition.move_start(7)
    group.partition.complete(transition, 0.0, is_stored=True)
    assert group.partition.start_offset == 10


def test_records_of_aborted_transactions_are_archived_not_delivered() -> None:
    group = Group(*FIVES, (15, 19))
    assert group.fetch("a", aborted=(5, 15)) == [(0, 4, 1), (10, 14, 1)]
    assert str(group) == "0-4 acquired a 1 | 5-9 archived 1 | 10-14 acquired a 1 | 15-19 archived 1"
    assert group.partition.complete_count == 10


def test_a_fetch_of_aborted_records_alone_moves_on() -> None:
    group = Group(*FIVES)
    assert group.fetch("a", 5, aborted=(0,)) == []
    assert group.partition.start_offset == 5
    assert group.fetch("a", 5) == [(5, 9, 1)]


# -- stored state: testMaybeInitialize* --


def test_stored_state_is_continued_and_its_gaps_are_delivered() -> None:
    state = [StateBatch(2, 3, ACKNOWLEDGED, 1), StateBatch(4, 4, AVAILABLE, 3), StateBatch(7, 9, ARCHIVED, 2)]
    group = Group(*FIVES, state=state)
    assert str(group) == ("0-1 available 0 | 2-3 acknowledged 1 | 4-4 available 3 | 5-6 available 0 | 7-9 archived 2")
    assert (group.partition.next_offset, group.partition.complete_count) == (10, 5)
    assert group.fetch("a", 2) == [(0, 1, 1)]


def test_stored_state_that_is_done_moves_the_start_offset() -> None:
    group = Group(*FIVES, state=[StateBatch(0, 3, ACKNOWLEDGED, 1), StateBatch(4, 4, ARCHIVED, 1)])
    assert (group.partition.start_offset, group.partition.next_offset, str(group)) == (5, 5, "")


@pytest.mark.parametrize(
    "state", [[(5, 4, 0, 1)], [(0, 4, 1, 1)], [(0, 4, 0, 1), (4, 5, 0, 1)], [(0, 4, 7, 1)]], ids=str
)
def test_impossible_stored_state_is_refused(state: list[tuple[int, int, int, int]]) -> None:
    with pytest.raises(ValueError, match=r"[0-9]"):
        Group(state=[StateBatch(*each) for each in state])


def test_a_state_batch_before_the_start_offset_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot follow"):
        Group(start=5, state=[StateBatch(4, 9, 0, 1)])


# -- size --


def test_many_acknowledgements_are_taken_in_steps_and_stay_few_spans() -> None:
    group = Group((0, 9_999))
    group.fetch("a")
    transition = Transition()
    text = "0-9999 " + " ".join(["accept", "release"] * 5_000)
    steps = sum(1 for _ in group.partition.acknowledge("a", ranges(text), 0.0, transition))
    assert steps > 10
    assert len(transition.changes) == 10_000
    group.partition.complete(transition, 0.0, is_stored=True)
    for first in range(1, 10_000, 2 * MAX_RANGES):  # not all of them in one piece
        assert group.fetch("a") == [(offset, offset, 2) for offset in range(first, first + 2 * MAX_RANGES, 2)]
    for offset in range(1, 10_000, 2):
        group.ack("a", f"{offset} accept")
    assert str(group) == ""


def test_ten_thousand_share_partitions_at_rest_take_little_memory() -> None:
    group = Group((0, 1_999))
    group.fetch("a", batch_size=500)
    assert len(group.partition.spans) <= 4
