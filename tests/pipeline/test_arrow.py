"""Topics as Arrow record batches: the rows of the data source, lazily, for other engines."""

from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

import warmlog.arrow
from tests.pipeline.conftest import NOW_MS, DirectoryWriter
from tests.pipeline.local import plan
from warmlog.client.blocking import Client
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.source.options import COLUMNS
from warmlog.testing import Broker

WritePartition = Callable[..., DirectoryWriter]


def test_rows_are_those_of_the_data_source(kafka_fixtures: Path) -> None:
    source = kafka_fixtures / "clean"
    assigned = '{"append-time":[0],"keyed":[0,1,2,3],"zstd":[0]}'
    expected = plan(source, topic=None, assign=assigned, includeHeaders="true").read()
    reader = warmlog.arrow.scan(None, path=str(source), options={"assign": assigned})
    assert reader.read_all().to_pylist() == expected


def test_duckdb_reads_a_directory(write_partition: WritePartition) -> None:
    writer = write_partition()
    writer.segment(*[[b"a"] * 10 for _ in range(3)])
    write_partition(partition=1).segment([b"b"] * 5)
    orders = warmlog.arrow.scan("orders", path=str(writer.directory.parent), columns=["partition", "offset", "value"])
    assert orders.schema.names == ["value", "partition", "offset"]
    answer = duckdb.sql('SELECT value, count(*), max("offset") FROM orders GROUP BY ALL ORDER BY ALL').fetchall()
    assert answer == [(b"a", 30, 29), (b"b", 5, 4)]


def test_bounds_are_those_of_the_data_source(write_partition: WritePartition) -> None:
    writer = write_partition()
    writer.segment(*[[b"a"] * 10 for _ in range(3)])
    bounds = {"startingTimestamp": str(NOW_MS + 5), "endingOffsets": '{"orders":{"0":12}}'}
    reader = warmlog.arrow.scan("orders", path=str(writer.directory.parent), columns=["offset"], options=bounds)
    assert reader.read_all().column("offset").to_pylist() == list(range(5, 12))


def test_batches_are_read_when_they_are_asked_for(write_partition: WritePartition) -> None:
    writer = write_partition()
    logs = [writer.segment([bytes(1 << 20)] * 3) for _ in range(3)]
    reader = warmlog.arrow.scan("orders", path=str(writer.directory.parent), columns=["value"])
    assert reader.read_next_batch().num_rows < 9
    logs[2].write_bytes(b"")
    with pytest.raises(Exception, match=r"damaged|replaced|deleted|no longer"):
        reader.read_all()


def test_a_broker_is_read(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker, Client(broker.native) as client:
        client.create_topic("orders", partitions=2)
        client.produce_many("orders", [b"%d" % at for at in range(100)], partition=1)
        table = warmlog.arrow.scan("orders", bootstrap=broker.native).read_all()
    assert table.schema.names == list(COLUMNS)
    assert table.column("value").to_pylist() == [b"%d" % at for at in range(100)]


def test_errors_come_from_the_call(write_partition: WritePartition) -> None:
    path = str(write_partition().directory.parent)
    with pytest.raises(PipelineError, match="no source"):
        warmlog.arrow.scan("orders")
    with pytest.raises(PipelineError, match="has no topic others"):
        warmlog.arrow.scan("others", path=path)
    with pytest.raises(PipelineError, match="option columns: 'price' is not names"):
        warmlog.arrow.scan("orders", path=path, columns=["price"])
