"""No step, in no order, loses a committed record or gives an epoch two writers; without any one of the rules, it does.

Run `python -m tests.broker.cluster.model.walk SECONDS` for as many walks as you like.
"""

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.broker.cluster.model.cases import CASES, Stage
from tests.broker.cluster.model.claims import Bad
from tests.broker.cluster.model.removals import REMOVALS, removed
from tests.broker.cluster.model.walk import NAMES, STEPS, walk
from tests.broker.cluster.model.world import OTHERS_ARE_SILENT, World

WALKS = 1000


def test_nothing_is_lost_in_random_walks() -> None:
    worlds = [walk(seed) for seed in range(WALKS)]
    assert sum(len(world.claims.committed) for world in worlds) > WALKS / 2
    assert sum(world.elections for world in worlds) > WALKS / 2
    assert sum(len(world.claims.given_up) for world in worlds) > 0, "the walks are harsh enough to destroy all copies"


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_lost_in_a_case(name: str) -> None:
    case, min_isr = CASES[name]
    case(Stage(frozenset(), min_isr))


@pytest.mark.parametrize("name", REMOVALS)
def test_records_are_lost_without_a_rule(name: str) -> None:
    case, min_isr = CASES[name]
    with removed(name) as faults, pytest.raises(Bad):
        case(Stage(faults | {OTHERS_ARE_SILENT}, min_isr))


def test_every_case_has_its_rule() -> None:
    assert CASES.keys() == REMOVALS.keys()


class Walk(RuleBasedStateMachine):
    """The same steps, which hypothesis shortens to the ones that matter."""

    @initialize(min_isr=st.integers(1, 3), flushes=st.booleans())
    def begin(self, min_isr: int, flushes: bool) -> None:
        self.world = World(Random(0), min_isr=min_isr, flushes=flushes)

    @rule(name=st.sampled_from(NAMES), choice=st.integers(0, 99))
    def step(self, name: str, choice: int) -> None:
        STEPS[name][1](self.world, Random(choice))

    @invariant()
    def check(self) -> None:
        if hasattr(self, "world"):
            self.world.claims.check()


Walk.TestCase.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)
TestWalk = Walk.TestCase
