"""Every golden partition in turn, and what Kafka says of it."""

import pytest

from tests.golden.partitions import FIXTURES, GoldenPartition, Seen, partitions, read_seen


@pytest.fixture(params=partitions())
def golden(request: pytest.FixtureRequest) -> GoldenPartition:
    """Each partition in turn."""
    dump = (FIXTURES / "dumps" / f"{request.param}.txt").read_text()
    return GoldenPartition(name=request.param, directory=FIXTURES / request.param, dump=dump)


@pytest.fixture
def seen(golden: GoldenPartition) -> Seen:
    """What the consumer saw of that partition; Kafka's own topics were not consumed and are skipped over by name."""
    return read_seen(FIXTURES / "seen" / f"{golden.name}.json")
