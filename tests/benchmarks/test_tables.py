"""The table of benchmarks.questions.tables, and the processor time that it counts."""

import subprocess
import sys

from benchmarks.questions.tables import CONTESTANTS, table, tree_seconds

BUSY = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"


def test_speeds_are_medians_and_processor_time_is_per_gigabyte() -> None:
    first, *_, last = CONTESTANTS
    rounds = [{first: (float(seconds), 3.0), last: (2.0, 6.0)} for seconds in (1, 2, 4)]
    lines = table(rounds, 1000, 500_000_000).splitlines()
    assert lines[2] == f"| {first} | 500 | 250 to 1,000 | 6.0 |"
    assert lines[3] == f"| {last} | 500 | 500 to 500 | 12.0 |"
    assert lines[-1] == "1,000 records, 500 MB, 3 rounds."


def test_processor_time_is_that_of_all_children_but_the_broker() -> None:
    before = tree_seconds(without=0)
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        used, without = tree_seconds(without=0), tree_seconds(without=child.pid)
        child.communicate("\n")
    assert used - before >= 0.4
    assert used - without >= 0.4
