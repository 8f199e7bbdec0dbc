"""Delays between retries: exponential with jitter.

Source: Kafka's ExponentialBackoff, KIP-580 (retry.backoff.ms, retry.backoff.max.ms).
"""

from collections.abc import Iterator
from random import Random

FIRST_S = 0.05  # half of Kafka's 100 ms, since a broker restarts in half a second
MAX_S = 1.0
JITTER = 0.2  # keeps clients from reconnecting to a restarted broker at the same time


def delays_s(random: Random, first_s: float = FIRST_S, max_s: float = MAX_S) -> Iterator[float]:
    """Yield delays endlessly: doubling from `first_s` to `max_s`, each up to 20% longer or shorter."""
    delay_s = first_s
    while True:
        yield delay_s * random.uniform(1 - JITTER, 1 + JITTER)
        delay_s = min(delay_s * 2, max_s)


def delay_s(attempt: int, random: Random) -> float:
    """Return the delay before retry number `attempt` (from 1), for retries that do not share a loop."""
    return float(min(FIRST_S * 2 ** min(attempt - 1, 16), MAX_S) * random.uniform(1 - JITTER, 1 + JITTER))
