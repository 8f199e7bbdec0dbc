"""Batches of delivery states are combined as Kafka's PersisterStateBatchCombiner does (cases of its test)."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.broker.share.state.batches import combine, has_overlaps
from warmlog.protocol.kafka.messages.share.state import StateBatch

Batches = list[tuple[int, int, int, int]]  # first and last offset, state, deliveries

SAME_STATE: list[tuple[Batches, Batches, Batches]] = [
    ([(100, 110, 0, 1)], [(100, 110, 0, 1)], [(100, 110, 0, 1)]),
    ([(100, 110, 0, 1)], [(100, 105, 0, 1)], [(100, 110, 0, 1)]),
    ([(100, 110, 0, 1)], [(100, 115, 0, 1)], [(100, 115, 0, 1)]),
    ([(100, 110, 0, 1)], [(105, 108, 0, 1)], [(100, 110, 0, 1)]),
    ([(100, 110, 0, 1)], [(105, 110, 0, 1)], [(100, 110, 0, 1)]),
    ([(100, 110, 0, 1)], [(105, 115, 0, 1)], [(100, 115, 0, 1)]),
    ([(100, 110, 0, 1)], [(111, 115, 0, 1)], [(100, 115, 0, 1)]),
]
OTHER_STATE: list[tuple[Batches, Batches, Batches]] = [
    ([(100, 110, 0, 1)], [(100, 110, 0, 2)], [(100, 110, 0, 2)]),
    ([(100, 110, 0, 3)], [(100, 110, 0, 1)], [(100, 110, 0, 3)]),
    ([(100, 110, 0, 1)], [(100, 105, 0, 2)], [(100, 105, 0, 2), (106, 110, 0, 1)]),
    ([(100, 110, 0, 3)], [(100, 105, 0, 1)], [(100, 110, 0, 3)]),
    ([(100, 110, 0, 1)], [(100, 115, 0, 2)], [(100, 115, 0, 2)]),
    ([(100, 110, 0, 3)], [(100, 115, 0, 1)], [(100, 110, 0, 3), (111, 115, 0, 1)]),
    ([(100, 115, 0, 1)], [(105, 110, 1, 1)], [(100, 104, 0, 1), (105, 110, 1, 1), (111, 115, 0, 1)]),
    ([(100, 115, 1, 1)], [(105, 110, 0, 1)], [(100, 115, 1, 1)]),
    ([(100, 110, 0, 1)], [(105, 110, 0, 2)], [(100, 104, 0, 1), (105, 110, 0, 2)]),
    ([(100, 110, 0, 2)], [(105, 110, 0, 1)], [(100, 110, 0, 2)]),
    ([(100, 110, 0, 1)], [(105, 115, 0, 2)], [(100, 104, 0, 1), (105, 115, 0, 2)]),
    ([(100, 110, 0, 2)], [(105, 115, 0, 1)], [(100, 110, 0, 2), (111, 115, 0, 1)]),
]
SEVERAL: list[tuple[Batches, Batches, Batches]] = [
    (
        [(100, 110, 0, 1), (121, 130, 0, 1)],
        [(111, 119, 2, 2), (116, 123, 2, 2)],
        [(100, 110, 0, 1), (111, 123, 2, 2), (124, 130, 0, 1)],
    ),
    (
        [(100, 110, 0, 1)],
        [(101, 105, 1, 2), (101, 115, 2, 2), (101, 120, 3, 2)],
        [(100, 100, 0, 1), (101, 120, 3, 2)],
    ),
    (
        [(111, 120, 0, 1)],
        [(111, 113, 0, 2), (114, 114, 2, 1), (115, 119, 0, 2)],
        [(111, 113, 0, 2), (114, 114, 2, 1), (115, 119, 0, 2), (120, 120, 0, 1)],
    ),
]
WITH_START: list[tuple[Batches, Batches, int, Batches]] = [
    ([(100, 130, 0, 1)], [], 120, [(120, 130, 0, 1)]),
    ([], [(100, 130, 0, 1)], 120, [(120, 130, 0, 1)]),
    ([], [], 120, []),
    ([(100, 110, 0, 1)], [(90, 99, 2, 1)], 111, []),
    (
        [(100, 110, 0, 1), (121, 130, 0, 1)],
        [(111, 119, 2, 2), (116, 123, 2, 2)],
        120,
        [(120, 123, 2, 2), (124, 130, 0, 1)],
    ),
]


def states(batches: Batches) -> list[StateBatch]:
    return [StateBatch(*each) for each in batches]


@pytest.mark.parametrize(("stored", "added", "expected"), [*SAME_STATE, *OTHER_STATE, *SEVERAL])
def test_the_most_deliveries_win_then_the_highest_state(stored: Batches, added: Batches, expected: Batches) -> None:
    assert combine(states(stored), states(added), -1) == tuple(states(expected))


@pytest.mark.parametrize(("stored", "added", "start", "expected"), WITH_START)
def test_what_is_before_the_start_offset_is_left_out(
    stored: Batches, added: Batches, start: int, expected: Batches
) -> None:
    assert combine(states(stored), states(added), start) == tuple(states(expected))


def by_offset(batches: list[StateBatch], start: int) -> dict[int, tuple[int, int]]:
    best: dict[int, tuple[int, int]] = {}
    for first, last, state, deliveries in batches:
        for offset in range(max(first, start), last + 1):
            best[offset] = max(best.get(offset, (0, 0)), (deliveries, state))
    return best


some = st.lists(
    st.builds(
        lambda first, length, state, deliveries: StateBatch(first, first + length, state, deliveries),
        st.integers(0, 60),
        st.integers(0, 9),
        st.sampled_from([0, 2, 4]),
        st.integers(1, 3),
    ),
    max_size=12,
)


@given(some, some, st.integers(-1, 70))
def test_every_offset_has_the_state_that_wins_in_the_shortest_list(
    stored: list[StateBatch], added: list[StateBatch], start: int
) -> None:
    combined = combine(combine((), stored, -1), added, start)
    assert by_offset(list(combined), -1) == by_offset([*stored, *added], start)
    assert not has_overlaps(combined)
    for earlier, later in pairwise(combined):
        assert earlier.last_offset + 1 < later.first_offset or earlier[2:] != later[2:]
