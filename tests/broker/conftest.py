"""Owns the fixtures of a broker in the test's own trio loop, and of what watches that loop."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.broker.clients import Running, running
from warmlog.broker.metrics.loop_guard import LoopGuard


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Running]:
    """A broker with every setting at its default."""
    async with running(tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def guard(request: pytest.FixtureRequest) -> LoopGuard:
    """The clock of the test's loop (pytest-trio takes any fixture that is one); tells of what takes over 20 ms."""
    return LoopGuard(getattr(request, "param", 0.02))
