"""Upserts are in the table once: killed at every step, two writers, lost answers, other programs."""

import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from tests.pipeline.conftest import register
from tests.pipeline.lakehouse.tables import Kind, files_of, open_in, options_of
from tests.pipeline.lakehouse.test_exactly_once import KilledError, Killer, Watched, once
from tests.pipeline.lakehouse.test_maintenance import maintained
from tests.pipeline.lakehouse.upserts.test_upsert_audit import audit
from tests.pipeline.lakehouse.upserts.test_upserts import random_pairs
from tests.pipeline.lakehouse.upserts.upserted import UPSERT, KeyedWriter, Model, model_in, upserted
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.table import OutcomeUnknownError
from warmlog.pipeline.lakehouse.upserts.job import UpsertJob
from warmlog.pipeline.runner import LocalRunner


@pytest.fixture
def writer(tmp_path: Path) -> KeyedWriter:
    """90 records of 20 keys in batches of 30."""
    chance = random.Random(7)
    writer = KeyedWriter(tmp_path / "data")
    for _ in range(3):
        writer.add(*random_pairs(chance, 30, 20))
    return writer


def models(directory: Path, writer: KeyedWriter, ends: Sequence[int]) -> list[Model]:
    """Return what a table has of the first records: the same by an uninterrupted job."""
    found = []
    for end in ends:
        lake = directory / f"model-{end}"
        upserted(open_in(lake, "delta"), writer, endingOffsets=f'{{"orders":{{"0":{end}}}}}')
        found.append(model_in(lake, "delta"))
    return found


@pytest.mark.interop  # takes many seconds
def test_killed_at_every_step_each_commit_is_whole(writer: KeyedWriter, kind: Kind, tmp_path: Path) -> None:
    expected = [{}, *models(tmp_path, writer, [40, 80]), writer.model]
    steps, names = 0, set()
    while True:
        lake = tmp_path / f"{steps}"
        killer = Killer(steps)
        with suppress(KilledError):
            upserted(Watched(open_in(lake, kind), killer), writer, maxOffsetsPerTrigger=40)
            break
        names.add(killer.name)
        assert model_in(lake, kind) in expected
        upserted(open_in(lake, kind), writer)
        assert model_in(lake, kind) == writer.model, f"killed {killer.name}, step {steps}"
        steps += 3  # each step takes a table
    assert {"before commit", "after commit", "before finished"} & names


def test_two_writers_at_once_leave_one_row_of_each_key(writer: KeyedWriter, kind: Kind, tmp_path: Path) -> None:
    """The other one commits when this one has written its files, and again between its attempts."""
    other = UpsertJob(options_of(writer, maxOffsetsPerTrigger=30), open_in(tmp_path, kind), UPSERT)
    others = []

    def step(at: str) -> None:
        if at == "before commit" and len(others) < 2:
            others.append(other.step(LocalRunner()))

    receipts = upserted(Watched(open_in(tmp_path, kind), step), writer, maxOffsetsPerTrigger=30)
    assert (len(others), len(receipts)) == (2, 1)
    assert model_in(tmp_path, kind) == writer.model
    assert audit(tmp_path, kind, writer).findings == []


@pytest.mark.parametrize("landed", [True, False], ids=["after the commit", "before it"])
def test_a_lost_answer_is_neither_loss_nor_double(
    writer: KeyedWriter, kind: Kind, tmp_path: Path, landed: bool
) -> None:
    upserted(open_in(tmp_path, kind), writer, endingOffsets='{"orders":{"0":50}}')

    def lose() -> None:
        raise OutcomeUnknownError("the connection was closed")

    step = once("after commit" if landed else "before commit", lose)
    (receipt,) = upserted(Watched(open_in(tmp_path, kind), step), writer)
    assert receipt.rows == 40
    assert model_in(tmp_path, kind) == writer.model


def test_files_that_maintenance_merges_meanwhile_are_chosen_again(
    writer: KeyedWriter, kind: Kind, tmp_path: Path
) -> None:
    """No deleted row comes back, and none is lost."""
    for number in range(3):
        writer.add(*((b"other-%d-%d" % (number, at), b"1") for at in range(10)))
        upserted(open_in(tmp_path, kind), writer)
    assert len(files_of(tmp_path, kind)) > 1
    writer.add((b"other-0-1", b"2"), (b"other-0-2", None))
    step = once("before commit", lambda: maintained(tmp_path, kind))
    (receipt,) = upserted(Watched(open_in(tmp_path, kind), step), writer)
    assert (receipt.upsert["updated"], receipt.upsert["deleted"]) == (1, 1)
    assert model_in(tmp_path, kind) == writer.model
    assert len(list(tmp_path.rglob("warmlog-*.parquet"))) <= 10
    assert audit(tmp_path, kind, writer).findings == []


def test_maintenance_leaves_the_rows_and_the_audit_as_they_are(writer: KeyedWriter, kind: Kind, tmp_path: Path) -> None:
    for number in range(4):
        writer.add(*((b"other-%d-%d" % (number, at), b"1") for at in range(10)))
        upserted(open_in(tmp_path, kind), writer)
    before = len(files_of(tmp_path, kind))
    maintained(tmp_path, kind)
    assert len(files_of(tmp_path, kind)) < before
    assert model_in(tmp_path, kind) == writer.model
    assert audit(tmp_path, kind, writer).findings == []
    writer.add((b"other-0-1", None))
    upserted(open_in(tmp_path, kind), writer)
    assert model_in(tmp_path, kind) == writer.model
    assert audit(tmp_path, kind, writer).findings == []


def test_a_topic_created_again_is_refused(writer: KeyedWriter, kind: Kind, tmp_path: Path) -> None:
    """Its rows could not be told from those of the earlier topic."""
    upserted(open_in(tmp_path, kind), writer)
    for path in writer.directory.iterdir():
        path.unlink()
    register(tmp_path / "data", "orders", 1, uuid4())
    writer.next_offset = 0
    writer.add((b"a", b"1"))
    with pytest.raises(PipelineError, match="orders-0 was deleted and created again, or truncated"):
        upserted(open_in(tmp_path, kind), writer, failOnDataLoss="false")
