"""Members of share groups that are programs: Kafka's Java client, confluent-kafka, franz-go's own tests."""

import json
import os
import re
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

import interop.kafka_node
from interop.kafka_node import WIRE_VERSION, MissingToolError, java
from tests.interop.clients.programs import GO_DIRECTORY, program
from tests.requires import lacks

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PROJECT = Path(interop.kafka_node.__file__).parent / "go"
LIMIT_S = 60
IDLE_MS = 6_000  # longer than the interval of heartbeats
FRANZ_GO = {"TestShareGroup", "TestShareGroupETL", "TestShareGroupAckOnClose", "TestShareGroupOffsetsAdmin"}


def prepare(bootstrap: str, group: str, *topics: NewTopic, **configs: str) -> None:
    """Create topics, and let a group begin at their first records, with settings of its own."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics(list(topics)).values():
        future.result()
    own = {"share_auto_offset_reset": "earliest", **configs}
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in own.items()
    ]
    for future in admin.incremental_alter_configs(
        [ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)]
    ).values():
        future.result()


def produce(bootstrap: str, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "lz4"})
    for value in values:
        producer.produce(topic, value.encode(), key=value.encode())
    assert producer.flush(LIMIT_S) == 0


def records(bootstrap: str, topic: str, count: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"of-{topic}", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    messages, deadline = list[Any](), time.monotonic() + LIMIT_S
    while len(messages) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            messages.append(message)
    consumer.close()
    return messages


def test_what_javas_members_accept_release_reject_and_renew(fresh_warmlog: str, java_tools: None) -> None:
    takes = NewTopic("dlq.java", 1, 1, config={"errors.deadletterqueue.group.enable": "true"})
    dead_letters = {
        "errors_deadletterqueue_topic_name": "dlq.java",
        "errors_deadletterqueue_copy_record_enable": "true",
    }
    prepare(fresh_warmlog, "java", NewTopic("java-jobs", 2, 1), takes, **dead_letters)
    expected = {f"accept{number}": 1 for number in range(200)}
    for number in range(3):
        expected |= {f"reject{number}": 1, f"release{number}": 5, f"once{number}": 2, f"renew{number}": 2}
    produce(fresh_warmlog, "java-jobs", *expected)
    output = java(
        "warmlog.interop.ShareConsume", fresh_warmlog, "java", "java-jobs", str(IDLE_MS), version=WIRE_VERSION
    )
    seen = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    assert Counter(value for _, _, value, _ in seen["deliveries"]) == expected
    assert seen["errors"] == []
    assert max(deliveries for *_, deliveries in seen["deliveries"]) == 5
    letters = records(fresh_warmlog, "dlq.java", 6)
    causes = Counter(dict(letter.headers())["__dlq.errors.message"] for letter in letters)
    assert causes == {b"Offset rejected by client.": 3, b"Offset delivery count exceeded the threshold.": 3}
    assert {letter.value().decode()[:-1] for letter in letters} == {"reject", "release"}


def test_confluents_member_gets_each_record_once(fresh_warmlog: str) -> None:
    prepare(fresh_warmlog, "confluent", NewTopic("confluent-jobs", 4, 1))
    produce(fresh_warmlog, "confluent-jobs", *[f"v{number}" for number in range(20_000)])
    member = ShareConsumer({"bootstrap.servers": fresh_warmlog, "group.id": "confluent"})
    member.subscribe(["confluent-jobs"])
    seen: Counter[tuple[int, int]] = Counter()
    deadline = time.monotonic() + LIMIT_S
    while len(seen) < 20_000 and time.monotonic() < deadline:
        for message in member.poll(timeout=1.0) or ():
            assert message.error() is None
            seen[message.partition(), message.offset()] += 1
    member.close()
    assert (len(seen), sum(seen.values())) == (20_000, 20_000)


@pytest.mark.parametrize("has_chaos", [False, True])
def test_franz_gos_own_tests_of_share_groups_pass(fresh_warmlog: str, has_chaos: bool) -> None:
    """With chaos, each connection lives for a second."""
    try:
        go = program("go", "golang-go", also=GO_DIRECTORY)
    except MissingToolError as error:
        lacks(error)
    built = PROJECT / "target" / "kgo.test"
    built.parent.mkdir(exist_ok=True)
    subprocess.run([go, "test", "-c", "-o", built, "github.com/twmb/franz-go/pkg/kgo"], cwd=PROJECT, check=True)
    settings = {
        "KGO_SEEDS": fresh_warmlog,
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": "20000",
        "KGO_LOG_LEVEL": "none",
        **({"KGO_TEST_CHAOS": "1"} if has_chaos else {}),
    }
    command = [built, "-test.run", "^TestShareGroup", "-test.v", "-test.timeout=200s"]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert set(re.findall(r"--- PASS: (\w+)", done.stdout)) >= FRANZ_GO, done.stdout[-4000:]
