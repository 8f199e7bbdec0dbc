"""Shared wake-ups: periodic work sleeps until common points in time.

Waking an idle broker costs more than most of its periodic work (0.2 to 0.5 ms on a virtual machine), so tasks that are
due at about the same time are woken together.
"""

import math

import trio

WAKEUP_INTERVAL_S = 0.25


async def sleep_until_wakeup(interval_s: float) -> None:
    """Sleep for an interval, shortened to end at a shared wake-up. Intervals below a second are not changed."""
    due = trio.current_time() + interval_s
    await trio.sleep_until(math.floor(due / WAKEUP_INTERVAL_S) * WAKEUP_INTERVAL_S if interval_s >= 1 else due)


def next_wakeup() -> float:
    """Return the time of the next shared wake-up, by trio's clock."""
    return (math.floor(trio.current_time() / WAKEUP_INTERVAL_S) + 1) * WAKEUP_INTERVAL_S
