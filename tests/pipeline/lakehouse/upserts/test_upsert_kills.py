"""The upserting command killed with kill -9 while records arrive, two of it at once, and beside maintenance."""

import os
import random
import time
from pathlib import Path

import pytest

from tests.pipeline.lakehouse import kills
from tests.pipeline.lakehouse.tables import Kind
from tests.pipeline.lakehouse.upserts.upsert_kills import Producer, Upserted, finish, rounds
from warmlog.testing import Broker

pytestmark = pytest.mark.interop  # takes minutes


@pytest.mark.parametrize(
    ("maintained", "arranged"),
    [(False, False), (True, False), (True, True)],
    ids=["alone", "beside maintenance", "in partitions, sorted"],
)
def test_killed_at_random_moments_each_key_has_its_newest_row(
    kind: Kind, tmp_path: Path, maintained: bool, arranged: bool
) -> None:
    chance = random.Random(os.environ.get("PYTEST_RANDOM_SEED", time.time_ns()))
    with Broker(data_dir=tmp_path / "data") as broker:
        producer = Producer(broker, chance)
        assert list(rounds(producer, tmp_path, kind, 6, 2, values=Upserted(arranged=arranged), maintained=maintained))
        assert finish(producer, tmp_path, kind) == []
        assert kills.audit(broker, tmp_path, kind) == 0
        kills.maintain(tmp_path, kind)
        assert finish(producer, tmp_path, kind) == []
        assert kills.audit(broker, tmp_path, kind) == 0
