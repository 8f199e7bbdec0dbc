"""A driver killed with kill -9 in the middle of a micro-batch: the table is the log, whoever goes on."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.session import takes_limits
from tests.pipeline.source.streaming_driver import started
from warmlog.client.blocking import Client
from warmlog.testing import Broker

pytestmark = [pytest.mark.interop, takes_limits]  # takes minutes

PARTITIONS = 2
BATCH = 400  # offsets of a micro-batch
LAST = 6000 // BATCH  # micro-batch of a first run
PATIENCE_S = 200.0


def produce(client: Client, first: int, count: int) -> None:
    for partition in range(PARTITIONS):
        values = [(b"%d" % partition, b"%d" % at) for at in range(first, first + count)]
        client.produce_many("orders", values, partition=partition)


def is_in_the_middle_of(checkpoint: Path, number: int) -> bool:
    """Whether a micro-batch was planned and is not done."""
    return (checkpoint / "offsets" / str(number)).exists() and not (checkpoint / "commits" / str(number)).exists()


def test_a_driver_killed_in_mid_batch_loses_and_doubles_nothing(spark: Any, tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "data") as broker, Client(broker.native) as client:
        client.create_topic("orders", partitions=PARTITIONS)
        produce(client, 0, LAST * BATCH // PARTITIONS)
        options = {
            "path": str(tmp_path / "data"),
            "bootstrap": broker.native,
            "topic": "orders",
            "group": "nightly",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(BATCH),
        }
        killed_at = random.randrange(1, 4)
        kill_in_the_middle(tmp_path, options, killed_at)
        produce(client, 3000, 500)
        query = started(spark, tmp_path, {**options, "maxOffsetsPerTrigger": "4000"}, availableNow=True)
        assert query.awaitTermination(PATIENCE_S)
        (group,) = client.describe_groups("nightly")
        rows = spark.read.parquet(str(tmp_path / "table")).select("partition", "offset", "value").collect()
    found = sorted((row.partition, row.offset, int(row.value)) for row in rows)
    assert found == [(partition, at, at) for partition in range(PARTITIONS) for at in range(3500)], killed_at
    assert all(one.offset >= killed_at * BATCH // PARTITIONS for one in group.positions)


def kill_in_the_middle(work: Path, options: dict[str, str], number: int) -> None:
    command = [sys.executable, "-m", "tests.pipeline.source.streaming_driver", str(work), json.dumps(options)]
    errors = work / "driver.log"
    with errors.open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    until = time.monotonic() + PATIENCE_S
    while not any(is_in_the_middle_of(work / "checkpoint", one) for one in range(number, LAST)):
        assert process.poll() is None, errors.read_text()
        assert time.monotonic() < until, errors.read_text()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
