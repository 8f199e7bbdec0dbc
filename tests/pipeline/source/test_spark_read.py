"""Real Spark reads directories: ours, Kafka's, whole and in part."""

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader

from tests.pipeline.conftest import NOW_MS, DirectoryWriter
from tests.pipeline.session import program_environment
from warmlog.client.blocking import Client
from warmlog.pipeline.session import has_adaptive_streams
from warmlog.testing import Broker

pytestmark = pytest.mark.interop  # starts a Spark of its own

WritePartition = Callable[..., DirectoryWriter]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def load(spark: Any, path: Path, **options: Any) -> Any:
    reader = spark.read.format("warmlog").option("path", str(path))
    for name, value in {"topic": "orders", **options}.items():
        if value is not None:
            reader = reader.option(name, value)
    return reader.load()


def values(frame: Any) -> list[bytes]:
    return [bytes(row.value) for row in sorted(frame.select("partition", "offset", "value").collect())]


def test_the_schema_is_that_of_sparks_kafka_connector(spark: Any, write_partition: WritePartition) -> None:
    writer = write_partition()
    writer.segment([b"a"])
    frame = load(spark, writer.directory.parent, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )


def test_what_our_broker_stores_is_read_beside_it(spark: Any, tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker, Client(broker.native) as client:
        client.create_topic("orders", partitions=3)
        for at in range(30):
            client.produce("orders", key=b"k%d" % at, value=b"v%d" % at, partition=at % 3, headers=[("h", b"%d" % at)])
        frame = load(spark, tmp_path, includeHeaders="true")
        rows = sorted(frame.collect(), key=lambda row: (row.offset, row.partition))
    assert [bytes(row.value) for row in rows] == [b"v%d" % at for at in range(30)]
    assert [(row.topic, row.partition, row.offset) for row in rows] == [("orders", at % 3, at // 3) for at in range(30)]
    assert [[tuple(header) for header in row.headers] for row in rows] == [[("h", b"%d" % at)] for at in range(30)]


def test_splits_are_disjoint_and_together_everything(spark: Any, write_partition: WritePartition) -> None:
    writer = write_partition()
    for _ in range(3):
        writer.segment(*[[b"%d" % at] * 5 for at in range(40)])
    frame = load(spark, writer.directory.parent, minPartitions=8)
    assert 6 <= frame.rdd.getNumPartitions() <= 10
    assert [row.offset for row in sorted(frame.select("offset").collect())] == list(range(600))


def test_columns_that_are_not_asked_for_are_not_there(spark: Any, write_partition: WritePartition) -> None:
    writer = write_partition()
    writer.segment([b"a", b"b"])
    frame = load(spark, writer.directory.parent, columns="value, offset")
    assert frame.columns == ["value", "offset"]
    assert [tuple(row) for row in frame.collect()] == [(b"a", 0), (b"b", 1)]
    assert spark.read.format("warmlog").schema("offset bigint").options(
        path=str(writer.directory.parent), topic="orders"
    ).load().collect() == [(0,), (1,)]


@pytest.mark.skipif(not hasattr(DataSourceReader, "pushFilters"), reason="Spark tells no filters before 4.1")
def test_filters_reach_the_files(spark: Any, write_partition: WritePartition) -> None:
    for partition in range(2):
        writer = write_partition(partition=partition)
        for at in range(3):
            writer.segment(*[[b"%d" % (at * 10 + one)] for one in range(10)], first_ms=NOW_MS + at * 10)
    # A batch that nobody wants is not even opened: what is wrong with it does not matter.
    first = writer.directory / f"{0:020d}.log"
    damaged = bytearray(first.read_bytes())
    damaged[30] ^= 1
    first.write_bytes(damaged)
    frame = load(spark, writer.directory.parent, filterPushdown="true")
    late = EPOCH + timedelta(milliseconds=NOW_MS + 25)

    def offsets(condition: Any) -> list[int]:
        return [row.offset for row in sorted(frame.where(condition).select("offset").collect())]

    assert offsets("partition = 1 AND offset >= 12 AND offset < 14") == [12, 13]
    assert offsets("partition = 0 AND offset <= 1") == [0, 1]
    assert offsets(frame.timestamp >= late) == sorted([*range(25, 30)] * 2)
    assert offsets("partition IN (1) AND offset > 28") == [29]


def test_errors_reach_the_user_in_words(spark: Any, tmp_path: Path, write_partition: WritePartition) -> None:
    writer = write_partition()
    log = writer.segment([b"a"], [b"b"], [b"c"])
    path = writer.directory.parent
    with pytest.raises(Exception, match="did you mean startingOffsets"):
        load(spark, path, startingOffset="earliest")
    with pytest.raises(Exception, match="has no topic payments"):
        load(spark, path, topic="payments").collect()
    with pytest.raises(Exception, match="topics have no column value string"):
        spark.read.format("warmlog").schema("value string").options(path=str(path), topic="orders").load().collect()
    data = bytearray(log.read_bytes())
    data[30] ^= 1
    log.write_bytes(data)
    with pytest.raises(Exception, match=rf"{log}: damaged batch at position 0: the CRC of the batch"):
        load(spark, path).collect()


def test_a_topic_without_records_has_no_rows(spark: Any, write_partition: WritePartition) -> None:
    writer = write_partition()
    writer.segment([b"a"])
    assert load(spark, writer.directory.parent, startingOffsets="latest").collect() == []


def test_registering_a_source_that_spark_has_found_warns_of_nothing(
    can_run_spark: None, write_partition: WritePartition, tmp_path: Path
) -> None:
    writer = write_partition()
    writer.segment([b"x"] * 10)
    program = f"""
from pyspark.sql import SparkSession
from warmlog.pipeline import register
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
register(spark)
reader = spark.read.format("warmlog").options(path={str(writer.directory.parent)!r}, topic="orders")
print(reader.load().count(), spark.conf.get("spark.sql.adaptive.streaming.stateless.enabled", None))
"""
    command, environment = [sys.executable, "-c", program], program_environment()
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["10", "false" if has_adaptive_streams() else "None"]
    assert [text for text in ("DataSourceManager", "Warning: ") if text in done.stderr] == [], done.stderr


def test_the_source_need_not_be_registered(spark: Any, write_partition: WritePartition) -> None:
    writer = write_partition()
    writer.segment([b"x"] * 10)
    other = spark.newSession()  # which has no registrations of its own
    assert load(other, writer.directory.parent).count() == 10
