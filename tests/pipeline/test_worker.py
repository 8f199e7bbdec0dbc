"""A worker that is settled collects no longer what it had imported before."""

import subprocess
import sys

SETTLED = """
import gc
from warmlog.pipeline.session import settled
assert settled(len, "abc") == 3
there = gc.get_freeze_count()
assert there > 0
more = [[] for _ in range(1000)]
settled(len, "abc")
assert gc.get_freeze_count() <= there, "what tasks leave behind must be collected"
"""


def test_once_and_for_all() -> None:
    """In a process of its own: it cannot be taken back."""
    subprocess.run([sys.executable, "-c", SETTLED], check=True)
