"""Regenerate the directories of older versions below tests/fixtures/kafka (Java, Maven).

`python interop/generate_followers.py [VERSION...]` starts a leader and a follower of each version with a topic of one
partition. The follower is down while records are produced, so that it appends several batches at a time after it
returns. Then both are stopped cleanly: `leader` and `follower` below the version are their data directories.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

sys.path.insert(0, str(Path(__file__).parent.parent))

from interop.generate_fixtures import LEFT_OUT, wait_until
from interop.kafka_node import SETTINGS, KafkaNode

FIXTURES = Path(__file__).parent.parent / "tests" / "fixtures" / "kafka"
#: Kafka 4.1 changed the rule of a follower's offset index, Kafka 3.8 that of time indexes.
VERSIONS = ("3.7.2", "3.9.0", "3.9.1", "4.0.0")
TOPIC = "copied"
BATCHES, RECORDS = 150, 5
FIRST_MS = 1_700_000_000_000
#: Limit of a follower's appends: a few batches.
FETCH_BYTES = 2000


def main() -> None:
    """Regenerate the directories of the given versions, or of all."""
    for version in sys.argv[1:] or VERSIONS:
        with tempfile.TemporaryDirectory() as name:
            make(Path(name), version)


def make(work: Path, version: str) -> None:
    """Let a follower of one version replicate a leader's log, and save both directories."""
    appends = {"replica.fetch.max.bytes": FETCH_BYTES, "replica.fetch.response.max.bytes": FETCH_BYTES}
    settings = {**SETTINGS, **appends, "log.retention.ms": -1}  # the records are old
    data = {"leader": work / "leader", "follower": work / "follower"}
    with KafkaNode(data["leader"], settings=settings, version=version) as leader:
        follower = KafkaNode(data["follower"], settings={**settings, "node.id": 2}, version=version, controller=leader)
        with follower:
            admin = AdminClient({"bootstrap.servers": leader.bootstrap})
            created = admin.create_topics([NewTopic(TOPIC, 1, replica_assignment=[[1, 2]])])
            created[TOPIC].result()
            wait_until((data["follower"] / f"{TOPIC}-0").exists, "the follower's directory")
        produce(leader.bootstrap)
        with follower:
            wait_until(lambda: log_size(data["follower"]) == log_size(data["leader"]), "the follower")
    for name, path in data.items():
        target = FIXTURES / version / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(path, target, ignore=LEFT_OUT)


def produce(bootstrap: str) -> None:
    """Produce batches whose first record has the largest time; times increase from batch to batch."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1000, "acks": 1})
    for batch in range(BATCHES):
        for record in range(RECORDS):
            number = batch * RECORDS + record
            time_ms = FIRST_MS + 1000 * batch + RECORDS - record
            producer.produce(TOPIC, value=f"record {number} {'x' * 40}", partition=0, timestamp=time_ms)
        producer.flush()


def log_size(data: Path) -> int:
    """Return the size of a node's log; -1 while a follower replaces it."""
    try:
        return (data / f"{TOPIC}-0" / f"{0:020}.log").stat().st_size
    except FileNotFoundError:
        return -1


if __name__ == "__main__":
    main()
