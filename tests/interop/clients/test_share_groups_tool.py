"""kafka-share-groups on a group with history, of Kafka and of warmlog: the same output, character for character."""

import re
import subprocess
from collections.abc import Mapping

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from interop.java_tools import call, run
from interop.kafka_node import WIRE_VERSION, launch

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

RECORDS = 30
LIMIT_S = 60
FIRST_MS = 1_700_000_000_000
COMMANDS_WITH_MEMBERS = """
--list --state
--describe --group g --state --verbose
--describe --group g --members
--describe --group g --members --verbose
--describe --group g --offsets
--reset-offsets --group g --topic jobs --to-earliest --execute
--delete-offsets --group g --topic jobs
--delete --group g
"""
COMMANDS = """
--list
--describe --group g
--describe --group g --offsets --verbose
--describe --group g --state --verbose
--describe --group g --members --verbose
--describe --all-groups
--describe --group absent
--reset-offsets --group g --topic jobs --to-earliest --dry-run
--reset-offsets --group g --topic jobs --to-datetime 2023-11-14T22:13:35.000 --execute
--describe --group g
--reset-offsets --group g --topic jobs --to-latest --execute
--describe --group g
--reset-offsets --group g --all-topics --to-earliest --execute
--reset-offsets --group g --topic jobs:1 --to-latest --execute
--describe --group g
--reset-offsets --group new --topic jobs --to-earliest --execute
--reset-offsets --group g --topic absent --to-earliest --execute
--reset-offsets --group absent --all-topics --to-earliest --execute
--describe --group new
--delete-offsets --group g --topic jobs
--delete-offsets --group g --topic other
--delete-offsets --group g --topic absent
--describe --group g
--delete --group g
--delete --group absent
--delete --group new
--list
"""


def outputs(bootstrap: str, commands: str) -> Mapping[str, str]:
    """Return what the tool prints, without addresses and ids of members."""
    lines = commands.strip().splitlines()
    calls = {f"{number} {line}": call(f"kafka-share-groups {line}") for number, line in enumerate(lines)}
    text = {name: f"{done.status} {done.output}" for name, done in run(bootstrap, calls).items()}
    hidden = re.compile(r"127\.0\.0\.1:\d+|/127\.0\.0\.1|[\w-]{22}(?=\s)")
    return {name: re.sub(r"[ -]+", " ", hidden.sub("…", output)) for name, output in text.items()}


def produce(bootstrap: str, begin: int, end: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(begin, end):
        producer.produce("jobs", b"%d" % number, partition=number % 3, timestamp=FIRST_MS + 1000 * number)
    assert producer.flush(LIMIT_S) == 0


def history(bootstrap: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Let a member accept records, and return the tool's outputs while it runs, and after it has left."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic("jobs", 3, 1), NewTopic("other", 1, 1)]).values():
        future.result(LIMIT_S)
    earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, "g", incremental_configs=[earliest])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(LIMIT_S)
    produce(bootstrap, 0, RECORDS)
    command = [*launch(WIRE_VERSION), "warmlog.interop.ShareMembers", bootstrap, "g", "jobs", "explicit"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as member:
        assert member.stdout is not None
        accepted = 0
        while accepted < RECORDS:
            accepted += member.stdout.readline().startswith("accepted")
        running = outputs(bootstrap, COMMANDS_WITH_MEMBERS)
        member.communicate(timeout=LIMIT_S)
    produce(bootstrap, RECORDS, RECORDS + 6)
    return running, outputs(bootstrap, COMMANDS)


def test_the_tool_prints_the_same_as_with_kafka(fresh_kafka: str, fresh_warmlog: str) -> None:
    kafka, ours = history(fresh_kafka), history(fresh_warmlog)
    for expected, found in zip(kafka, ours, strict=True):
        for name, output in expected.items():
            assert found[name] == output, name
    assert "g jobs 0 5 7" in kafka[1]["9 --describe --group g"]
