"""A topic of two partitions in a directory, and each kind of table."""

from collections.abc import Callable

import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.tables import KINDS, Kind

SLOW = {  # modules whose tests of Iceberg, which is slower than Delta, are run by `make interop`
    "test_arranged_maintenance",
    "test_maintenance",
    "test_object_store",
    "test_schema_maintenance",
    "test_upsert_audit",
    "test_upsert_upkeep",
    "test_upserts",
    "test_upserts_exactly_once",
}


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests of `SLOW` modules with tables of Iceberg."""
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if item.path.stem in SLOW and parameters.get("kind") == "iceberg":
            item.add_marker(pytest.mark.interop)


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
