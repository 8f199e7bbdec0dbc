"""Idempotent producers across brokers: a directory moves, and its producers go on where they were."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from interop.kafka_node import KafkaNode, create_topics, launch
from interop.ports import free_ports
from tests.broker.kafka_client import KafkaClient, kafka_client
from tests.interop.storage.test_kafka_serves import move_in
from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.io.files import OpenFiles
from warmlog.broker.log.partition_log import PartitionLog
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.reader import records_in
from warmlog.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC = "sequences"
PRODUCER_ID = 4000
BATCHES = 30
CONFIG = LogConfig(segment_bytes=4096, index_interval_bytes=512, segment_index_bytes=4096)
MESSAGES = 12_000


def batch(sequence: int, *, epoch: int = 0) -> bytes:
    rows = [(int(time.time() * 1000), None, b"%d" % sequence + b"x" * 200, ())]  # older producers would be forgotten
    return build_batch(rows, producer_id=PRODUCER_ID, producer_epoch=epoch, base_sequence=sequence)


async def produce(client: KafkaClient, records: bytes) -> tuple[ErrorCode, int]:
    """(error, base offset)."""
    data = [{"name": TOPIC, "partition_data": [{"index": 0, "records": records}]}]
    reply = await client.ask("Produce", 9, transactional_id=None, acks=-1, timeout_ms=5000, topic_data=data)
    found = reply["responses"][0]["partition_responses"][0]
    return ErrorCode(found["error_code"]), found["base_offset"]


async def last_sequence(client: KafkaClient) -> int:
    reply = await client.ask("DescribeProducers", topics=[{"name": TOPIC, "partition_indexes": [0]}])
    (producer,) = reply["topics"][0]["partitions"][0]["active_producers"]
    assert producer["producer_id"] == PRODUCER_ID
    found: int = producer["last_sequence"]
    return found


async def goes_on(bootstrap: str) -> None:
    """Whoever serves the directory knows its producer: it may repeat, go on, and leave nothing out."""
    async with kafka_client(bootstrap) as client:
        assert await last_sequence(client) == BATCHES - 1
        assert await produce(client, batch(BATCHES - 1)) == (ErrorCode.NONE, BATCHES - 1)
        assert await produce(client, batch(BATCHES + 1)) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        assert await produce(client, batch(BATCHES)) == (ErrorCode.NONE, BATCHES)
        assert await produce(client, batch(BATCHES)) == (ErrorCode.NONE, BATCHES)
        assert await produce(client, batch(0, epoch=1)) == (ErrorCode.NONE, BATCHES + 1)
        assert await produce(client, batch(BATCHES + 1)) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)


@pytest.mark.parametrize("stopped", ["cleanly", "by a kill"])
async def test_kafka_goes_on_with_our_producers(tmp_path: Path, stopped: str) -> None:
    ours = tmp_path / f"{TOPIC}-0"
    log = PartitionLog.open(
        ours, topic=TOPIC, partition=0, config=CONFIG, files=OpenFiles(),
        clock=lambda: int(time.time() * 1000), random=Random(1), clean=True,
    )  # fmt: skip
    for sequence in range(BATCHES):
        log.appends.append(batch(sequence))
    log.close(clean=stopped == "cleanly")
    node = KafkaNode(tmp_path / "kafka")
    with node:
        create_topics(node.bootstrap, {TOPIC: {"internal.segment.bytes": CONFIG.segment_bytes}})
    move_in(ours, node.data / ours.name)
    if stopped == "by a kill":
        (node.data / ".kafka_cleanshutdown").unlink()
    with node:
        await goes_on(node.bootstrap)


@pytest.mark.parametrize("stopped", ["cleanly", "by a kill"])
async def test_we_go_on_with_kafkas_producers(tmp_path: Path, stopped: str) -> None:
    node = KafkaNode(tmp_path / "kafka")
    with node:
        create_topics(node.bootstrap, {TOPIC: {"internal.segment.bytes": CONFIG.segment_bytes}})
        async with kafka_client(node.bootstrap) as client:
            for sequence in range(BATCHES):
                assert await produce(client, batch(sequence)) == (ErrorCode.NONE, sequence)
        if stopped == "by a kill":
            node.kill()
    data = tmp_path / "ours"
    with Broker(data_dir=data) as broker:
        async with kafka_client(broker.kafka) as client:
            topic = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
            await client.ask("CreateTopics", topics=[topic], timeout_ms=1000)
    shutil.rmtree(data / f"{TOPIC}-0")
    shutil.copytree(node.data / f"{TOPIC}-0", data / f"{TOPIC}-0")
    if stopped == "by a kill":
        (data / ".kafka_cleanshutdown").unlink()
    with Broker(data_dir=data) as broker:
        await goes_on(broker.kafka)
        async with kafka_client(broker.kafka) as client:
            given: dict[str, Any] = await client.ask("InitProducerId", transactional_id=None)
            assert given["producer_id"] > PRODUCER_ID  # or a new producer would be taken for that one


# -- Java's producer, and a broker that is killed under it ------------------------------


@contextmanager
def broker_process(data: Path, port: int) -> Iterator[None]:
    """A broker at an address that is known; killed at the end."""
    command = [sys.executable, "-m", "warmlog", "serve", "--data-dir", str(data), "--kafka", f"127.0.0.1:{port}"]
    command += ["--native", "none", "--http", "none", "--set", "log.segment.bytes=20000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "CI": ""})
    try:
        assert process.stdout is not None
        assert any(line.startswith("ready") for line in process.stdout)
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def producer_process(command: list[str]) -> Iterator[Iterator[str]]:
    """A program, and the lines that it prints; ended at the end."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            yield iter(process.stdout)
        finally:
            process.kill()


def test_javas_producer_keeps_each_message_once_and_in_order_while_the_broker_is_killed(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    settings = tmp_path / "producer.properties"
    settings.write_text(  # the tool tries once, unless told otherwise, and is not idempotent then
        "retries=2147483647\nenable.idempotence=true\nbatch.size=500\nlinger.ms=0\n"
        "reconnect.backoff.ms=10\nreconnect.backoff.max.ms=50\n"
    )
    command = [*launch(), "org.apache.kafka.tools.VerifiableProducer", "--topic", TOPIC]
    command += ["--bootstrap-server", f"127.0.0.1:{port}", "--max-messages", str(MESSAGES), "--throughput", "3000"]
    command += ["--command-config", str(settings)]
    with producer_process(command) as said:
        acknowledged = 0
        for upto in (1, 2000, 5000, 8000, MESSAGES):
            with broker_process(tmp_path / "data", port):
                while acknowledged < upto:
                    event = json.loads(next(said))
                    assert event["name"] != "producer_send_error", event
                    acknowledged += event["name"] == "producer_send_success"
    logs = sorted((tmp_path / "data" / f"{TOPIC}-0").glob("*.log"))
    assert len(logs) > 3
    values = [int(record.value or b"") for log in logs for record in records_in(log.read_bytes())]
    assert values == list(range(MESSAGES))
