"""How long the threads of a process ran, and how long they were ready to run without having a core.

Linux counts both for each thread in /proc/PID/task/TID/schedstat. What is left of a time is what the thread was blocked
for: a lock, a reply, a full buffer.
"""

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

SAMPLE_S = 0.05
BUSY_SHARE = 0.2  # of a core: a process that only waits for its last statistics uses less


@dataclass(frozen=True, slots=True)
class ThreadTime:
    """Seconds of one thread, or the sum over several."""

    run_s: float = 0.0
    ready_s: float = 0.0

    def __add__(self, other: "ThreadTime") -> "ThreadTime":
        return ThreadTime(self.run_s + other.run_s, self.ready_s + other.ready_s)

    def __sub__(self, other: "ThreadTime") -> "ThreadTime":
        return ThreadTime(self.run_s - other.run_s, self.ready_s - other.ready_s)


Reading = Mapping[tuple[int, str], ThreadTime]  # by thread id and name; the kernel cuts names to 15 characters


@dataclass(frozen=True, slots=True)
class Observed:
    """The threads of a process that has ended, within the window in which it worked."""

    seconds: float
    threads: Reading

    def named(self, prefix: str) -> ThreadTime:
        """Return the sum over the threads whose names begin with a prefix; "": over all."""
        return sum((time for (_, name), time in self.threads.items() if name.startswith(prefix)), ThreadTime())


def thread_times(pid: int) -> Reading:
    """Return the times of a process's threads since they began; empty if it has ended."""
    reading = {}
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            name = (task / "comm").read_text().strip()
            run_ns, ready_ns, _ = map(int, (task / "schedstat").read_text().split())
            reading[int(task.name), name] = ThreadTime(run_ns / 1e9, ready_ns / 1e9)
    except (OSError, ValueError):  # it has ended while it was read
        return {}
    return reading


def since(earlier: Reading, later: Reading) -> Reading:
    """Return what each thread of `later` has added."""
    return {thread: time - earlier.get(thread, ThreadTime()) for thread, time in later.items()}


def observe(process: subprocess.Popen[str], is_working: Callable[[Reading], bool]) -> Observed:
    """Sample a process every `SAMPLE_S` until it ends.

    The window is from the first sample of which `is_working` is true to the last one in which the process was busy.
    Raises ValueError if there was none.
    """
    samples: list[tuple[float, Reading]] = []
    end = 0  # the last sample in which it was busy
    while True:
        reading = thread_times(process.pid)
        if reading and is_working(reading):
            samples.append((perf_counter(), reading))
            if len(samples) > 1 and _used_s(*samples[-2:]) > BUSY_SHARE * SAMPLE_S:
                end = len(samples) - 1
        try:
            process.wait(SAMPLE_S)
            break
        except subprocess.TimeoutExpired:
            continue
    if not end:
        raise ValueError("the process ended before it was seen at work: give it more records")
    (began_at, before), (ended_at, after) = samples[0], samples[end]
    return Observed(ended_at - began_at, since(before, after))


def _used_s(before: tuple[float, Reading], after: tuple[float, Reading]) -> float:
    return sum((time.run_s for time in since(before[1], after[1]).values()), 0.0)
