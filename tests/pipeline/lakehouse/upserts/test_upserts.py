"""Tables with one row for each key: the newest record, in each kind of table."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from tests.pipeline.lakehouse.tables import Kind, copied, files_of, open_in, options_of, query
from tests.pipeline.lakehouse.upserts.upserted import UPSERT, KeyedWriter, Model, Pair, model_in, upserted
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.job_stats import Reporter
from warmlog.pipeline.jobs.table_audit import audit_table
from warmlog.pipeline.lakehouse.job import TableSettings
from warmlog.pipeline.lakehouse.pace import Targets
from warmlog.pipeline.runner import LocalRunner


def test_each_key_has_the_row_of_its_newest_record(kind: Kind, tmp_path: Path) -> None:
    writer = KeyedWriter(tmp_path / "data")
    writer.add((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"c", None))
    table = open_in(tmp_path, kind)
    (first,) = upserted(table, writer)
    assert model_in(tmp_path, kind) == {(0, b"a"): (2, b"2"), (0, b"b"): (1, b"1")}
    assert first.upsert == {"inserted": 2, "updated": 0, "deleted": 0, "elsewhere": 0}
    writer.add((b"b", None), (b"a", b"3"), (b"c", b"2"), (b"d", None))
    (second,) = upserted(table, writer)
    assert model_in(tmp_path, kind) == writer.model == {(0, b"a"): (6, b"3"), (0, b"c"): (7, b"2")}
    assert second.upsert == {"inserted": 1, "updated": 1, "deleted": 1, "elsewhere": 0}
    assert upserted(table, writer) == []


def test_the_last_row_can_be_deleted_and_come_back(kind: Kind, tmp_path: Path) -> None:
    writer = KeyedWriter(tmp_path / "data")
    table = open_in(tmp_path, kind)
    for value in (b"1", None, None, b"2"):
        writer.add((b"a", value))
        upserted(table, writer)
        assert model_in(tmp_path, kind) == writer.model


def random_pairs(chance: random.Random, count: int, keys: int) -> list[Pair]:
    return [
        (b"key-%d" % chance.randrange(keys), None if chance.random() < 0.2 else b"%d" % chance.randrange(1000))
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.interop) for seed in (1, 2))])
def test_random_updates_and_deletes_leave_what_a_dict_has(kind: Kind, seed: int, tmp_path: Path) -> None:
    """Files are small, commits of any size; the table is opened anew for each round."""
    chance = random.Random(seed)
    model: Model = {}
    writers = [KeyedWriter(tmp_path / "data", partition, model=model) for partition in range(2)]
    for _ in range(6):
        for writer in writers:
            writer.add(*random_pairs(chance, chance.randrange(1, 300), 120))
        settings = TableSettings(
            targets=Targets(rows=chance.choice([150, 10_000])),
            file_bytes=chance.choice([1, 2_000, 1 << 20]),
            formats=UPSERT.formats,
        )
        upserted(open_in(tmp_path, kind), writers[0], settings)
        assert model_in(tmp_path, kind) == model


def test_a_key_has_a_row_in_each_of_its_partitions_and_a_warning_says_so(
    kind: Kind, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model: Model = {}
    first, second = (KeyedWriter(tmp_path / "data", partition, model=model) for partition in range(2))
    first.add((b"a", b"1"))
    table = open_in(tmp_path, kind)
    upserted(table, first)
    second.add((b"a", b"2"))
    (receipt,) = upserted(table, first)
    assert model_in(tmp_path, kind) == model == {(0, b"a"): (0, b"1"), (1, b"a"): (0, b"2")}
    assert receipt.upsert["elsewhere"] == 1
    assert "keys are in more than one partition" in caplog.text


def test_a_record_without_a_key_stops_the_job(kind: Kind, tmp_path: Path) -> None:
    writer = KeyedWriter(tmp_path / "data")
    writer.add((b"a", b"1"))
    writer.segment([b"x"])
    name = writer.directory / f"{1:020d}.log"
    from warmlog.protocol.records.builder import build_batch

    name.write_bytes(build_batch([(0, None, b"x", ())], base_offset=1))
    table = open_in(tmp_path, kind)
    with pytest.raises(
        PipelineError, match="orders-0: offset 1: key: it is null, and a row of this table needs a key"
    ) as caught:
        upserted(table, writer)
    assert "(--on-bad-row dead-letter --dead-letter-topic TOPIC stores such records there)" in str(caught.value)
    assert model_in(tmp_path, kind) == {}


def test_tables_of_the_two_modes_do_not_mix(kind: Kind, tmp_path: Path) -> None:
    writer = KeyedWriter(tmp_path / "data")
    writer.add((b"a", b"1"))
    appended, table = open_in(tmp_path / "appended", kind), open_in(tmp_path, kind)
    copied(appended, options_of(writer))
    with pytest.raises(PipelineError, match="rows that were not written by --upsert"):
        upserted(appended, writer)
    upserted(table, writer)
    with pytest.raises(PipelineError, match="one row for each key: copy to it with --upsert"):
        copied(table, options_of(writer))


def test_topics_of_a_table_have_their_own_keys(kind: Kind, tmp_path: Path) -> None:
    first, second = KeyedWriter(tmp_path / "data"), KeyedWriter(tmp_path / "data", topic="other")
    for number in range(2):
        first.add((b"a", b"first-%d" % number), (b"b", b"1"))
        second.add((b"a", b"second-%d" % number))
        upserted(open_in(tmp_path, kind), first, topic="orders" if number else "orders,other")
    rows = query(tmp_path, kind, 'SELECT topic, key, value, "offset" FROM data ORDER BY ALL')
    assert rows == [
        ("orders", b"a", b"first-1", 2),
        ("orders", b"b", b"1", 3),
        ("other", b"a", b"second-0", 0),
    ]


def test_rows_need_not_name_their_only_topic(kind: Kind, tmp_path: Path) -> None:
    writer = KeyedWriter(tmp_path / "data")
    columns = ("partition", "offset", "key", "value")
    for value in (b"1", b"2"):
        writer.add((b"a", value), (b"b", value))
        upserted(open_in(tmp_path, kind, columns), writer, columns=",".join(columns), includeHeaders="false")
    assert model_in(tmp_path, kind) == writer.model
    audit = audit_table(
        LocalRunner(), options_of(writer), open_in(tmp_path, kind, ("partition", "offset")), Reporter("audit")
    )
    assert (audit.findings, audit.partitions[0].proved.in_log) == ([], 2)


def test_a_file_that_another_program_has_sorted_otherwise_keeps_its_other_rows(kind: Kind, tmp_path: Path) -> None:
    """OPTIMIZE of Delta and rewrite_data_files of Iceberg leave row groups in any order."""
    writer = KeyedWriter(tmp_path / "data")
    writer.add(*((b"k%d" % key, b"1") for key in range(30)))
    upserted(open_in(tmp_path, kind), writer)
    (path,) = (file.removeprefix("file://") for file in files_of(tmp_path, kind))
    table = parquet.read_table(path)
    parquet.write_table(table.sort_by([("offset", "descending")]), path, row_group_size=10)
    writer.add((b"k5", b"2"), (b"k25", None), (b"new", b"1"))
    upserted(open_in(tmp_path, kind), writer)
    assert model_in(tmp_path, kind) == writer.model


def test_the_libraries_read_the_same(kind: Kind, tmp_path: Path) -> None:
    """By Iceberg's field ids, and from the version before, too."""
    writer = KeyedWriter(tmp_path / "data")
    table = open_in(tmp_path, kind)
    models = []
    for value in (b"1", b"2"):
        writer.add((b"a", value), (b"b", None if value == b"2" else value))
        upserted(table, writer)
        models.append(sorted((key, *row) for (_, key), row in writer.model.items()))
    if kind == "delta":
        import deltalake

        versions = [deltalake.DeltaTable(table.name, version=number).to_pyarrow_table() for number in (1, 2)]
    else:
        reread: Any = open_in(tmp_path, kind)
        ids = [each.snapshot_id for each in reread.handle.metadata.snapshots]
        versions = [reread.handle.scan(snapshot_id=each).to_arrow() for each in ids]
    rows = [version.select(["key", "offset", "value"]).to_pylist() for version in versions]
    assert [sorted(tuple(row.values()) for row in listed) for listed in rows] == models


