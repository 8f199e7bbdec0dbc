from itertools import islice
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from warmlog.protocol.backoff import FIRST_S, JITTER, MAX_S, delay_s, delays_s


@given(st.integers())
def test_delays_double_up_to_the_maximum_with_jitter(seed: int) -> None:
    expected = FIRST_S
    for delay in islice(delays_s(Random(seed)), 20):
        assert expected * (1 - JITTER) <= delay <= expected * (1 + JITTER)
        expected = min(2 * expected, MAX_S)
    assert expected == MAX_S


@given(st.integers(1, 10_000), st.integers())
def test_a_single_delay_depends_on_the_attempt_number(attempt: int, seed: int) -> None:
    expected = min(FIRST_S * 2 ** min(attempt - 1, 20), MAX_S)
    assert expected * (1 - JITTER) <= delay_s(attempt, Random(seed)) <= expected * (1 + JITTER)
