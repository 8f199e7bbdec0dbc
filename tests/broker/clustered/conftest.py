"""Three brokers with every setting at its default."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.broker.clustered.three_brokers import Cluster, three_brokers


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with three_brokers(tmp_path) as cluster:
        yield cluster
