"""Processor time that the hypervisor gave to other guests while this machine wanted it.

A process whose processor was taken away for 3 ms is charged with these 3 ms on many hosts: its CPU time and that of its
threads grow by them. Measurements of short steps therefore say how much was stolen meanwhile.
"""

import os
from pathlib import Path

STAT = Path("/proc/stat")
STEAL_FIELD = 8  # of the line of all processors, behind its name. Source: proc_stat(5)


def stolen_seconds(stat: Path = STAT) -> float:
    """Return the stolen time of all processors since boot, in steps of 10 ms; 0 where it is not known."""
    try:
        fields = stat.read_text().partition("\n")[0].split()
    except OSError:
        return 0.0
    return int(fields[STEAL_FIELD]) / os.sysconf("SC_CLK_TCK") if len(fields) > STEAL_FIELD else 0.0
