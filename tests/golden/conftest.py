"""Every golden partition in turn."""

import pytest

from tests.golden.partitions import GoldenPartition, partitions


@pytest.fixture(params=partitions())
def golden(request: pytest.FixtureRequest) -> GoldenPartition:
    """Each partition in turn."""
    return GoldenPartition.named(request.param)
