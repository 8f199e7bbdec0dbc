"""A streaming archive killed with kill -9 while it works: each record is in the table once, and no half batch ever."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.pipeline.archive.test_archive import archived, rows_in
from warmlog.client.blocking import Client
from warmlog.pipeline.archive.store import ArchiveStore
from warmlog.pipeline.source.options import read_options
from warmlog.testing import Broker

pytestmark = pytest.mark.interop  # takes minutes

RECORDS = 20_000  # of each partition, a round
PATIENCE_S = 100.0


class Archiver:
    """`warmlog pipeline archive --every`, as somebody would start it, in a process group of its own."""

    def __init__(self, broker: Broker, lake: Path, engine: list[str]) -> None:
        source = ["--path", str(broker.data_dir), "--bootstrap", broker.native, "--topic", "orders"]
        target = ["--to", str(lake), "--group", "lake", "--every", "50ms", *engine]
        how = ["-o", "maxOffsetsPerTrigger=1000", "-o", "maxSplitBytes=5000"]
        command = [sys.executable, "-m", "warmlog", "pipeline", "archive", *source, *target, *how]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def is_there(lake: Path, number: int) -> bool:
    return ArchiveStore(lake).batch_directory(number).exists()


@pytest.fixture
def random_moments() -> random.Random:
    return random.Random(os.environ.get("PYTEST_RANDOM_SEED", time.time_ns()))


@pytest.mark.parametrize(
    ("rounds", "engine"), [(2, ["--engine", "local"]), (1, ["--master", "local[2]"])], ids=["local", "spark"]
)
def test_killed_at_random_moments_each_record_is_in_the_table_once(
    can_run_spark: None, tmp_path: Path, random_moments: random.Random, rounds: int, engine: list[str]
) -> None:
    """A round on Spark, which starts it anew, takes as long as all others."""
    lake = tmp_path / "lake"
    with Broker(data_dir=tmp_path / "data") as broker, Client(broker.native) as client:
        client.create_topic("orders", partitions=2, configs={"segment.bytes": "1048576"})
        for turn in range(rounds):
            for partition in range(2):
                client.produce_many("orders", [b"%d" % at for at in range(RECORDS)], partition=partition)
            last = ArchiveStore(lake).last_commit()
            begun = last.number if last is not None else 0
            archiver = Archiver(broker, lake, engine)
            until = time.monotonic() + PATIENCE_S
            while not is_there(lake, begun + random_moments.randint(1, 9)):
                assert time.monotonic() < until, "the archive does not come forward"
            while random_moments.random() < 0.9995:  # some milliseconds more, or less
                pass
            archiver.kill()
            found = rows_in(lake)
            assert len(found) == sum(commit.rows for commit in ArchiveStore(lake).commits())
            assert len(found) < 2 * RECORDS * (turn + 1), "it was done before it was killed"
        given = {"path": str(broker.data_dir), "bootstrap": broker.native, "topic": "orders", "group": "lake"}
        archived(ArchiveStore(lake), read_options(given))
        assert rows_in(lake) == sorted([*range(rounds * RECORDS)] * 2)
        assert [name for name in os.listdir(lake) if name.startswith(".run-")] == []
        (group,) = client.describe_groups("lake")
        assert {(one.offset, one.lag) for one in group.positions} == {(rounds * RECORDS, 0)}
