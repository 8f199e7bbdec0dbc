"""Kafka's tools on a streams group with history, of Kafka and of warmlog: the same output, line for line."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from interop.java_tools import call, run
from interop.kafka_node import KAFKA_VERSION, WIRE_VERSION
from tests.interop.clients.exactly_once import PARTITIONS, create, fill, wait_for
from tests.interop.clients.word_count import WORDS, instances, line, wait_for_tasks

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

LINES = 30
#: Without a tool's name: of kafka-streams-groups.
COMMANDS_WITH_MEMBERS = """
kafka-groups --list
kafka-groups --list --streams
kafka-groups --list --group-type streams
--list
--list --state
--list --state Stable
--describe --group tool
--describe --group tool --verbose
--describe --group tool --offsets --verbose
--describe --group tool --state
--describe --group tool --state --verbose
--describe --group tool --members
--describe --group tool --members --verbose
--describe --all-groups
--reset-offsets --group tool --all-input-topics --to-earliest --execute
--delete-offsets --group tool --input-topic tool-in
--delete --group tool
"""
SETTINGS = """
kafka-configs --describe --entity-type groups --entity-name tool
kafka-configs --alter --entity-type groups --entity-name tool --add-config streams.session.timeout.ms=2500
kafka-configs --describe --entity-type groups --entity-name tool
kafka-configs --alter --entity-type groups --entity-name tool --delete-config streams.session.timeout.ms
"""
COMMANDS = """
--list --state
--describe --group tool
--describe --group tool --offsets --verbose
--describe --group tool --state --verbose
--describe --group tool --members --verbose
--describe --group absent
--describe --group absent --state
--reset-offsets --group tool --all-input-topics --to-earliest --dry-run
--reset-offsets --group tool --input-topic tool-in:1 --to-offset 3 --dry-run
--reset-offsets --group tool --input-topic tool-in --shift-by -2 --dry-run --export
--reset-offsets --group tool --input-topic absent --to-earliest --dry-run
--reset-offsets --group absent --all-input-topics --to-earliest --dry-run
--reset-offsets --group tool --input-topic tool-in:1 --to-offset 3 --execute
--describe --group tool
--reset-offsets --group tool --all-input-topics --to-earliest --execute
--describe --group tool
--delete-offsets --group tool --input-topic tool-in:0
--delete-offsets --group tool --input-topic absent
--describe --group tool
--delete --group tool
--delete --group absent
--list
"""
#: Addresses, the ids of members, processes and clients, and offsets that depend on the number of transactions.
HIDDEN = re.compile(
    r"(?<=repartition)[ \d]+$|127\.0\.0\.1:\d+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<![\w-])[\w-]{22}(?=\s)"
)


def outputs(bootstrap: str, commands: str, version: str = WIRE_VERSION) -> Mapping[str, str]:
    """Return what tools print, without what differs from one run to the next."""
    calls = {}
    for number, text in enumerate(commands.strip().splitlines()):
        calls[f"{number} {text}"] = call(text if text.startswith("kafka-") else f"kafka-streams-groups {text}")
    done = run(bootstrap, calls, version=version)
    return {name: f"{each.status} {steady(each.output)} {steady(each.complaints)}" for name, each in done.items()}


def steady(text: str) -> str:
    lines = [re.sub(r"[ -]+", " ", HIDDEN.sub("…", line)).strip() for line in text.splitlines()]
    return "\n".join(sorted(line for line in lines if "\tat " not in line and not line.startswith("at ")))


def history(bootstrap: str, directory: Path) -> Sequence[Mapping[str, str]]:
    """Let an instance count words, and return the tools' outputs while it runs, and after it has left."""
    create(bootstrap, "tool-in", "tool-out")
    with instances(bootstrap, "tool", directory) as start:
        instance = start(1)
        wait_for_tasks([instance], "active", 2 * PARTITIONS)
        fill(bootstrap, "tool-in", [line(number) for number in range(LINES)])
        wait_for(bootstrap, "tool-out", LINES * WORDS)
        running = outputs(bootstrap, COMMANDS_WITH_MEMBERS)
        settings = outputs(bootstrap, SETTINGS, KAFKA_VERSION)
        instance.stop()
    return running, settings, outputs(bootstrap, COMMANDS)


def test_the_tool_prints_the_same_as_with_kafka(fresh_kafka: str, fresh_warmlog: str, tmp_path: Path) -> None:
    kafka, ours = history(fresh_kafka, tmp_path / "kafka"), history(fresh_warmlog, tmp_path / "warmlog")
    for expected, found in zip(kafka, ours, strict=True):
        for name, output in expected.items():
            assert found[name] == output, name
    assert "ACTIVE: 0:[0,1,2]; 1:[0,1,2];" in kafka[0]["12 --describe --group tool --members --verbose"]
    assert "tool in 1 3" in kafka[2]["8 --reset-offsets --group tool --input-topic tool-in:1 --to-offset 3 --dry-run"]
