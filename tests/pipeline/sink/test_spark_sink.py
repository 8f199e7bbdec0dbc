"""Real Spark writes into a real broker: batch jobs, each record once where that is promised."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.functions import expr

from tests.pipeline.sink.spark_reads import committed, read, values
from warmlog.client.blocking import Client
from warmlog.pipeline.session import ADAPTIVE_STREAMS, has_adaptive_streams
from warmlog.testing import Broker

pytestmark = pytest.mark.interop  # starts a Spark of its own

NOW_S = int(time.time()) - 3600  # retention takes what is older than a week


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.native) as connected:
        connected.create_topic("totals", partitions=3)
        yield connected


def write(frame: Any, broker: Broker, mode: str = "append", **options: str) -> None:
    given = {"bootstrap": broker.native, "topic": "totals", **options}
    frame.write.format("warmlog").options(**given).mode(mode).save()


def test_a_frame_is_written_with_all_its_columns_and_told_of(
    spark: Any, broker: Broker, client: Client, tmp_path: Path
) -> None:
    columns = ["string(id) AS key", "'v' || id AS value", f"timestamp_millis({NOW_S}000L + id * 1000) AS timestamp"]
    headers = "array(struct('h' AS key, binary(string(id)) AS value)) AS headers"
    frame = spark.range(0, 200, 1, 3).selectExpr(*columns, headers)
    write(frame, broker, report=str(tmp_path / "report"), compression="zstd")
    rows = read(spark, broker, "totals", includeHeaders="true").orderBy("timestamp").collect()
    assert [bytes(row.key) + bytes(row.value) for row in rows] == [b"%dv%d" % (at, at) for at in range(200)]
    assert [[tuple(header) for header in row.headers] for row in rows] == [[("h", b"%d" % at)] for at in range(200)]
    assert [round(row.timestamp.timestamp()) for row in rows] == [NOW_S + at for at in range(200)]
    report = json.loads((tmp_path / "report").read_text())
    assert (report["rows"], report["tasks"], report["outcome"]) == (200, 3, "done")


def test_what_is_no_append_of_records_is_refused_in_words(spark: Any, broker: Broker) -> None:
    frame = spark.range(3).selectExpr("string(id) AS value")
    with pytest.raises(Exception, match="topics can only be appended to"):
        write(frame, broker, "overwrite")
    with pytest.raises(Exception, match='cannot be written in the "ErrorIfExists" mode'):
        frame.write.format("warmlog").options(bootstrap=broker.native, topic="totals").save()
    with pytest.raises(Exception, match="column value is missing"):
        write(frame.withColumnRenamed("value", "values").drop("values"), broker)
    with pytest.raises(Exception, match="column topic: the topic of a row is null"):
        frame.selectExpr("value", "string(NULL) AS topic").write.format("warmlog").option(
            "bootstrap", broker.native
        ).mode("append").save()


@pytest.fixture
def fixed_partitions(spark: Any) -> Iterator[None]:
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    yield
    spark.conf.unset("spark.sql.adaptive.enabled")


def test_a_frame_that_was_read_is_written_back(spark: Any, broker: Broker, client: Client, source: None) -> None:
    client.create_topic("again", partitions=2)
    frame = read(spark, broker, "source", includeHeaders="true").withColumn("number", expr("int(string(value))"))
    frame.write.format("warmlog").options(bootstrap=broker.native, topic="again").mode("append").save()
    columns = ["partition", "key", "value", "timestamp"]
    first, second = (read(spark, broker, name).select(columns).collect() for name in ("source", "again"))
    assert sorted(second) == sorted(first)


def test_a_write_under_an_id_stores_nothing_where_rows_may_be_divided_anew(spark: Any, broker: Broker) -> None:
    shuffled = spark.range(300).groupBy("id").count().selectExpr("string(id) AS value")
    with pytest.raises(Exception, match=r"option writeId needs spark\.sql\.adaptive\.enabled=false"):
        write(shuffled, broker, topic="divided", writeId="nightly")
    with pytest.raises(Exception, match="no topic"):
        read(spark, broker, "divided").collect()


def test_a_job_that_failed_halfway_is_run_again_and_stores_each_row_once(
    spark: Any, fixed_partitions: None, broker: Broker
) -> None:
    """The rows come in another order the second time."""
    frame = spark.range(0, 400, 1, 8)  # the last one begins when most of the others are done
    poisoned = frame.selectExpr("IF(id = 390, raise_error('poison'), string(id)) AS value")
    options = {"topic": "once", "writeId": "2026-11-20", "batchBytes": "300"}
    with pytest.raises(Exception, match="poison"):
        write(poisoned, broker, **options)
    stored = values(spark, broker, "once")
    assert 0 < stored.total() < 400
    write(frame.sortWithinPartitions(frame.id.desc()).selectExpr("string(id) AS value"), broker, **options)
    assert values(spark, broker, "once") == Counter(range(400))
    write(
        frame.selectExpr("string(id) AS value"), broker, topic="once", batchBytes="300"
    )  # another write is another one
    assert values(spark, broker, "once").total() == 800


def test_a_transactional_job_is_seen_when_it_is_done_and_never_when_it_failed(
    spark: Any, fixed_partitions: None, broker: Broker, client: Client
) -> None:
    frame = spark.range(0, 400, 1, 4)
    poisoned = frame.selectExpr("IF(id = 390, raise_error('poison'), string(id)) AS value")
    options = {"topic": "whole", "transactional": "true", "batchBytes": "300"}
    for write_id in ({}, {"writeId": "2026-11-23"}):
        with pytest.raises(Exception, match="poison"):
            write(poisoned, broker, **options, **write_id)
        assert committed(spark, broker, client, "whole").total() % 400 == 0
        write(frame.selectExpr("string(id) AS value"), broker, **options, **write_id)
    twice = Counter(dict.fromkeys(range(400), 2))
    assert committed(spark, broker, client, "whole") == twice
    write(frame.selectExpr("string(id) AS value"), broker, **options, writeId="2026-11-23")  # is there already
    assert committed(spark, broker, client, "whole") == twice


def run_stream(spark: Any, broker: Broker, directory: Path, **options: str) -> int:
    """Copy the topic "source", shuffled by key; return the number of tasks that have written."""
    stream = spark.readStream.format("warmlog").options(
        bootstrap=broker.native, topic="source", startingOffsets="earliest"
    )
    writer = stream.load().repartition("key").select("key", "value").writeStream.format("warmlog")
    writer = writer.options(bootstrap=broker.native, report=str(directory / "report"), **options)
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    tasks: int = json.loads((directory / "report").read_text().splitlines()[-1])["tasks"]
    return tasks


def test_a_stream_has_as_many_tasks_as_its_shuffle_has_partitions(
    spark: Any, broker: Broker, client: Client, source: None, tmp_path: Path
) -> None:
    """Whatever their sizes: adaptive execution of streams was turned off when the source was registered."""
    assert run_stream(spark, broker, tmp_path, topic="shuffled") == 2
    assert values(spark, broker, "shuffled") == Counter(range(600))


@pytest.mark.skipif(not has_adaptive_streams(), reason="this version of Spark has no adaptive execution of streams")
def test_a_stream_whose_rows_may_be_divided_anew_stores_nothing_unless_in_transactions(
    spark: Any, broker: Broker, client: Client, source: None, tmp_path: Path
) -> None:
    spark.conf.set(ADAPTIVE_STREAMS, "true")
    try:
        with pytest.raises(Exception, match=r"needs spark\.sql\.adaptive\.streaming\.stateless\.enabled=false or tra"):
            run_stream(spark, broker, tmp_path, topic="adaptive")
        assert "adaptive" not in [topic.name for topic in client.list_topics()]
        (tmp_path / "whole").mkdir()
        run_stream(spark, broker, tmp_path / "whole", topic="adaptive", transactional="true")
    finally:
        spark.conf.set(ADAPTIVE_STREAMS, "false")
    assert committed(spark, broker, client, "adaptive") == Counter(range(600))
