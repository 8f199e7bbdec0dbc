"""How long to wait before another try.

Owns: the arithmetic. Must not know: what is tried, or a clock.

Source: Kafka's ExponentialBackoff, KIP-580 (retry.backoff.ms, retry.backoff.max.ms).
"""

from collections.abc import Iterator
from random import Random

FIRST_S = 0.05  # half of Kafka's: a broker restarts in half a second, not in ten
MAX_S = 1.0
JITTER = 0.2  # so that the clients of a broker that comes back do not come all at once


def delays_s(random: Random, first_s: float = FIRST_S, max_s: float = MAX_S) -> Iterator[float]:
    """Endless waits: doubling from `first_s` to `max_s`, each up to a fifth longer or shorter."""
    delay_s = first_s
    while True:
        yield delay_s * random.uniform(1 - JITTER, 1 + JITTER)
        delay_s = min(delay_s * 2, max_s)


def delay_s(attempt: int, random: Random) -> float:
    """The wait before try number `attempt` (1 is the first repetition) where the tries are not made in one loop."""
    return float(min(FIRST_S * 2 ** min(attempt - 1, 16), MAX_S) * random.uniform(1 - JITTER, 1 + JITTER))
