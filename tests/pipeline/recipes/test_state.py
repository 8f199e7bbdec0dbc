"""docs/pipeline/state.md: the alarms are those of a loop over the log, however often the program is killed."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import GroupedData

from tests.pipeline.recipes.pages import PATIENCE_S, block, changed, environment, run
from tests.pipeline.session import takes_limits
from warmlog.client.blocking import Client
from warmlog.testing import Broker

pytestmark = pytest.mark.skipif(not hasattr(GroupedData, "transformWithState"), reason="the method came with Spark 4.1")
PARTITIONS = 3
POLL_S = 0.02


@pytest.fixture
def broker(can_run_spark: None, tmp_path: Path) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path / "data") as running:
        with Client(running.native) as client:
            client.create_topic("readings", partitions=PARTITIONS)
        yield running


def produce(broker: Broker, first: int, count: int) -> None:
    """Produce readings of three sensors, each to a partition of its own."""
    with Client(broker.native) as client:
        for sensor in range(PARTITIONS):
            rows = [(b"sensor-%d" % sensor, b"%d" % reading) for reading in readings(sensor, first, count)]
            client.produce_many("readings", rows, partition=sensor)


def readings(sensor: int, first: int, count: int) -> list[int]:
    return [at * 7919 % 100 for at in range(first, first + count) if at % PARTITIONS == sensor]


def expected(count: int) -> list[tuple[bytes, bytes]]:
    """The alarms of all sensors, by a loop over their readings."""
    alarms = []
    for sensor in range(PARTITIONS):
        high = 0
        for offset, reading in enumerate(readings(sensor, 1, count)):
            before, high = high, high + 1 if reading > 50 else 0
            if high == 2 or (before >= 2 and high == 0):
                alarms.append((b"sensor-%d" % sensor, b"%s at %d" % (b"raised" if high else b"ended", offset)))
    return sorted(alarms)


def stored(broker: Broker) -> list[tuple[bytes, bytes]]:
    with Client(broker.native) as client:
        records = client.consume("alarms", start="beginning", until_end=True, isolation="read_committed")
        return sorted((record.key or b"", record.value or b"") for record in records)


def write_program(broker: Broker, directory: Path, batch: int) -> None:
    """Write the page's program, with micro-batches of so many offsets."""
    addresses = {"127.0.0.1:9091": broker.native, "local[*]": "local[2]", '"1000000"': f'"{batch}"', '"4"': '"2"'}
    (directory / "alarms.py").write_text(changed(block("state", "python alarms.py"), addresses))


@pytest.mark.interop  # starts a Spark of its own
def test_the_state_is_there_in_the_next_run(broker: Broker, tmp_path: Path) -> None:
    write_program(broker, tmp_path, 1_000_000)
    for first, count in ((1, 1000), (1001, 1500)):
        produce(broker, first, count)
        run(["python", "alarms.py"], tmp_path)
        assert stored(broker) == expected(first + count - 1)


@pytest.mark.stacks
@takes_limits
def test_a_program_that_is_killed_in_mid_batch_raises_each_alarm_once(broker: Broker, tmp_path: Path) -> None:
    produce(broker, 1, 400)
    write_program(broker, tmp_path, 100)
    number = random.randrange(1, 3)
    kill_in_the_middle(tmp_path, number)
    run(["python", "alarms.py"], tmp_path)
    assert stored(broker) == expected(400), number


def kill_in_the_middle(directory: Path, number: int) -> None:
    """Start the program, and kill it in the micro-batch of this number, or in a later one."""
    checkpoint = directory / "lake" / "alarms"
    with (directory / "output").open("w") as output:
        process = subprocess.Popen(
            ["python", "alarms.py"],
            cwd=directory,
            env=environment(),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            until = time.monotonic() + PATIENCE_S
            while not is_in_the_middle(checkpoint, number):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
                assert process.returncode is None, (directory / "output").read_text()[-6000:]
                assert time.monotonic() < until, (directory / "output").read_text()[-6000:]
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_S)


def is_in_the_middle(checkpoint: Path, least: int) -> bool:
    """Whether the last micro-batch that was planned is not done, and is of this number or a later one."""
    planned = [int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*")]
    return max(planned, default=-1) >= least and not (checkpoint / "commits" / str(max(planned))).exists()
