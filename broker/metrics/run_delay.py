"""How long a thread was ready to run while the processors were busy with others."""

import os
from contextlib import suppress


class RunDelay:
    """Reads the run delay of a thread of this process, until `close`.

    It also grows while a cgroup has used up its share of processor time, but not while a hypervisor stops a virtual
    processor. Source: Linux, Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat.
    """

    def __init__(self, thread_id: int) -> None:
        """`thread_id`: the kernel's, of `threading.get_native_id`."""
        self._fd = -1
        with suppress(OSError):  # a kernel without CONFIG_SCHED_INFO
            self._fd = os.open(f"/proc/self/task/{thread_id}/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def seconds(self) -> float:
        """Return the delay since the thread began; always 0 where the kernel does not count it."""
        if self._fd < 0:
            return 0.0
        return int(os.pread(self._fd, 64, 0).split()[1]) / 1e9

    def close(self) -> None:
        """Stop reading."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
