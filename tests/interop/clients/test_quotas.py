"""Quotas that Kafka's tools set hold up Kafka's clients, on Kafka and on warmlog; others are not held up."""

import re
from collections.abc import Mapping

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from interop.java_tools import ToolOutput, call, run

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC = "limited"
RATE = 100_000
RECORDS = 11_000  # of 100 bytes: more than ten windows of the rate

Answers = Mapping[str, ToolOutput]


def story(bootstrap: str) -> Answers:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result()
    produce = f"kafka-producer-perf-test --topic {TOPIC} --record-size 100 --throughput -1 --print-metrics"
    consume = f"kafka-consumer-perf-test --topic {TOPIC} --num-records {RECORDS} --print-metrics"
    limit = "kafka-configs --alter --entity-type clients --add-config"
    calls = {
        "limit the producer": call(f"{limit} producer_byte_rate={RATE} --entity-name perf-producer-client"),
        "limited produce": call(f"{produce} --num-records {RECORDS}"),
        "produce of another": call(f"{produce} --num-records {RECORDS} --command-property client.id=other"),
        "consume": call(f"{consume} --group one --command-property client.id=unlimited"),
        "limit consumers": call(f"{limit} consumer_byte_rate={RATE} --entity-default"),
        "limited consume": call(f"{consume} --group two"),
    }
    return run(bootstrap, calls)


@pytest.fixture(scope="module", params=["fresh_kafka", "fresh_warmlog"])
def said(request: pytest.FixtureRequest, java_tools: None) -> Answers:
    return story(request.getfixturevalue(request.param))


def throttle_ms(said: ToolOutput, metric: str) -> float:
    """The longest throttle time that a client has seen."""
    (found,) = re.findall(rf"{metric}-throttle-time-max:\S*\s*:\s*([\d.]+|NaN)", said.output)
    return float(found)


def test_every_record_is_produced_and_consumed(said: Answers) -> None:
    assert {name: each.status for name, each in said.items()} == dict.fromkeys(said, 0), said
    assert f"{RECORDS} records sent" in said["limited produce"].output


def test_a_producer_above_its_rate_is_throttled_and_another_is_not(said: Answers) -> None:
    assert throttle_ms(said["limited produce"], "produce") > 0
    assert not throttle_ms(said["produce of another"], "produce") > 0


def test_a_consumer_above_its_rate_is_throttled_and_another_was_not(said: Answers) -> None:
    assert throttle_ms(said["limited consume"], "fetch") > 0
    assert not throttle_ms(said["consume"], "fetch") > 0
