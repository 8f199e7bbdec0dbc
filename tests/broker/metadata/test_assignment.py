from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.broker.metadata.assignment import assign_replicas


class _From(Random):
    """A generator with a fixed start."""

    def __init__(self, start: int) -> None:
        super().__init__(0)
        self._start = start

    def randrange(self, *_: int) -> int:
        return self._start


def test_partition_i_leads_on_broker_i_mod_n_and_replica_j_follows_j_further() -> None:
    assert assign_replicas([1, 2, 3], 4, 2, _From(0)) == ((1, 2), (2, 3), (3, 1), (1, 3))


def test_a_random_start_shifts_the_whole_assignment() -> None:
    assert assign_replicas([1, 2, 3], 4, 2, _From(2)) == ((3, 1), (1, 2), (2, 3), (3, 2))


def test_one_broker_holds_everything() -> None:
    assert assign_replicas([7], 3, 1, Random(1)) == ((7,), (7,), (7,))


@given(
    brokers=st.lists(st.integers(0, 100), min_size=1, max_size=8, unique=True),
    partitions=st.integers(1, 60),
    data=st.data(),
)
def test_leaders_and_replicas_are_spread_evenly_and_no_partition_has_two_on_one_broker(
    brokers: list[int], partitions: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(brokers)))
    assigned = assign_replicas(brokers, partitions, factor, Random(data.draw(st.integers())))
    assert all(len(set(replicas)) == factor for replicas in assigned)
    for counts in (Counter(r[0] for r in assigned), Counter(broker for r in assigned for broker in r)):
        numbers = [counts.get(broker, 0) for broker in brokers]
        assert max(numbers) - min(numbers) <= factor


@given(
    brokers=st.lists(st.integers(0, 100), min_size=2, max_size=8, unique=True),
    partitions=st.integers(1, 60),
    data=st.data(),
)
def test_fenced_brokers_lead_nothing_and_follow_only_where_others_are_too_few(
    brokers: list[int], partitions: int, data: st.DataObject
) -> None:
    alive_count = data.draw(st.integers(1, len(brokers) - 1))
    alive, fenced = brokers[:alive_count], brokers[alive_count:]
    factor = data.draw(st.integers(1, len(brokers)))
    assigned = assign_replicas(alive, partitions, factor, Random(data.draw(st.integers())), fenced=fenced)
    assert all(len(set(replicas)) == factor for replicas in assigned)
    assert all(set(replicas[: min(factor, alive_count)]) <= set(alive) for replicas in assigned)


def test_replicas_on_fenced_brokers_are_spread() -> None:
    assigned = assign_replicas([1], 4, 2, Random(0), fenced=[2, 3])
    assert Counter(replicas[1] for replicas in assigned) == {2: 2, 3: 2}


def test_a_fenced_broker_follows_rather_than_a_second_one_of_a_rack() -> None:
    assigned = assign_replicas([1, 2], 8, 2, Random(0), fenced=[3], racks={1: "a", 2: "a", 3: "b"})
    assert {replicas[1] for replicas in assigned} == {3}


def test_without_a_broker_that_is_alive_nothing_is_placed() -> None:
    with pytest.raises(ValueError, match="every broker is fenced"):
        assign_replicas([], 1, 1, Random(0), fenced=[1])


@pytest.mark.parametrize(("partitions", "factor"), [(0, 1), (1, 0), (1, 4), (-1, 1)])
def test_impossible_counts_are_rejected(partitions: int, factor: int) -> None:
    with pytest.raises(ValueError, match=r"at least 1|larger than the number of brokers"):
        assign_replicas([1, 2, 3], partitions, factor, Random(0))
