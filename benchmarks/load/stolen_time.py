"""Processor time that the hypervisor gave to other guests while this machine wanted it.

On many hosts, a process whose processor was taken away for 3 ms is charged for these 3 ms: they are added to its CPU
time and its threads'. Measurements of short steps therefore report how much was stolen meanwhile.
"""

import os
from pathlib import Path

STAT = Path("/proc/stat")
STEAL_FIELD = 8  # field in the line of all processors, after its name. Source: proc_stat(5)


def stolen_seconds(stat: Path = STAT) -> float:
    """Return the stolen time of all processors since boot, in steps of 10 ms; 0 if unknown."""
    try:
        fields = stat.read_text().partition("\n")[0].split()
    except OSError:
        return 0.0
    return int(fields[STEAL_FIELD]) / os.sysconf("SC_CLK_TCK") if len(fields) > STEAL_FIELD else 0.0
