"""When periodic work is done: at moments that all of it shares.

Owns: those moments. Must not know: the work.

Being woken costs an idle broker more than what it is woken for (on a virtual machine 0.2 to 0.5 ms), so what is due at
about the same time is done at the same time.
"""

import math

import trio

TICK_S = 0.25


async def sleep_till_tick(interval_s: float) -> None:
    """Sleep for an interval, or up to a tick less; less than a second is slept as it is."""
    due = trio.current_time() + interval_s
    await trio.sleep_until(math.floor(due / TICK_S) * TICK_S if interval_s >= 1 else due)


def next_tick() -> float:
    """By trio's clock."""
    return (math.floor(trio.current_time() / TICK_S) + 1) * TICK_S
