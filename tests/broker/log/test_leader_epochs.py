from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from warmlog.broker.log.index.leader_epochs import UNDEFINED, LeaderEpochs


def test_epochs_begin_where_they_are_assigned() -> None:
    epochs = LeaderEpochs()
    assert epochs.latest == UNDEFINED
    epochs.assign(0, 0)
    epochs.assign(2, 10)
    assert epochs.entries == ((0, 0), (2, 10))
    assert epochs.latest == epochs.current == 2
    assert epochs.changed


def test_the_same_epoch_again_keeps_its_first_offset() -> None:
    epochs = LeaderEpochs([(2, 10)])
    epochs.assign(2, 15)
    assert epochs.entries == ((2, 10),)
    assert not epochs.changed


def test_an_epoch_that_wrote_nothing_gives_way_to_the_next() -> None:
    epochs = LeaderEpochs([(0, 0), (1, 10)])
    epochs.assign(2, 10)
    assert epochs.entries == ((0, 0), (2, 10))


def test_epochs_without_records_can_be_forgotten() -> None:
    epochs = LeaderEpochs([(0, 0), (1, 10), (4, 12)])
    epochs.drop_empty(0, 12)
    assert (epochs.entries, epochs.current) == (((0, 0), (1, 10)), 1)


def test_an_empty_log_keeps_the_epoch_of_the_records_that_were_removed() -> None:
    epochs = LeaderEpochs([(3, 12)])
    epochs.drop_empty(12, 12)
    assert (epochs.entries, epochs.current) == (((3, 12),), 3)


def test_an_epoch_that_was_current_without_records_is_forgotten() -> None:
    epochs = LeaderEpochs([(4, 0)])
    epochs.truncate_from_end(0)
    assert epochs.current == 4
    epochs.drop_empty(0, 0)
    assert epochs.current == 0


def test_entries_that_are_contradicted_go() -> None:
    epochs = LeaderEpochs([(0, 0), (3, 10), (5, 20)])
    epochs.assign(4, 15)
    assert epochs.entries == ((0, 0), (3, 10), (4, 15))
    assert epochs.current == 5


def test_current_survives_truncation() -> None:
    epochs = LeaderEpochs([(0, 0), (3, 10)])
    epochs.truncate_from_end(10)
    assert epochs.entries == ((0, 0),)
    assert epochs.current == 3


def test_truncation_from_the_start_moves_the_epoch_that_holds_it() -> None:
    epochs = LeaderEpochs([(0, 0), (1, 10), (2, 20)])
    epochs.truncate_from_start(15)
    assert epochs.entries == ((1, 15), (2, 20))
    epochs.truncate_from_start(20)
    assert epochs.entries == ((2, 20),)


def test_the_epoch_of_an_offset_is_the_last_that_began_before_it() -> None:
    epochs = LeaderEpochs([(1, 5), (3, 10)])
    assert [epochs.epoch_of(offset) for offset in (4, 5, 9, 10, 99)] == [UNDEFINED, 1, 1, 3, 3]


def test_the_end_of_an_epoch_is_where_the_next_one_began() -> None:
    epochs = LeaderEpochs([(2, 5), (4, 10)])
    assert epochs.end_offset(2, 99) == (2, 10)
    assert epochs.end_offset(3, 99) == (2, 10)
    assert epochs.end_offset(4, 99) == (4, 99)
    assert epochs.end_offset(1, 99) == (1, 5)
    assert epochs.end_offset(5, 99) == (UNDEFINED, UNDEFINED)
    assert epochs.end_offset(UNDEFINED, 99) == (UNDEFINED, UNDEFINED)
    assert LeaderEpochs().end_offset(0, 99) == (UNDEFINED, UNDEFINED)


@given(st.lists(st.tuples(st.integers(-2, 20), st.integers(-2, 50)), max_size=20))
def test_epochs_and_offsets_always_increase(assigned: list[tuple[int, int]]) -> None:
    entries = LeaderEpochs(assigned).entries
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries))
    assert LeaderEpochs(assigned).current >= max([0, *(epoch for epoch, _ in entries)])
