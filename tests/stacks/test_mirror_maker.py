"""MirrorMaker 2 copies both ways between Kafka and warmlog, which is killed meanwhile: every record is copied."""

import subprocess
from pathlib import Path

import pytest

from interop.kafka_node import KafkaNode, launch
from interop.warmlog_nodes import WarmlogNode
from tests.interop.clients.exactly_once import create, fill, values, wait_for
from tests.stacks.conftest import killed

pytestmark = [pytest.mark.stacks, pytest.mark.timeout(400)]

TOPIC = "mirrored"
VALUES = 2000
PIECE = 100
MIRROR = """
clusters=kafka,warmlog
kafka.bootstrap.servers={kafka}
warmlog.bootstrap.servers={warmlog}
kafka->warmlog.enabled=true
warmlog->kafka.enabled=true
kafka->warmlog.topics=mirrored.*
warmlog->kafka.topics=mirrored.*
refresh.topics.interval.seconds=1
sync.topic.configs.enabled=false
emit.heartbeats.enabled=false
emit.checkpoints.enabled=false
replication.factor=1
offset-syncs.topic.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
config.storage.replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
offset.flush.interval.ms=1000
"""


def test_records_are_copied_both_ways_and_not_back_while_the_broker_is_killed(
    node: WarmlogNode, kafka: KafkaNode, tmp_path: Path
) -> None:
    sides = {"warmlog": node.bootstrap, "kafka": kafka.bootstrap}
    for bootstrap in sides.values():
        create(bootstrap, TOPIC)
    configuration = tmp_path / "mirror.properties"
    configuration.write_text(MIRROR.format(**sides))
    main = [*launch(), "org.apache.kafka.connect.mirror.MirrorMaker", str(configuration)]
    sent = {side: [f"{side} {number}".encode() for number in range(VALUES)] for side in sides}
    with (tmp_path / "mirror.log").open("wb") as log, subprocess.Popen(main, stdout=log, stderr=log) as mirror:
        try:
            with killed(node) as is_over:
                for at in range(0, VALUES, PIECE):
                    for side, bootstrap in sides.items():
                        fill(bootstrap, TOPIC, sent[side][at : at + PIECE], idempotent=True)
                    is_over.wait(0.5)
                assert is_over.wait(120)
            copies = {"kafka": ("warmlog", f"kafka.{TOPIC}"), "warmlog": ("kafka", f"warmlog.{TOPIC}")}
            for of, (at_side, topic) in copies.items():
                wait_for(sides[at_side], topic, len(sent[of]))
        finally:
            mirror.kill()
    for of, (at_side, topic) in copies.items():
        found = values(sides[at_side], topic)
        assert set(found) == set(sent[of]), "each at least once"
        assert values(sides[at_side], TOPIC) == sorted(sent[at_side]), "nothing is copied back"
