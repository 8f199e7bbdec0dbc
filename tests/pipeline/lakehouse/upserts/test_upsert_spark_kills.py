"""The upserting command on Spark, of which the driver, its JVM and the workers are killed in the middle of a batch."""

import os
import random
import time
from pathlib import Path

from tests.pipeline.lakehouse.spark_kills import VICTIMS
from tests.pipeline.lakehouse.tables import Kind
from tests.pipeline.lakehouse.upserts.upsert_kills import Producer
from tests.pipeline.lakehouse.upserts.upsert_spark_kills import faults_of, rounds
from warmlog.testing import Broker


def test_killed_in_the_middle_of_a_batch_each_key_has_its_newest_row(
    can_run_spark: None, kind: Kind, tmp_path: Path
) -> None:
    chance = random.Random(os.environ.get("PYTEST_RANDOM_SEED", time.time_ns()))
    with Broker(data_dir=tmp_path / "data") as broker:
        producer = Producer(broker, chance)
        assert len(list(rounds(producer, tmp_path, kind, VICTIMS))) == len(VICTIMS)
        assert faults_of(producer, tmp_path, kind) == []
