"""Owns the fixture of a broker in the test's own trio loop."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.broker.clients import Running, running


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Running]:
    """A broker with every setting at its default."""
    async with running(tmp_path / "data") as broker:
        yield broker
