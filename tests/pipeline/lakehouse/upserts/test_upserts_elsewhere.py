"""Upserts whose tasks run elsewhere, on Spark or with copies of all that they get, have the result of one process."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.conftest import NOW_MS, SPARK_TIMEOUT_S
from tests.pipeline.lakehouse.schemas.decoded import rows_in, table_in
from tests.pipeline.lakehouse.schemas.registries import avro, serving
from tests.pipeline.lakehouse.tables import AnyTable, Kind, arguments_of, files_of, open_in
from tests.pipeline.lakehouse.test_exactly_once import Watched, once
from tests.pipeline.lakehouse.test_maintenance import LATER, age, maintained
from tests.pipeline.lakehouse.upserts.test_envelopes import CHANGES, KEY_AVRO, LEFT, change, envelope_avro, row
from tests.pipeline.lakehouse.upserts.test_upsert_audit import audit
from tests.pipeline.lakehouse.upserts.test_upsert_command import run as run_command
from tests.pipeline.lakehouse.upserts.test_upserts import random_pairs
from tests.pipeline.lakehouse.upserts.upserted import UPSERT, Elsewhere, KeyedWriter, Model, model_in, upserted
from warmlog.pipeline import runner
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.arrangement.spec import wanted_of
from warmlog.pipeline.lakehouse.job import TableSettings
from warmlog.pipeline.lakehouse.pace import Targets
from warmlog.pipeline.lakehouse.schemas.formats import formats_of
from warmlog.pipeline.lakehouse.table import OutcomeUnknownError
from warmlog.pipeline.runner import Runner, SparkRunner
from warmlog.protocol.records.builder import build_batch

ARRANGEMENTS = {"plain": ([], []), "partitioned": (["partition"], []), "sorted": ([], ["key"])}


ON_SPARK = pytest.param("spark", marks=[pytest.mark.interop, pytest.mark.timeout(SPARK_TIMEOUT_S)])


@pytest.fixture(params=["copies", ON_SPARK])
def elsewhere(request: pytest.FixtureRequest) -> Runner:
    if request.param == "copies":
        return Elsewhere()
    return SparkRunner(request.getfixturevalue("spark"))


def changes_in(directory: Path) -> list[Path]:
    """The files with changes beside those of the table."""
    return list(directory.rglob("*.arrows"))


def keyed(directory: Path) -> list[KeyedWriter]:
    model: Model = {}
    return [KeyedWriter(directory / "data", partition, model=model) for partition in range(2)]


@pytest.mark.parametrize(
    "name", ["plain", *(pytest.param(name, marks=pytest.mark.interop) for name in ("partitioned", "sorted"))]
)
def test_random_updates_and_deletes_leave_the_rows_and_receipts_of_one_process(
    kind: Kind, name: str, elsewhere: Runner, tmp_path: Path
) -> None:
    """Files are small, so that tasks of both steps have many."""
    chance, wanted = random.Random(name), wanted_of(*ARRANGEMENTS[name])
    writers = keyed(tmp_path)
    for _ in range(3):
        for writer in writers:
            writer.add(*random_pairs(chance, chance.randrange(100, 300), 120))
        settings = TableSettings(
            targets=Targets(rows=chance.choice([250, 10_000])),
            file_bytes=chance.choice([2_000, 1 << 20]),
            formats=UPSERT.formats,
        )
        here, there = (
            upserted(open_in(lake, kind, wanted=wanted), writers[0], settings, run, minPartitions=6)
            for lake, run in ((tmp_path / "here", None), (tmp_path / "there", elsewhere))
        )
        assert model_in(tmp_path / "there", kind) == model_in(tmp_path / "here", kind) == writers[0].model
        assert [(receipt.rows, receipt.upsert) for receipt in there] == [(each.rows, each.upsert) for each in here]
        assert [receipt.positions() for receipt in there] == [receipt.positions() for receipt in here]
        assert changes_in(tmp_path) == []
    assert audit(tmp_path / "there", kind, writers[0]).findings == []


def test_rows_of_a_database_from_avro_with_a_registry(kind: Kind, elsewhere: Runner, tmp_path: Path) -> None:
    """A schema that tasks do not know yet leaves no changes behind."""
    with serving() as registry:
        writer = KeyedWriter(tmp_path / "data")
        more = [*CHANGES, (4, change("c", after=row(4, "Hof")))]
        keys = avro(registry.url, KEY_AVRO, [{"id": key} for key, _ in more])
        values = [None if value is None else avro(registry.url, envelope_avro(), [value])[0] for _, value in more]
        writer.add(*zip(keys, values, strict=True))
        formats = formats_of(
            key_format="confluent",
            value_format="confluent",
            schema_registry=registry.url,
            upsert=True,
            envelope="debezium",
        )
        upserted(table_in(tmp_path, kind, formats), writer, TableSettings(formats=formats), elsewhere)
    assert rows_in(tmp_path, kind, "offset", "id", "city") == [*LEFT, (6, 4, "Hof")]
    assert changes_in(tmp_path) == []


@pytest.mark.parametrize("name", ["refused", "lost answer", "two writers", "no key"])
def test_no_changes_are_left_by_what_can_go_wrong(
    kind: Kind, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = KeyedWriter(tmp_path / "data")
    writer.add((b"a", b"1"), (b"b", b"1"))
    monkeypatch.setattr(Watched, "store", lambda watched: watched._table.store())  # tasks get a copy of it

    def watched(step: Any) -> Any:
        return Watched(open_in(tmp_path, kind), step)

    def fail(error: Exception) -> None:
        raise error

    if name == "refused":
        step = once("before commit", lambda: fail(PipelineError("no")))
        with pytest.raises(PipelineError, match="no"):
            upserted(watched(step), writer, run=Elsewhere())
    elif name == "lost answer":
        upserted(watched(once("after commit", lambda: fail(OutcomeUnknownError("lost")))), writer, run=Elsewhere())
    elif name == "two writers":
        other = once("before commit", lambda: upserted(open_in(tmp_path, kind), writer, run=Elsewhere()))
        upserted(watched(other), writer, run=Elsewhere())
    else:
        keyless = build_batch([(NOW_MS, None, b"x", ())], base_offset=writer.next_offset)
        (writer.directory / f"{writer.next_offset:020d}.log").write_bytes(keyless)
        with pytest.raises(PipelineError, match="a row of this table needs a key"):
            upserted(open_in(tmp_path, kind), writer, run=Elsewhere())
    assert changes_in(tmp_path) == []
    assert model_in(tmp_path, kind) == ({} if name in ("refused", "no key") else writer.model)


def test_maintenance_deletes_changes_of_a_killed_job_and_readers_ignore_them(kind: Kind, tmp_path: Path) -> None:
    writer = KeyedWriter(tmp_path / "data")
    writer.add((b"a", b"1"))
    upserted(open_in(tmp_path, kind), writer)
    table: AnyTable = open_in(tmp_path, kind)
    with table.store().create("warmlog-left.arrows") as stream:
        stream.write(b"half of a stream")
    assert model_in(tmp_path, kind) == writer.model
    assert audit(tmp_path, kind, writer).findings == []
    maintained(tmp_path, kind)
    assert len(changes_in(tmp_path)) == 1
    age(tmp_path)
    maintained(tmp_path, kind, after=LATER)
    assert changes_in(tmp_path) == []
    assert model_in(tmp_path, kind) == writer.model


@pytest.mark.parametrize("engine", ["spark", "auto"])
def test_the_command_upserts_on_spark(
    kind: Kind, engine: str, tmp_path: Path, on_this_spark: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine `auto` takes Spark for what is large: here, for any byte."""
    call, sizes = SparkRunner.__call__, list[int]()

    def counted(run: SparkRunner, items: Any, *how: Any) -> Any:
        sizes.append(len(items))
        return call(run, items, *how)

    monkeypatch.setattr(SparkRunner, "__call__", counted)
    if engine == "auto":
        monkeypatch.setattr(runner, "LOCAL_BYTES", 0)
    writer = KeyedWriter(tmp_path / "data")
    writer.add(*random_pairs(random.Random(1), 200, 50))
    common = ["table", "orders", *arguments_of(tmp_path, kind), "--path", str(tmp_path / "data"), "--upsert"]
    done = run_command(*common, "--until-end", "--engine", engine, "--json", "-o", "maxOffsetsPerTrigger=70")
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["rows"] for line in done.stdout.splitlines()] == [70, 70, 60]
    assert model_in(tmp_path, kind) == writer.model
    on_spark = len(sizes)
    assert on_spark >= 3
    writer.add((b"new", b"1"))
    here = run_command(*common, "--until-end", "--engine", "local")
    assert len(sizes) == on_spark
    assert "1 row inserted, 0 rows updated, 0 rows deleted" in here.stdout, here.output
    assert (model_in(tmp_path, kind), changes_in(tmp_path)) == (writer.model, [])
    assert audit(tmp_path, kind, writer).findings == []
    assert files_of(tmp_path, kind)
