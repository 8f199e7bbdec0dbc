"""Regenerate tests/fixtures/kafka/4.4.0/topic_hashes.jsonl: `python interop/generate_topic_hashes.py` (Java, Maven).

Hashes of topics and groups, computed by Kafka's group coordinator. A line is {"topics": a list of {"id", "name",
"partitions", "racks" of each partition's replicas}, "hash" of the group, "topic_hashes" in the order of the topics}.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from interop.kafka_node import WIRE_VERSION, java

TARGET = Path(__file__).parent.parent / "tests" / "fixtures" / "kafka" / WIRE_VERSION / "topic_hashes.jsonl"
IDS = ["ZROer-cbReKkMjZ9vBhQSg", "YPvN38jyS7OQpYfmpqHMPA", "____________________8w"]


def groups() -> Iterator[list[dict[str, Any]]]:
    """Return the topics of each group: short and long input; without racks, with few, repeated and unusual ones."""
    yield []
    yield [topic(0, "t", 1, [])]
    for partitions in (2, 8, 40, 57, 58, 59, 300, 5000):  # around the lengths at which XXH3 changes its algorithm
        yield [topic(0, "orders", partitions, [])]
    racks = [["b", "a"], ["a", "a", "b"], [], ["räck", "\U0001f409", "\uffee", ",", ""]]
    yield [topic(1, "payments", 4, racks)]
    yield [topic(2, "p" * 249, 100, [["rack-1", "rack-2", "rack-3"]] * 100)]
    several = [topic(number, name, 1 + number, []) for number, name in enumerate(["b", "a", "c.d-E_9"])]
    yield several
    yield [*several, topic(0, "B", 3, [["x"]] * 3)]
    yield [topic(0, f"topic-{number}", number, []) for number in range(1, 60)]


def topic(number: int, name: str, partitions: int, racks: list[list[str]]) -> dict[str, Any]:
    """Return a topic in the Java program's format."""
    return {"id": IDS[number], "name": name, "partitions": partitions, "racks": racks}


def main() -> None:
    """Hash the groups with Kafka's classes; write the topics and the hashes."""
    every = list(groups())
    printed = java(
        "warmlog.interop.TopicHashes", text="".join(f"{json.dumps(each)}\n" for each in every), version=WIRE_VERSION
    )
    with TARGET.open("w", encoding="ascii") as target:
        for topics, line in zip(every, printed.splitlines(), strict=True):
            group_hash, *topic_hashes = json.loads(line)
            print(json.dumps({"topics": topics, "hash": group_hash, "topic_hashes": topic_hashes}), file=target)


if __name__ == "__main__":
    main()
