"""Filters of other readers: files of a Delta table are left out only if no row meets the filter."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.schemas.decoded import EVERY_TYPE, ORDER, decoded, encoded, schema_file
from tests.pipeline.lakehouse.tables import copied, open_in, options_of
from warmlog.pipeline.lakehouse.schemas.formats import formats_of
from warmlog.pipeline.source.arrow import arrow_schema
from warmlog.pipeline.source.options import COLUMNS

NESTED = (pa.types.is_nested, pa.types.is_binary, pa.types.is_fixed_size_binary)


@pytest.fixture(params=["new", "existing", "mixed"])
def table(request: pytest.FixtureRequest, writer: DirectoryWriter, tmp_path: Path) -> deltalake.DeltaTable:
    """A table with a column of every type; `mixed`: another program has added a copy of all rows."""
    path = str(tmp_path / "delta")
    if request.param == "existing":
        deltalake.DeltaTable.create(path, arrow_schema(COLUMNS))
    other = {**ORDER, "id": 8, "total": None, "seen": None, "first": None, "items": []}
    writer.segment(encoded(EVERY_TYPE, ORDER, other), [None])  # type: ignore[list-item]
    decoded(writer, tmp_path, "delta", formats_of(value_format="avro", value_schema=schema_file(tmp_path, EVERY_TYPE)))
    if request.param == "mixed":
        deltalake.write_deltalake(path, deltalake.DeltaTable(path).to_pyarrow_table(), mode="append")
    return deltalake.DeltaTable(path)


def equal_values(rows: pa.Table) -> Iterator[tuple[str, Any, int]]:
    """Each value of each column that can be compared, and the number of rows with it."""
    for field in rows.schema:
        if not any(is_nested(field.type) for is_nested in NESTED):
            for counted in rows.column(field.name).value_counts().to_pylist():
                if counted["values"] is not None:
                    yield field.name, counted["values"], counted["counts"]


def test_a_filter_gives_all_rows_that_meet_it(table: deltalake.DeltaTable) -> None:
    dataset = table.to_pyarrow_dataset()
    compared = list(equal_values(dataset.to_table()))
    assert {"id", "price", "day", "sent", "state", "offset", "timestamp", "timestampType"} <= {
        name for name, _, _ in compared
    }
    for name, value, count in compared:
        found = duckdb.sql(f'SELECT count(*) FROM dataset WHERE "{name}" = ?', params=[value]).fetchall()
        assert (name, value, found) == (name, value, [(count,)])


def test_bounds_of_offsets_leave_files_out(writer: DirectoryWriter, tmp_path: Path) -> None:
    for values in ([b"a", b"b", b"c"], [b"d", b"e"]):
        writer.segment(values)
        copied(open_in(tmp_path, "delta"), options_of(writer))
    fragments = (
        deltalake.DeltaTable(str(tmp_path / "delta"))
        .to_pyarrow_dataset()
        .get_fragments(filter=pa.compute.field("offset") >= 3)
    )
    assert sum(fragment.count_rows() for fragment in fragments) == 2
