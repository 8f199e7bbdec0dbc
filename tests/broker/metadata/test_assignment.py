from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.metadata.assignment import assign_replicas


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


@pytest.mark.parametrize(("partitions", "factor"), [(0, 1), (1, 0), (1, 4), (-1, 1)])
def test_impossible_counts_are_rejected(partitions: int, factor: int) -> None:
    with pytest.raises(ValueError, match=r"at least 1|larger than the number of brokers"):
        assign_replicas([1, 2, 3], partitions, factor, Random(0))
