"""Partitioned and sorted tables with one row for each key."""

import random
from pathlib import Path

import pytest

from tests.pipeline.lakehouse.tables import Kind, files_of, open_in
from tests.pipeline.lakehouse.test_maintenance import maintained
from tests.pipeline.lakehouse.upserts.test_upsert_audit import audit
from tests.pipeline.lakehouse.upserts.test_upserts import random_pairs
from tests.pipeline.lakehouse.upserts.upserted import KeyedWriter, Model, model_in, upserted
from warmlog.pipeline.lakehouse.arrangement.spec import wanted_of

ARRANGEMENTS = {
    "partitioned": (["partition"], []),
    "sorted": ([], ["key"]),
    "both": (["partition"], ["value,key"]),
}


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_random_updates_and_deletes_leave_what_a_dict_has(kind: Kind, name: str, tmp_path: Path) -> None:
    chance = random.Random(name)
    wanted = wanted_of(*ARRANGEMENTS[name])
    model: Model = {}
    writers = [KeyedWriter(tmp_path / "data", partition, model=model) for partition in range(2)]
    for number in range(4):
        for writer in writers:
            writer.add(*random_pairs(chance, 100, 60))
        upserted(open_in(tmp_path, kind, wanted=wanted), writers[0])
        assert model_in(tmp_path, kind) == model
        if number == 2:
            maintained(tmp_path, kind)
    assert audit(tmp_path, kind, writers[0]).findings == []
    assert len(files_of(tmp_path, kind)) >= (2 if name != "sorted" else 1)
