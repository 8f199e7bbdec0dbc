"""Owns the thread that shares writes."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.requires import lacks
from warmlog.broker.log.io import shared_writes


@pytest.fixture
def write_thread() -> Iterator[Any]:
    """A thread that shares writes, however many processors there are."""
    if shared_writes.thread_class is None:
        lacks("not compiled: broker/_io_threads.pyx (`make setup`, with a C compiler)")
    thread = shared_writes.thread_class()
    yield thread
    thread.close()
