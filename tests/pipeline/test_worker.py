"""A worker does not collect garbage among its imports."""

import subprocess
import sys

FREEZES = """
import gc
from warmlog.pipeline.session import call_frozen
assert call_frozen(len, ["abc"]) == [3]
frozen = gc.get_freeze_count()
assert frozen > 0
more = [[] for _ in range(1000)]
call_frozen(len, ["abc"])
assert gc.get_freeze_count() <= frozen, "what tasks leave behind must be collected"
"""


def test_imports_are_frozen_once() -> None:
    """In a separate process, because freezing cannot be undone."""
    subprocess.run([sys.executable, "-c", FREEZES], check=True)
