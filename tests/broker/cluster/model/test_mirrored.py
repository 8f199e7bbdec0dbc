"""A mirror in a cluster: no step loses what the source still has, or gives an epoch two writers; nor after a promotion.

Run `python -m tests.broker.cluster.model.test_mirrored SECONDS [FIRST_SEED]` for as many walks as you like.
"""

import sys
import time
from collections.abc import Callable, Mapping
from random import Random

import pytest

from tests.broker.cluster.model.cases import Stage
from tests.broker.cluster.model.claims import Bad
from tests.broker.cluster.model.mirrored import (
    COPIES_LATER_EPOCHS,
    CUTS_AT_ONCE,
    KNOWS_CURRENT,
    MIRRORED_STEPS,
    PROMOTES_EARLY,
    MirroredWorld,
)
from tests.broker.cluster.model.walk import walk

WALKS = 600


class MirroredStage(Stage):
    """A world with a source, and directions for its brokers."""

    world: MirroredWorld

    def __init__(self, faults: frozenset[str], min_isr: int = 1) -> None:
        self.world = MirroredWorld(Random(0), min_isr=min_isr, faults=faults)
        self.brokers = self.world.brokers

    def produce(self, count: int = 1) -> None:
        for _ in range(count):
            self.world.produce()

    def copy(self, leader: int, *followers: int) -> None:
        """Let a leader copy all that the source has, in as many epochs as that takes, and followers from it."""
        for _ in range(8):
            self.world.copy_source(self.brokers[leader])
            self.all_look()
        self.replicate(*followers)

    def promote(self, leader: int) -> None:
        self.world.ask_promotion(self.brokers[3])
        self.all_look()
        self.world.promote(self.brokers[leader])
        self.all_look()


def the_source_loses_what_a_follower_has(stage: MirroredStage) -> None:
    """Broker 1 has an old record at an offset where the leader, which knew that, has committed another one."""
    stage.produce()
    stage.copy(0, 1, 2)
    stage.produce()
    stage.copy(0, 1)
    stage.world.lose_at_source(1)
    stage.world.copy_source(stage.brokers[0])  # which begins the source's epoch
    stage.all_look()
    stage.replicate(1)
    stage.produce()
    stage.copy(0, 2)
    stage.leave(2)
    stage.leave(0)
    stage.world.claims.check()


def the_leader_of_a_promotion_dies(stage: MirroredStage) -> None:
    """The ends of partitions are reported as promoted; what nobody else has does not count."""
    stage.produce()
    stage.world.copy_source(stage.brokers[0])
    stage.promote(0)
    promoted_at = stage.world.promoted_at()
    stage.leave(0)
    if promoted_at is not None and len(stage.brokers[1].log) < promoted_at:
        raise Bad("the next leader lacks records that were reported as promoted")


def a_follower_has_records_of_a_later_epoch_than_its_leader(stage: MirroredStage) -> None:
    """Broker 1 led, and copied what the source has lost since; its last epoch is the leader's current one."""
    world = stage.world
    stage.produce(2)
    first, second = stage.brokers[:2]
    first.append([(0, 1), (0, 2)])
    second.append([(0, 1), (5, 3)])
    first.epochs.lead_without_entry(5)
    if world.end_offset(first, second.epochs.latest)[0] == 5:
        raise Bad("a follower is taken for equal, whose record the leader does not have")


def an_epoch_of_the_source_is_used_again(stage: MirroredStage) -> None:
    """Broker 0 alone has a record of the source; broker 1 is promoted, and writes another one in that epoch."""
    world = stage.world
    stage.produce()
    stage.copy(0, 1, 2)
    world.elect_at_source(2)
    stage.produce()
    stage.copy(0)
    world.expire(stage.brokers[0])
    stage.control()
    stage.replicate(2)
    stage.promote(1)
    world.write(stage.brokers[1])
    world.claims.check()


_CASES: Mapping[str, Callable[[MirroredStage], None]] = {
    CUTS_AT_ONCE: the_source_loses_what_a_follower_has,
    PROMOTES_EARLY: the_leader_of_a_promotion_dies,
    COPIES_LATER_EPOCHS: an_epoch_of_the_source_is_used_again,
    KNOWS_CURRENT: a_follower_has_records_of_a_later_epoch_than_its_leader,
}


def walked(seed: int, *faults: str) -> MirroredWorld:
    world = walk(seed, frozenset(faults), kind=MirroredWorld, steps=MIRRORED_STEPS)
    assert isinstance(world, MirroredWorld)
    return world


def test_nothing_is_lost_in_random_walks_of_a_mirror() -> None:
    worlds = [walked(seed) for seed in range(WALKS)]
    assert sum(len(world.claims.committed) for world in worlds) > WALKS / 10
    assert sum(world.promoted_at() is not None for world in worlds) > WALKS / 20
    assert sum(len(world.claims.dead) for world in worlds) > WALKS / 10, "the source loses records"


@pytest.mark.parametrize("rule", _CASES)
def test_nothing_is_lost_in_a_case_of_a_mirror(rule: str) -> None:
    _CASES[rule](MirroredStage(frozenset()))


@pytest.mark.parametrize("rule", _CASES)
def test_a_case_of_a_mirror_needs_its_rule(rule: str) -> None:
    with pytest.raises(Bad):
        _CASES[rule](MirroredStage(frozenset({rule})))


def main(seconds: float, seed: int) -> None:
    """Walk from one seed after another; print the trace of the first violation."""
    begun, first, steps, committed, promoted = time.monotonic(), seed, 0, 0, 0
    while time.monotonic() - begun < seconds:
        world = walked(seed)
        seed += 1
        steps, committed = steps + len(world.trace), committed + len(world.claims.committed)
        promoted += world.promoted_at() is not None
    print(f"no violation in {seed - first} walks: {steps} steps, {committed} records, {promoted} promotions")


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