def test_a_table_may_begin_at_a_later_offset(kind: Kind, tmp_path: Path) -> None:
    """Its audit knows of the records from there on."""
    writer = KeyedWriter(tmp_path / "data")
    writer.add((b"a", b"1"), (b"b", b"1"), (b"c", b"1"), (b"b", b"2"))
    upserted(open_in(tmp_path, kind), writer, startingOffsets='{"orders":{"0":2}}')
    assert model_in(tmp_path, kind) == {(0, b"c"): (2, b"1"), (0, b"b"): (3, b"2")}
    audit = audit_table(LocalRunner(), options_of(writer), open_in(tmp_path, kind), Reporter("audit"))
    assert (audit.findings, audit.partitions[0].first_offset, audit.partitions[0].proved.in_log) == ([], 2, 2)


def test_files_whose_rows_are_hidden_are_refused(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a deletion vector hides would come back."""
    writer = KeyedWriter(tmp_path / "data")
    writer.add((b"a", b"1"))
    table = open_in(tmp_path, kind)
    upserted(table, writer)
    hiding = [replace(file, hides_rows=True) for file in table.files()]
    monkeypatch.setattr(table, "files", lambda: hiding)
    writer.add((b"b", b"1"))
    with pytest.raises(PipelineError, match="has only marked rows of"):
        upserted(table, writer)


def test_a_table_that_only_grows_is_refused(tmp_path: Path) -> None:
    import deltalake

    writer = KeyedWriter(tmp_path / "data")
    writer.add((b"a", b"1"))
    table = open_in(tmp_path, "delta")
    upserted(table, writer)
    deltalake.DeltaTable(table.name).alter.set_table_properties({"delta.appendOnly": "true"})
    writer.add((b"a", b"2"))
    with pytest.raises(PipelineError, match=r"has delta\.appendOnly, and rows would be replaced"):
        upserted(table, writer)
    assert model_in(tmp_path, "delta") == {(0, b"a"): (0, b"1")}
