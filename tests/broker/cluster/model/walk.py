"""Random walks through a `World`, from a seed: `python -m tests.broker.cluster.model.walk SECONDS [FIRST_SEED]`."""

import sys
import time
from collections.abc import Callable, Mapping
from random import Random

from tests.broker.cluster.model.claims import Bad
from tests.broker.cluster.model.parts import Broker
from tests.broker.cluster.model.world import World
from warmlog.broker.cluster.values import Member

DEPTH = 90
Step = Callable[[World, Random], str | None]


def any_broker(world: World, random: Random) -> Broker:
    return world.brokers[random.randrange(4)]


def any_leader(world: World, random: Random) -> Broker:
    leading = [broker for broker in world.brokers if broker.progress is not None]
    return random.choice(leading) if leading else world.brokers[0]


def _crash(world: World, random: Random) -> str | None:
    kind = random.choice(("clean", "kill", "power"))
    broker = any_broker(world, random)
    return world.crash(broker, kind, random.randint(0, len(broker.log)))


def _fail(world: World, random: Random) -> str | None:
    broker = any_broker(world, random)
    return world.fail(broker, random.randint(0, len(broker.log)))


def _restore(world: World, random: Random) -> str | None:
    return world.restore(any_broker(world, random), is_whole=random.random() < 0.3)


def _look(world: World, random: Random) -> str | None:
    broker = any_broker(world, random)
    behind = world.cell.revision - broker.image.revision
    if not broker.is_up or not behind:
        return None
    return world.look(broker, broker.image.revision + random.choice((behind, random.randint(1, behind))))


def _wait(world: World, random: Random) -> str | None:
    world.now += random.choice((1.0, 4.0, 11.0))
    return None


def _fetch(world: World, random: Random) -> str | None:
    how = random.random()
    return world.fetch(
        any_broker(world, random), is_late=how < 0.1, is_answered=how > 0.35, count=random.choice((1, 1, 2))
    )


def _forge(world: World, random: Random) -> str | None:
    epoch = random.choice((-1, world.cell.revision, world.cell.revision + 1, 1 << 62))
    return world.forge(any_leader(world, random), Member(random.randrange(3), epoch))


def _reassign(world: World, random: Random) -> str | None:
    target = tuple(random.sample(range(4), random.choice((1, 2, 3, 3))))
    return world.reassign(
        any_broker(world, random), None if random.random() < 0.2 else target, is_late=random.random() < 0.2
    )


STEPS: dict[str, tuple[float, Step]] = {
    "write": (4, lambda world, random: world.write(any_leader(world, random))),
    "flush": (4, lambda world, random: world.flush(any_broker(world, random))),
    "fetch": (12, _fetch),
    "forge": (1, _forge),
    "propose": (4, lambda world, random: world.propose(any_leader(world, random), is_late=random.random() < 0.5)),
    "deliver": (4, lambda world, random: world.deliver(random.randrange(100))),
    "look": (9, _look),
    "wait": (2, _wait),
    "crash": (1, _crash),
    "start": (2, lambda world, random: world.start(any_broker(world, random))),
    "copy": (1, lambda world, random: world.copy(any_broker(world, random))),
    "restore": (1, _restore),
    "expire": (1, lambda world, random: world.expire(any_broker(world, random))),
    "again": (2, lambda world, random: world.register_again(any_broker(world, random))),
    "elect": (3, lambda world, random: world.elect(any_broker(world, random), is_late=random.random() < 0.1)),
    "ask": (1.5, lambda world, random: world.ask(any_broker(world, random))),
    "fence": (1, lambda world, random: world.fence(any_broker(world, random), is_late=random.random() < 0.2)),
    "prefer": (0.5, lambda world, random: world.prefer(any_broker(world, random), is_late=random.random() < 0.3)),
    "step aside": (
        0.5,
        lambda world, random: world.step_aside(any_broker(world, random), is_late=random.random() < 0.3),
    ),
    "unclean": (0.1, lambda world, random: world.elect_unclean(any_broker(world, random))),
    "unregister": (0.3, lambda world, random: world.unregister(any_broker(world, random))),
    "drain": (0.3, lambda world, random: world.drain(any_broker(world, random))),
    "reassign": (0.5, _reassign),
    "fail": (0.4, _fail),
    "disown": (1.5, lambda world, random: world.disown(any_broker(world, random), is_late=random.random() < 0.2)),
    "minimum": (0.3, lambda world, random: world.set_min_isr(any_broker(world, random), random.choice((1, 2, 3)))),
}
NAMES = tuple(STEPS)


def walk(
    seed: int,
    faults: frozenset[str] = frozenset(),
    depth: int = DEPTH,
    *,
    kind: type[World] = World,
    steps: Mapping[str, tuple[float, Step]] = STEPS,
) -> World:
    """Walk until `depth` steps have done something. Raises Bad, with the trace as a note."""
    random = Random(seed)
    names = tuple(steps)
    world = kind(
        random,
        min_isr=random.choice((1, 2, 2, 3)),
        flushes=random.random() < 0.3,
        faults=faults,
        fenced=random.choice((0, 0, 0, 1, 2)),
    )
    weights = [steps[name][0] * random.choice((0, 0.2, 1, 1, 3)) for name in names]
    if not sum(weights):
        return world
    try:
        for name in random.choices(names, weights, k=6 * depth):
            said = steps[name][1](world, random)
            if said is not None:
                world.trace.append(said)
                world.claims.check()
                if len(world.trace) == depth:
                    break
    except Bad as bad:
        bad.add_note("\n".join([f"seed {seed}", *world.trace]))
        raise
    return world


def main(seconds: float, seed: int) -> None:
    """Walk from one seed after another; print the trace of the first violation."""
    begun, first, steps, acked, elections, dead = time.monotonic(), seed, 0, 0, 0, 0
    while time.monotonic() - begun < seconds:
        world = walk(seed)
        seed += 1
        steps, acked = steps + len(world.trace), acked + len(world.claims.committed)
        elections, dead = elections + world.elections, dead + len(world.claims.given_up)
    print(
        f"no violation in {seed - first} walks: {steps} steps, {acked} records, {elections} elections, {dead} destroyed"
    )


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
