"""Compiled generators that are dropped before their end, as recovery threads drop them at a damaged batch."""

import subprocess
import sys

PROGRAM = """
import os
from warmlog.broker.log.io.disk import Disk
from warmlog.broker.log.io.files import Descriptor
from warmlog.broker.log.segments.log_scan import walk_timed
from warmlog.protocol.records.layout import BatchHeader

HEADER = BatchHeader(0, 49, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 1)
file = Descriptor(Disk(), os.open("/dev/null", os.O_RDONLY))
outlived = []


class Walk:
    def __init__(self, is_dropped):
        self.is_dropped = is_dropped

    def __call__(self, file, position, end):
        return iter([(0, HEADER), (1, HEADER), (2, HEADER)])

    def __del__(self):  # in the place of closing a file, which lets another thread run
        if self.is_dropped:
            outlived.append(walk_timed(file, 0, 0, Walk(False)))


dropped = walk_timed(file, 0, 0, Walk(True))
assert next(dropped) == (0, HEADER)
del dropped
assert [position for position, _ in outlived[0]] == [0, 1, 2]
"""


def test_a_generator_begun_while_another_one_is_freed_keeps_its_variables() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
