"""The command killed with kill -9 while records arrive, and two of it at once."""

import os
import random
import time
from pathlib import Path

import pytest

from tests.pipeline.lakehouse.kills import RECORDS, Values, audit, finish, maintain, rounds
from tests.pipeline.lakehouse.schemas.registries import serving
from tests.pipeline.lakehouse.tables import Kind, offsets_in
from warmlog.testing import Broker

pytestmark = pytest.mark.interop  # takes minutes


@pytest.mark.parametrize("writers", [1, 2])
def test_killed_at_random_moments_each_record_is_in_the_table_once(kind: Kind, writers: int, tmp_path: Path) -> None:
    chance = random.Random(os.environ.get("PYTEST_RANDOM_SEED", time.time_ns()))
    with Broker(data_dir=tmp_path / "data") as broker:
        counts = list(rounds(broker, tmp_path, kind, 2 * writers, writers, chance, maintained=False))
        assert finish(broker, tmp_path, kind) == []
        assert audit(broker, tmp_path, kind) == 0
    assert len(offsets_in(tmp_path, kind)) == len(counts) * 3 * RECORDS


def test_killed_beside_maintenance_that_is_killed_too(kind: Kind, tmp_path: Path) -> None:
    """Maintenance merges files and expires versions while two writers commit; all three are killed."""
    chance = random.Random(os.environ.get("PYTEST_RANDOM_SEED", time.time_ns()))
    with Broker(data_dir=tmp_path / "data") as broker:
        counts = list(rounds(broker, tmp_path, kind, 6, 2, chance, maintained=True))
        assert finish(broker, tmp_path, kind) == []
        assert audit(broker, tmp_path, kind) == 0
        maintain(tmp_path, kind)
        assert finish(broker, tmp_path, kind) == []
        assert audit(broker, tmp_path, kind) == 0
    assert len(offsets_in(tmp_path, kind)) == (len(counts) + 1) * 3 * RECORDS


@pytest.mark.parametrize("maintained", [False, True])
def test_killed_while_files_are_partitioned_and_sorted(kind: Kind, maintained: bool, tmp_path: Path) -> None:
    chance = random.Random(os.environ.get("PYTEST_RANDOM_SEED", time.time_ns()))
    values = Values(arranged=True)
    with Broker(data_dir=tmp_path / "data") as broker:
        kills = 6 if maintained else 4
        counts = list(rounds(broker, tmp_path, kind, kills, 2, chance, values, maintained=maintained))
        assert finish(broker, tmp_path, kind, values) == []
        assert audit(broker, tmp_path, kind, values) == 0
        maintain(tmp_path, kind)
        assert finish(broker, tmp_path, kind, values) == []
        assert audit(broker, tmp_path, kind, values) == 0
    assert len(offsets_in(tmp_path, kind)) == (len(counts) + maintained) * 3 * RECORDS


def test_killed_while_columns_come_each_record_is_in_the_table_once(kind: Kind, tmp_path: Path) -> None:
    """Maintenance is killed, too."""
    chance = random.Random(os.environ.get("PYTEST_RANDOM_SEED", time.time_ns()))
    with Broker(data_dir=tmp_path / "data") as broker, serving() as registry:
        values = Values(registry)
        counts = list(rounds(broker, tmp_path, kind, 6, 2, chance, values, maintained=True))
        assert finish(broker, tmp_path, kind, values) == []
        assert audit(broker, tmp_path, kind, values) == 0
        maintain(tmp_path, kind)
        assert finish(broker, tmp_path, kind, values) == []
        assert audit(broker, tmp_path, kind, values) == 0
    assert len(offsets_in(tmp_path, kind)) == (len(counts) + 1) * 3 * RECORDS
