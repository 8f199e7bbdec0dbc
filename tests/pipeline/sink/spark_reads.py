"""What Spark reads of the topics that the tests of the sink wrote."""

from collections import Counter
from typing import Any

from tests.pipeline.sink.attempt import wait_for_markers
from warmlog.client.blocking import Client
from warmlog.testing import Broker


def read(spark: Any, broker: Broker, topic: str, **options: str) -> Any:
    return spark.read.format("warmlog").options(bootstrap=broker.native, topic=topic, **options).load()


def committed(spark: Any, broker: Broker, client: Client, topic: str) -> Counter[int]:
    """Return the values that readers of committed records see once all markers are written."""
    wait_for_markers(client)
    return values(spark, broker, topic, isolationLevel="read_committed")


def values(spark: Any, broker: Broker, topic: str, **options: str) -> Counter[int]:
    return Counter(int(bytes(row.value)) for row in read(spark, broker, topic, **options).select("value").collect())
