"""Spark's own Kafka connector against our Kafka listener: batch, stream, sink, times, headers.

Which version of it works with which Spark is in docs/pipeline/kafka-connector.md.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.kafka_node import MissingToolError
from interop.spark_connector import connector_jars, read_batch, read_stream, write_batch
from tests.pipeline.session import spark_session
from tests.requires import lacks
from tests.warmlog.cli.test_secure import properties, served
from warmlog.client.blocking import Client
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.session import check_spark
from warmlog.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

NOW_MS = 1_700_000_000_000
CONNECTOR = "4.2.0"
COUNT = 90


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    try:
        check_spark()
        jars = connector_jars(CONNECTOR)
    except (PipelineError, MissingToolError) as error:
        lacks(error)
    session = spark_session(tmp_path_factory.mktemp("spark"), {"spark.jars": jars})
    yield session
    session.stop()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"log.segment.bytes": 4096, "log.retention.ms": -1}) as running:
        yield running


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.native) as connected:
        yield connected


@pytest.fixture(scope="module")
def topic(client: Client) -> str:
    """A topic of three partitions with `COUNT` records, one a millisecond, each third one with a header."""
    client.create_topic("orders", partitions=3)
    for at in range(COUNT):
        headers = [("at", b"%d" % at)] if at % 3 == 0 else []
        client.produce(
            "orders", key=b"k%d" % at, value=b"v%d" % at, partition=at % 3, timestamp=NOW_MS + at, headers=headers
        )
    return "orders"


def numbers(frame: Any) -> list[int]:
    return sorted(int(row.value[1:]) for row in frame.select("value").collect())


def test_a_batch_is_what_was_produced(spark: Any, broker: Broker, topic: str) -> None:
    rows = read_batch(spark, broker.kafka, topic, includeHeaders="true").collect()
    found = {
        int(row.value[1:]): (
            bytes(row.key),
            row.topic,
            row.partition,
            row.offset,
            round(row.timestamp.timestamp() * 1000),
            row.timestampType,
            [(header.key, bytes(header.value)) for header in row.headers or ()],
        )
        for row in rows
    }
    assert found == {
        at: (b"k%d" % at, topic, at % 3, at // 3, NOW_MS + at, 0, [("at", b"%d" % at)] if at % 3 == 0 else [])
        for at in range(COUNT)
    }


def test_offsets_and_times_choose_what_is_read(spark: Any, broker: Broker, topic: str) -> None:
    begin = json.dumps({topic: {"0": 5, "1": -2, "2": 29}})
    end = json.dumps({topic: {"0": 7, "1": 1, "2": -1}})
    assert numbers(read_batch(spark, broker.kafka, topic, startingOffsets=begin, endingOffsets=end)) == [1, 15, 18, 89]
    times = {"startingTimestamp": NOW_MS + 40, "endingTimestamp": NOW_MS + 50}
    assert numbers(read_batch(spark, broker.kafka, topic, **times)) == list(range(40, 50))
    each = json.dumps({topic: {str(partition): NOW_MS + 80 for partition in range(3)}})
    assert numbers(read_batch(spark, broker.kafka, topic, startingOffsetsByTimestamp=each)) == list(range(80, COUNT))
    late = {"startingTimestamp": NOW_MS + 9999, "startingOffsetsByTimestampStrategy": "latest"}
    assert numbers(read_batch(spark, broker.kafka, topic, **late)) == []


def test_topics_by_pattern_and_more_splits_than_partitions(spark: Any, broker: Broker, topic: str) -> None:
    frame = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.kafka)
    found = frame.option("subscribePattern", "ord.*").option("minPartitions", "6").load()
    assert found.rdd.getNumPartitions() >= 6
    assert numbers(found) == list(range(COUNT))


def test_a_stream_goes_on_where_its_checkpoint_says(spark: Any, broker: Broker, client: Client, tmp_path: Path) -> None:
    client.create_topic("flow", partitions=2)

    def run() -> None:
        frame = read_stream(spark, broker.kafka, "flow", startingOffsets="earliest", maxOffsetsPerTrigger=7)
        writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "table"))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    for first in (0, 20):
        for at in range(first, first + 20):
            client.produce("flow", value=b"v%d" % at, partition=at % 2)
        run()
    assert numbers(spark.read.parquet(str(tmp_path / "table"))) == list(range(40))


def test_the_sink_writes_what_consumers_read(spark: Any, broker: Broker, client: Client, tmp_path: Path) -> None:
    client.create_topic("totals", partitions=2)
    frame = spark.range(50).selectExpr(
        "cast(id AS string) AS key",
        "concat('v', id) AS value",
        "cast(id % 2 AS int) AS partition",
        "array(named_struct('key', 'id', 'value', cast(cast(id AS string) AS binary))) AS headers",
    )
    write_batch(frame, broker.kafka, topic="totals", includeHeaders="true")
    records = list(client.consume("totals", start="beginning", until_end=True))
    found = sorted((int(record.key or b""), record.value, record.partition, record.headers) for record in records)
    assert found == [(at, b"v%d" % at, at % 2, (("id", b"%d" % at),)) for at in range(50)]


def test_the_stream_sink_writes_what_a_stream_read(
    spark: Any, broker: Broker, client: Client, topic: str, tmp_path: Path
) -> None:
    client.create_topic("copied", partitions=1)
    frame = read_stream(spark, broker.kafka, topic, startingOffsets="earliest").select("key", "value")
    writer = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", broker.kafka).option("topic", "copied")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    values = [record.value for record in client.consume("copied", start="beginning", until_end=True)]
    assert sorted(int((value or b"")[1:]) for value in values) == list(range(COUNT))


def test_the_connector_logs_in(spark: Any, tmp_path: Path) -> None:
    with served(tmp_path) as (_, addresses):
        login = {f"kafka.{name}": value for name, value in properties(tmp_path / "data-secrets").items()}
        frame = spark.range(50).selectExpr("concat('v', id) AS value")
        write_batch(frame, addresses["kafka"], topic="secured", **login)
        assert numbers(read_batch(spark, addresses["kafka"], "secured", **login)) == list(range(50))
