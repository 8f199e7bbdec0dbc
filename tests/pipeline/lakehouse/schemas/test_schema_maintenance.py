"""Maintenance of a table of decoded records: files with other columns stay apart, and receipts prove what they did."""

from pathlib import Path

import pyarrow as pa
import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.schemas.decoded import V1, V2, audited_with, confluent, decoded, order, rows_in, table_in
from tests.pipeline.lakehouse.schemas.registries import RegistryServer, avro
from tests.pipeline.lakehouse.tables import Kind, files_of, options_of
from tests.pipeline.lakehouse.test_audit import change, file_with, total
from tests.pipeline.lakehouse.test_maintenance import LATER, maintained
from tests.pipeline.lakehouse.test_table import read_by_library
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.jobs.replay import plan_from_table
from warmlog.pipeline.lakehouse.schemas.auditing import SchemaSources
from warmlog.pipeline.lakehouse.schemas.formats import Formats

GROWN = {**order(3), "item": {"sku": "a", "n": 3, "note": "n"}, "city": "Ulm"}


def with_another_id(table: pa.Table) -> pa.Table:
    """Change the row of offset 3."""
    ids = [
        77 if at == 3 else number
        for at, number in zip(table["offset"].to_pylist(), table["id"].to_pylist(), strict=True)
    ]
    at = table.schema.get_field_index("id")
    return table.set_column(at, table.schema.field(at), pa.array(ids, table.schema.field(at).type))


@pytest.fixture
def copied(writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path) -> Formats:
    """Six commits: three with the columns of the first schema, then three with more."""
    formats = confluent(registry)
    for number in range(3):
        writer.segment(avro(registry.url, V1, [order(number), order(number)]))
        decoded(writer, tmp_path, kind, formats)
    for _ in range(3):
        writer.segment(avro(registry.url, V2, [GROWN]))
        decoded(writer, tmp_path, kind, formats)
    return formats


def test_decoded_rows_are_merged_and_proved(
    writer: DirectoryWriter, registry: RegistryServer, kind: Kind, tmp_path: Path, copied: Formats
) -> None:
    before, sources = read_by_library(tmp_path, kind).sort_by("offset"), SchemaSources(registry=copied.registry)
    assert maintained(tmp_path, kind).merged_files == 6
    assert len(files_of(tmp_path, kind)) == 2
    assert read_by_library(tmp_path, kind).sort_by("offset").to_pylist() == before.to_pylist()
    audit = audited_with(tmp_path, kind, writer, sources)
    assert (audit.findings, total(audit).in_log) == ([], 9)
    writer.segment(avro(registry.url, V2, [GROWN]))
    decoded(writer, tmp_path, kind, copied)
    for path in sorted(writer.directory.glob("*.log"))[:-1]:
        for each in writer.directory.glob(f"{path.stem}.*"):
            each.unlink()
    maintained(tmp_path, kind, after=LATER)
    audit = audited_with(tmp_path, kind, writer, sources)
    assert (audit.findings, total(audit).in_log, total(audit).by_receipt, total(audit).unproved) == ([], 1, 9, 0)


def test_an_altered_value_is_reported_after_maintenance(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path, copied: Formats
) -> None:
    maintained(tmp_path, kind)
    change(file_with(tmp_path, kind, 0, 3), with_another_id)
    audit = audited_with(tmp_path, kind, writer, SchemaSources(registry=copied.registry))
    assert [finding.what for finding in audit.findings] == ["offset 3 is not as in the log"]


def test_rows_altered_before_maintenance_are_still_reported(
    writer: DirectoryWriter, kind: Kind, tmp_path: Path, copied: Formats
) -> None:
    change(file_with(tmp_path, kind, 0, 3), with_another_id)
    maintained(tmp_path, kind)
    audit = audited_with(tmp_path, kind, writer, SchemaSources(registry=copied.registry))
    assert [finding.what for finding in audit.findings] == ["offset 3 is not as in the log"]


def test_decoded_rows_cannot_be_replayed(writer: DirectoryWriter, kind: Kind, tmp_path: Path, copied: Formats) -> None:
    table = table_in(tmp_path, kind, copied)
    with pytest.raises(PipelineError, match="has decoded keys or values, and not the bytes that a replay would send"):
        plan_from_table(table, options_of(writer))
    assert len(rows_in(tmp_path, kind, "offset")) == 9
