"""A topic of two partitions in a directory, and each kind of table."""

from collections.abc import Callable

import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.tables import KINDS, Kind


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    value: Kind = request.param
    return value


@pytest.fixture
def writer(write_partition: Callable[..., DirectoryWriter]) -> DirectoryWriter:
    """Partition 0 with 60 records; partition 1 has 30."""
    first = write_partition()
    first.segment(*[[b"x"] * 10 for _ in range(6)])
    write_partition(partition=1).segment(*[[b"y"] * 10 for _ in range(3)])
    return first
