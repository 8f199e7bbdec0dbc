"""The processor time of servers: user and system time of all threads of their processes and of all descendants.

1. A thread that has ended is included in the clock of its process.
2. A child that has ended is included in `cutime` and `cstime` of its parent, once the parent has waited for it. So the
   time of a child is in the difference of two readings whether or not it ended between them.
3. A process that is named twice, or is named and also a descendant of another one, counts once.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import clock_gettime

CPUCLOCK_SCHED = 2  # Linux's <linux/posix-timers.h>
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_WAITED = slice(13, 15)  # cutime and cstime, fields 16 and 17 of proc_pid_stat(5), without the first two


class ProcessorMeter:
    """The processor time that servers use from the creation of the meter on, also if one is killed and replaced."""

    def __init__(self, pids: Sequence[int]) -> None:
        """Begin to count now. Raises OSError if a process does not exist."""
        self._pids = set(pids)
        self._counted_s = -processor_seconds(pids)

    def used_s(self) -> float:
        """Return the seconds used so far. Raises OSError if a process has ended that was not removed."""
        return max(0.0, self._counted_s + processor_seconds(self._pids))  # the sums are rounded

    def us_per(self, count: float) -> float:
        """Return the microseconds used so far for each of `count` units, at least one."""
        return self.used_s() / max(1, count) * 1e6

    def remove(self, pid: int) -> None:
        """Keep what a process has used until now; it is about to be killed."""
        before_s = processor_seconds(self._pids)
        self._pids.remove(pid)
        self._counted_s += before_s - processor_seconds(self._pids)

    def add(self, pid: int) -> None:
        """Count a process from its beginning; it replaces one that was killed."""
        self._pids.add(pid)


def processor_seconds(pids: Iterable[int]) -> float:
    """Return the processor time of processes and their descendants. Raises OSError if one of `pids` does not exist."""
    roots = tuple(pids)
    while True:
        try:
            return sum(cpu_seconds(pid) + _waited_s(pid) for pid in _with_descendants(roots))
        except OSError:  # a descendant has ended meanwhile: its time is now its parent's
            for pid in roots:
                cpu_seconds(pid)


def children(pid: int) -> set[int]:
    """Return the ids of the child processes of a process. Raises OSError if it does not exist."""
    lists = [(task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return {int(child) for line in lists for child in line.split()}


def cpu_seconds(pid: int) -> float:
    """Return the processor time used by all threads of a process. Raises OSError if it does not exist.

    It is read from the clock of clock_getcpuclockid(3), since /proc counts in steps of 10 ms.
    """
    return clock_gettime((~pid << 3) | CPUCLOCK_SCHED)


def _with_descendants(roots: Sequence[int]) -> list[int]:
    """Return parents before their children: a child that ends while they are read cannot count twice."""
    family = dict.fromkeys(roots)
    generation = set(roots)
    while generation:
        generation = {child for pid in generation for child in children(pid)} - family.keys()
        family |= dict.fromkeys(generation)
    return list(family)


def _waited_s(pid: int) -> float:
    """Return the processor time of children that have ended and for which the process has waited."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # the command may contain anything
    return sum(map(int, fields[_WAITED])) * _TICK_S
