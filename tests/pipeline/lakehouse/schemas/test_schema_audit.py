"""The audit of a table of decoded records finds what was altered, and nothing else."""

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.schemas.decoded import (
    EVERY_TYPE,
    ORDER,
    OTHER,
    V1,
    V2,
    WIDE,
    audited_with,
    confluent,
    decoded,
    encoded,
    order,
    schema_file,
    table_in,
)
from tests.pipeline.lakehouse.schemas.registries import RegistryServer, avro
from tests.pipeline.lakehouse.tables import Kind, files_of
from tests.pipeline.lakehouse.test_audit import change, messages, total
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.schemas.auditing import SchemaSources
from warmlog.pipeline.lakehouse.schemas.formats import Formats, formats_of
from warmlog.pipeline.lakehouse.schemas.types import conformed


def test_the_audit_decodes_records_again(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    """Over several commits, in which columns came and numbers were widened."""
    formats = confluent(registry, on_bad_row="null")
    old, wide = avro(registry.url, V1, [order(1), order(2)]), avro(registry.url, WIDE, [{"id": 1 << 40}])
    new = avro(registry.url, V2, [{**order(3), "item": {"sku": "a", "n": 3, "note": "n"}, "city": "Ulm"}])
    other = avro(registry.url, OTHER, [{"id": "x"}])
    for values in (old, new + old + other, [*wide, b"bad"], old + other, [None, *new]):
        writer.segment(values)  # type: ignore[arg-type]
        decoded(writer, tmp_path, kind, formats)
    sources = SchemaSources(registry=formats.registry)
    audit = audited_with(tmp_path, kind, writer, sources)
    assert (audit.findings, total(audit).in_log) == ([], 13)
    with pytest.raises(PipelineError, match="decoded by schemas of a registry: --schema-registry URL"):
        audited_with(tmp_path, kind, writer, SchemaSources())


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("id", 8),
        ("id", None),
        ("price", Decimal("12.35")),
        ("volume", 0.2),
        ("paid", False),
        ("day", date(2026, 1, 3)),
        ("tags", [("x", "z")]),
        ("items", [{"sku": "a", "n": 1}, {"sku": "b", "n": None}]),
        ("first", None),
        ("any", {"string": None, "long": 3, "Item": None}),
        ("hash", b"abce"),
    ],
)
def test_the_audit_names_a_value_that_was_altered(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path, column: str, value: Any
) -> None:
    writer.segment(encoded(EVERY_TYPE, *[ORDER] * 20))
    path = schema_file(tmp_path, EVERY_TYPE)
    decoded(writer, tmp_path, kind, formats_of(value_format="avro", value_schema=path))
    sources = SchemaSources(value=(path,))
    audit = audited_with(tmp_path, kind, writer, sources)
    assert (audit.findings, total(audit).in_log) == ([], 20)

    def edit(table: Any) -> Any:
        values = table.column(column).to_pylist()
        values[7] = value
        at = table.schema.get_field_index(column)
        return table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))

    (file,) = files_of(tmp_path, kind)
    change(file, edit)
    audit = audited_with(tmp_path, kind, writer, sources)
    assert messages(audit) == [f"offset 7 is not as in the log: {file}"]


def test_the_audit_needs_the_schemas_of_files_that_were_used(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path
) -> None:
    first = schema_file(tmp_path, WIDE)
    writer.segment(encoded(WIDE, {"id": 1}))
    decoded(writer, tmp_path, kind, formats_of(value_format="avro", value_schema=first))
    (tmp_path / "second").mkdir()
    second = schema_file(tmp_path / "second", V2)
    writer.segment(encoded(WIDE, {"id": 2}))
    with pytest.raises(PipelineError, match=rf"--value-schema FILE names it; {second} is not it"):
        audited_with(tmp_path, kind, writer, SchemaSources(value=(second,)))
    audit = audited_with(tmp_path, kind, writer, SchemaSources(value=(second, first)))
    assert (audit.findings, total(audit).in_log, audit.partitions[0].behind) == ([], 1, 1)


def test_rows_that_retention_removed_from_the_log_are_proved_by_receipts_of_narrower_columns(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path
) -> None:
    formats = confluent(registry)
    first = writer.segment(avro(registry.url, V1, [order(1), order(2)]))
    decoded(writer, tmp_path, kind, formats)
    writer.segment(avro(registry.url, V2, [{**order(3), "item": {"sku": "a", "n": 3, "note": "n"}, "city": "Ulm"}]))
    decoded(writer, tmp_path, kind, formats)
    for path in first.parent.glob(f"{first.stem}.*"):
        path.unlink()
    rewrite(tmp_path, kind)
    audit = audited_with(tmp_path, kind, writer, SchemaSources(registry=formats.registry))
    assert (audit.findings, total(audit).in_log, total(audit).by_receipt) == ([], 1, 2)


def rewrite(directory: Path, kind: Kind) -> None:
    """Write the files of a table again with the columns that it has now, as compaction does."""
    for path in files_of(directory, kind):
        names = [field.name for field in table_in(directory, kind, Formats(), ("partition", "offset")).fields()]
        types = {field.name: field for field in table_in(directory, kind, Formats(), ("offset",)).fields()}

        def edit(table: Any, names: list[str] = names, types: dict[str, Any] = types) -> Any:
            batch = table.combine_chunks().to_batches()[0]
            columns = [
                conformed(batch.column(name), types[name].type)
                if name in batch.schema.names
                else pa.nulls(batch.num_rows, types[name].type)
                for name in names
            ]
            return pa.Table.from_arrays(columns, schema=pa.schema([types[name] for name in names]))

        change(path, edit)
