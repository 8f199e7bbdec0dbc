"""Topologies fitted to topics by this broker and by Kafka's own InternalTopicManager, for the same topics."""

import json
import re
from collections.abc import Mapping
from random import Random
from typing import Any, NamedTuple

import pytest

from interop.kafka_node import PROJECT, WIRE_VERSION, java
from tests.broker.groups.streams.topics import ExistingTopics
from warmlog.broker.groups.streams.topology.configured import ConfiguredTopology, configure
from warmlog.broker.groups.streams.topology.problems import InvalidTopologyError
from warmlog.protocol.kafka.messages.groups.streams import CopartitionGroup, InternalTopic, Subtopology, Topology

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PROGRAM = PROJECT / "src" / "latest" / "java" / "warmlog" / "interop" / "Topologies.java"
SEEDS = range(3000)
#: Kafka names topics in the order of its hash maps, and the first of several that do not fit.
ORDERED_BY_HASH = re.compile(r"(?<=missing: ).*|(?<=Source topics ).*(?= are)|(?<=Existing topic ).*|(?<=Number of ).*")


class Question(NamedTuple):
    topology: Topology
    topics: Mapping[str, int]

    def line(self) -> str:
        """Return the question as the Java program reads it."""
        record = {"epoch": self.topology.epoch, "subtopologies": list(map(_subtopology, self.topology.subtopologies))}
        return json.dumps({"topology": record, "topics": self.topics}) + "\n"


def _subtopology(each: Subtopology) -> dict[str, Any]:
    return {
        "subtopologyId": each.subtopology_id,
        "sourceTopics": each.sources,
        "sourceTopicRegex": [],
        "stateChangelogTopics": [_topic(topic) for topic in each.changelogs],
        "repartitionSinkTopics": each.repartition_sinks,
        "repartitionSourceTopics": [_topic(topic) for topic in each.repartition_sources],
        "copartitionGroups": [
            {
                "sourceTopics": group.sources,
                "sourceTopicRegex": [],
                "repartitionSourceTopics": group.repartition_sources,
            }
            for group in each.copartition_groups
        ],
    }


def _topic(topic: InternalTopic) -> dict[str, Any]:
    named = {"name": topic.topic, "partitions": topic.partitions}
    return {**named, "replicationFactor": topic.replication_factor, "topicConfigs": []}


def random_question(seed: int) -> Question:
    """Return a topology of a few subtopologies in a chain or with loops, and topics that mostly fit."""
    dice = Random(seed)
    count = dice.randint(1, 6)
    sources = [f"s{number}" for number in range(dice.randint(1, 4))]
    repartition = [f"r{number}" for number in range(dice.randint(0, 4))]
    usual = dice.randint(1, 4)
    fixed = {name: dice.choice([0, 0, 0, usual, usual, 5]) for name in repartition}
    writers = {name: dice.randrange(count) for name in repartition if dice.random() < 0.97}
    subtopologies = []
    for number in range(count):
        mine = dice.sample(sources, dice.randint(number == 0, min(2, len(sources))))
        readable = [name for name in repartition if writers.get(name, -1) != number or dice.random() < 0.1]
        reads = dice.sample(readable, dice.randint(0, min(2, len(readable))))
        groups = []
        if dice.random() < 0.5:
            groups.append(
                CopartitionGroup(
                    sources=tuple(dice.sample(range(len(mine)), dice.randint(0, len(mine)))),
                    repartition_sources=tuple(dice.sample(range(len(reads)), dice.randint(0, len(reads)))),
                )
            )
        subtopologies.append(
            Subtopology(
                subtopology_id=str(number),
                sources=tuple(mine),
                changelogs=tuple(InternalTopic(topic=f"c{number}-{each}") for each in range(dice.randint(0, 2))),
                repartition_sinks=tuple(name for name, writer in writers.items() if writer == number),
                repartition_sources=tuple(
                    InternalTopic(topic=name, partitions=fixed[name], replication_factor=dice.choice([0, 3]))
                    for name in reads
                ),
                copartition_groups=tuple(groups),
            )
        )
    topics = {name: dice.choice([usual, usual, usual, 5]) for name in sources if dice.random() < 0.97}
    internal = [*repartition, *(topic.topic for each in subtopologies for topic in each.changelogs)]
    topics |= {name: dice.choice([usual, usual, usual, 5]) for name in internal if dice.random() < 0.2}
    return Question(Topology(epoch=0, subtopologies=tuple(subtopologies)), topics)


def answer(question: Question) -> dict[str, Any]:
    """Return our answer as the Java program prints Kafka's."""
    try:
        made = configure(question.topology, ExistingTopics(question.topics), 0)
    except InvalidTopologyError:
        return {"failed": True}
    status = {} if made.problem is None else {"status": int(made.problem.status), "detail": made.problem.detail}
    missing = {topic.name: [topic.partitions, topic.replication_factor] for topic in made.missing}
    return {**status, **decided(made), "missing": missing}


def decided(made: ConfiguredTopology) -> dict[str, Any]:
    subtopologies = made.subtopologies or {}
    internal = [topic for each in subtopologies.values() for topic in (*each.repartition_sources.values(),)]
    internal += [topic for each in subtopologies.values() for topic in each.changelogs.values()]
    tasks = {subtopology_id: each.number_of_tasks for subtopology_id, each in subtopologies.items()}
    return {"tasks": tasks, "internal": {topic.topic: topic.partitions for topic in internal}}


def steady(fields: dict[str, Any]) -> dict[str, Any]:
    if "detail" in fields:
        fields["detail"] = ORDERED_BY_HASH.sub("…", fields["detail"])
    return {"failed": True} if "failed" in fields else fields


def test_topologies_are_configured_as_kafka_configures_them() -> None:
    questions = [random_question(seed) for seed in SEEDS]
    lines = java(str(PROGRAM), text="".join(each.line() for each in questions), version=WIRE_VERSION).splitlines()
    kinds = set()
    for question, line in zip(questions, lines, strict=True):
        kafkas = json.loads(line)
        assert kafkas.get("failed", "StreamsInvalidTopologyException") == "StreamsInvalidTopologyException", question
        assert steady(answer(question)) == steady(kafkas), question
        kinds.add(-1 if "failed" in kafkas else kafkas.get("status", 0))
    assert kinds == {-1, 0, 1, 2, 3}
