"""Whether the kernel makes writers of a disk wait, because they dirty pages faster than the disk stores them.

Linux lets them sleep inside their writes then (`balance_dirty_pages`), for up to 200 ms, in proportion to what they
have written. The event loop must not sleep for producers of large batches, so `AppendQueue` gives these to threads
while writes stall.
"""

from collections.abc import Callable
from resource import RUSAGE_THREAD, getrusage
from time import perf_counter
from typing import Final

ALWAYS_ON_LOOP_BYTES: Final = 64 << 10  # threads would cost more than the rare sleep after so few pages
STALL_S = 0.002  # and by the size: writing 256 KiB into the page cache takes 0.06 to 0.3 ms
STALL_S_PER_BYTE = 1 / 200e6
STALL_IN_THREAD_S = 0.02  # instead, in a thread: it waits for the GIL after its write, on a busy machine for 18 ms
MEMORY_S = 10.0  # how long a stall counts, so that less than 1 % of others meet one; those in threads extend it


def voluntary_switches() -> int:
    """Return how many times the calling thread has slept; being preempted does not count."""
    return getrusage(RUSAGE_THREAD).ru_nvcsw


class WriteStalls:
    """The stalls of one data directory. `measure` may be called in any thread."""

    def __init__(
        self, clock: Callable[[], float] = perf_counter, switches: Callable[[], int] = voluntary_switches
    ) -> None:
        self._clock = clock
        self._switches = switches
        self._until = 0.0

    @property
    def are_recent(self) -> bool:
        """Whether a write has stalled within the last `MEMORY_S`."""
        return self._clock() < self._until

    def measure(self, size: int, write: Callable[[], None], limit_s: float = STALL_S) -> None:
        """Write `size` bytes and note whether that stalled, beyond `limit_s` and the time for the size.

        Raises what `write` raises.
        """
        slept, began_at = self._switches(), self._clock()
        try:
            write()
        finally:
            now = self._clock()
            if now - began_at > limit_s + size * STALL_S_PER_BYTE and self._switches() != slept:
                self._until = now + MEMORY_S
