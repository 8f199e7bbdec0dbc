"""Columns that come with new schemas: in one transaction, with kills, and with two writers."""

from contextlib import suppress
from pathlib import Path

import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.schemas.decoded import (
    OTHER,
    V1,
    V2,
    WIDE,
    audited_with,
    columns_of,
    confluent,
    decoded,
    order,
    rows_in,
    schema_file,
    table_in,
)
from tests.pipeline.lakehouse.schemas.registries import RegistryServer, avro
from tests.pipeline.lakehouse.tables import Kind, copied, files_of, options_of
from tests.pipeline.lakehouse.test_audit import total
from tests.pipeline.lakehouse.test_exactly_once import KilledError, Killer, Watched, once
from tests.pipeline.lakehouse.test_table import read_by_library
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.job import TableJob, TableSettings
from warmlog.pipeline.lakehouse.schemas.auditing import SchemaSources
from warmlog.pipeline.lakehouse.schemas.formats import formats_of
from warmlog.pipeline.runner import LocalRunner
from warmlog.pipeline.source.options import COLUMNS


def test_fields_of_new_schemas_become_columns(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    formats = confluent(registry)
    writer.segment(avro(registry.url, V1, [order(1), order(2)]))
    decoded(writer, tmp_path, kind, formats)
    assert set(columns_of(tmp_path, kind)) == {*COLUMNS, "id", "item"} - {"value"}
    old = avro(registry.url, V1, [order(5)])
    new = avro(registry.url, V2, [{**order(3), "item": {"sku": "a", "n": 3, "note": "n"}, "city": "Ulm"}])
    writer.segment(old + new + old)
    decoded(writer, tmp_path, kind, formats)
    writer.segment(old)
    decoded(writer, tmp_path, kind, formats)
    table = read_by_library(tmp_path, kind).sort_by("offset")
    assert table.column("id").to_pylist() == [1, 2, 5, 3, 5, 5]
    assert table.column("city").to_pylist() == [None, None, None, "Ulm", None, None]
    assert [item.get("note") for item in table.column("item").to_pylist()] == [None, None, None, "n", None, None]
    assert registry.requests.count("/schemas/ids/1") <= 5, "each run gets a schema once, and serializers do"


def test_numbers_are_widened_where_the_table_can(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    formats = confluent(registry)
    writer.segment(avro(registry.url, V1, [order(1)]))
    decoded(writer, tmp_path, kind, formats)
    writer.segment(avro(registry.url, WIDE, [{"id": 1 << 40}]))
    if kind == "delta":
        with pytest.raises(PipelineError, match=r"value of schema 2: field id is int32 in .*, and int64 in the schema"):
            decoded(writer, tmp_path, kind, formats)
        assert len(rows_in(tmp_path, kind, "offset")) == 1
        return
    decoded(writer, tmp_path, kind, formats)
    writer.segment(avro(registry.url, V1, [order(3)]))
    decoded(writer, tmp_path, kind, formats)
    table = read_by_library(tmp_path, kind).sort_by("offset")
    assert table.column("id").to_pylist() == [1, 1 << 40, 3]


def test_a_schema_that_does_not_go_with_the_table_stops_the_job_or_is_of_bad_rows(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    writer.segment(avro(registry.url, V1, [order(1)]) + avro(registry.url, OTHER, [{"id": "x"}]))
    wrong = "value of schema 2: field id is int32 so far, and string in the schema"
    with pytest.raises(PipelineError, match=wrong):
        decoded(writer, tmp_path, kind, confluent(registry))
    assert rows_in(tmp_path, kind, "offset") == []
    formats = confluent(registry, on_bad_row="null")
    (receipt,) = decoded(writer, tmp_path / "kept", kind, formats)
    assert receipt.rows == 2
    good, bad = rows_in(tmp_path / "kept", kind, "id", "decodeError", "rawValue")
    assert good == (1, None, None)
    assert bad == (
        None,
        "schema 2: field id is int32 so far, and string in the schema",
        avro(registry.url, OTHER, [{"id": "x"}])[0],
    )


def test_a_schema_file_that_does_not_fit_says_what_to_do(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> None:
    def copy_with(kind_of_id: str) -> None:
        schema = {"type": "object", "properties": {"id": {"type": kind_of_id}}}
        formats = formats_of(value_format="json", value_schema=schema_file(tmp_path, schema), on_bad_row="null")
        decoded(writer, tmp_path, kind, formats)

    writer.segment([b'{"id": 1}'])
    copy_with("integer")
    remedy = "field id is int64 so far, and string in the schema: use a schema that fits, or copy the topic to another"
    with pytest.raises(PipelineError, match=remedy):
        copy_with("string")


@pytest.mark.interop  # takes many seconds
def test_killed_at_every_step_while_columns_come_it_neither_loses_nor_doubles(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    formats = confluent(registry)
    new = avro(registry.url, V2, [{**order(3), "item": {"sku": "a", "n": 3, "note": "n"}, "city": "Ulm"}])
    writer.segment(avro(registry.url, V1, [order(1), order(2)]), new * 2)
    options, settings = options_of(writer, maxOffsetsPerTrigger=3), TableSettings(formats=formats)
    steps, names = 0, set()
    while True:
        lake, killer = tmp_path / f"{steps}", Killer(steps)
        with suppress(KilledError):
            copied(Watched(table_in(lake, kind, formats), killer), options, settings)
            break
        names.add(killer.name)
        copied(table_in(lake, kind, formats), options, settings)
        table = read_by_library(lake, kind).sort_by("offset")
        assert table.column("offset").to_pylist() == [0, 1, 2, 3], f"killed {killer.name}, step {steps}"
        assert table.column("city").to_pylist() == [None, None, "Ulm", "Ulm"]
        steps += 1
    assert {"before commit", "after commit", "before plan_columns", "after plan_columns"} <= names


def test_two_writers_may_bring_columns_at_once(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    """The other one brings its own before this one commits, and before its attempts after that."""
    formats = confluent(registry)
    new = avro(registry.url, V2, [{**order(3), "item": {"sku": "a", "n": 3, "note": "n"}, "city": "Ulm"}])
    writer.segment(avro(registry.url, V1, [order(1), order(2)]), new * 2)
    options, settings = options_of(writer, maxOffsetsPerTrigger=1), TableSettings(formats=formats)
    other = TableJob(options, table_in(tmp_path, kind, formats), settings)
    taken = []

    def step(at: str) -> None:
        if at in {"before commit", "before plan_columns"} and len(taken) < 3:
            taken.append(other.step(LocalRunner()))

    copied(Watched(table_in(tmp_path, kind, formats), step), options, settings)
    table = read_by_library(tmp_path, kind).sort_by("offset")
    assert table.column("offset").to_pylist() == [0, 1, 2, 3]
    assert table.column("city").to_pylist() == [None, None, "Ulm", "Ulm"]
    assert len(list(tmp_path.rglob("*.parquet"))) == len(files_of(tmp_path, kind)) == 4
    audit = audited_with(tmp_path, kind, writer, SchemaSources(registry=formats.registry))
    assert (audit.findings, total(audit).in_log) == ([], 4)


def test_columns_of_another_topic_that_come_meanwhile_make_the_batch_be_written_again(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    """Ids of Iceberg's fields follow from those that are there."""
    second = DirectoryWriter(tmp_path / "data", "events")
    second.segment(avro(registry.url, OTHER_FIELDS, [{"place": "Ulm"}]))
    writer.segment(avro(registry.url, V1, [order(1)]))
    formats = confluent(registry)
    settings = TableSettings(formats=formats)
    others = options_of(second, topic="events")
    step = once("before commit", lambda: copied(table_in(tmp_path, kind, formats), others, settings))
    copied(Watched(table_in(tmp_path, kind, formats), step), options_of(writer), settings)
    table = read_by_library(tmp_path, kind).sort_by("topic")
    assert table.select(["topic", "place", "id"]).to_pylist() == [
        {"topic": "events", "place": "Ulm", "id": None},
        {"topic": "orders", "place": None, "id": 1},
    ]


OTHER_FIELDS = {"type": "record", "name": "Event", "fields": [{"name": "place", "type": "string"}]}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["a", "A"],
            {
                "delta": "fields inner.a and inner.A differ in case",
                "iceberg": "fields inner.a and inner.A differ in case",
            },
        ),
        (["a b"], {"delta": "'inner.a b' has a character that names in Delta tables cannot have"}),
    ],
)
def test_names_that_a_table_cannot_have_are_refused(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path, names: list[str], message: dict[Kind, str]
) -> None:
    inner = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    schema = {"type": "object", "properties": {"inner": inner}}
    writer.segment([b"{}"])
    formats = formats_of(value_format="json", value_schema=schema_file(tmp_path, schema))
    if kind in message:
        with pytest.raises(PipelineError, match=message[kind]):
            decoded(writer, tmp_path, kind, formats)
    else:
        decoded(writer, tmp_path, kind, formats)
        assert rows_in(tmp_path, kind, "inner") == [(None,)]
