"""Waiting for what another process does: by its own reports, with a deadline, never by sleeping a guessed time."""

import os
import select
import time
from collections.abc import Callable

#: Long beside what anything here takes: it only ends a test that has failed.
LIMIT_S = 30.0


def until(done: Callable[[], bool], step: Callable[[], object], what: str, *, limit_s: float = LIMIT_S) -> None:
    """Take steps, each of which waits for something to happen, until it is done; AssertionError past the deadline."""
    limit = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < limit, f"waited in vain for {what}"
        step()


def until_ended(*pids: int, limit_s: float = LIMIT_S) -> None:
    """Wait for processes to end, whoever started them; AssertionError past the deadline."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            readable, _, _ = select.select([descriptor], [], [], limit_s)
        finally:
            os.close(descriptor)
        assert readable, f"waited in vain for the end of process {pid}"
