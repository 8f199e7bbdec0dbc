"""Filters that Spark pushes down: rows that no filter wants are not read, counted before Spark filters, too."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceReader

from tests.pipeline.conftest import NOW_MS
from warmlog.client.blocking import Client
from warmlog.pipeline.data_source import WarmlogDataSource
from warmlog.testing import Broker

pytestmark = pytest.mark.skipif(
    not hasattr(DataSourceReader, "pushFilters"), reason="Spark passes no filters before 4.1"
)
COUNT = 100  # records of each of two partitions, one a millisecond, in batches of ten


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {"log.retention.ms": -1}
    with Broker(data_dir=tmp_path_factory.mktemp("filters"), settings=settings) as running:
        with Client(running.native) as client:
            client.create_topic("orders", partitions=2)
            for partition in range(2):
                for first in range(0, COUNT, 10):
                    for at in range(first, first + 10):
                        client.produce("orders", value=b"%d" % at, partition=partition, timestamp=NOW_MS + at)
        yield running


def read(broker: Broker, kind: str, *filters: tuple[str, str, Any]) -> list[int]:
    """The offsets that a reader with these filters yields: (class, column, value)."""
    where = {"path": str(broker.data_dir)} if kind == "directory" else {"bootstrap": broker.native}
    source = WarmlogDataSource({"topic": "orders", "filterPushdown": "true", **where})
    reader: Any = source.reader(source.schema())
    pushed = [getattr(datasource, name)((column,), value) for name, column, value in filters]
    assert list(reader.pushFilters(pushed)) == pushed  # Spark applies all of them, too
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    return sorted(offset for batch in batches for offset in batch.column("offset").to_pylist())


def at_ms(offset: int) -> datetime:
    return datetime.fromtimestamp((NOW_MS + offset) / 1000, UTC)


@pytest.mark.parametrize("kind", ["directory", "wire"])
@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], sorted([*range(COUNT)] * 2)),
        ([("EqualTo", "partition", 1)], [*range(COUNT)]),
        ([("In", "partition", (0, 7))], [*range(COUNT)]),
        ([("EqualTo", "partition", 2)], []),
        ([("GreaterThan", "offset", 89), ("EqualTo", "partition", 0)], [*range(90, COUNT)]),
        ([("GreaterThanOrEqual", "offset", 12), ("LessThan", "offset", 14)], [12, 12, 13, 13]),
        ([("LessThanOrEqual", "offset", 1)], [0, 0, 1, 1]),
        ([("EqualTo", "offset", 50)], [50, 50]),
        ([("GreaterThan", "timestamp", at_ms(97))], [98, 98, 99, 99]),
        ([("GreaterThanOrEqual", "timestamp", at_ms(98)), ("EqualTo", "partition", 1)], [98, 99]),
    ],
)
def test_only_wanted_rows_are_read(
    broker: Broker, kind: str, filters: list[tuple[str, str, Any]], expected: list[int]
) -> None:
    assert read(broker, kind, *filters) == expected


def test_filters_on_other_columns_change_nothing(broker: Broker) -> None:
    assert len(read(broker, "wire", ("EqualTo", "value", b"1"))) == 2 * COUNT
