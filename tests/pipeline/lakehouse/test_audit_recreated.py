"""Tables of topics that were deleted and created again, and whose rows another program has rewritten."""

from pathlib import Path
from typing import Any
from uuid import UUID

import deltalake
import pyarrow as pa
import pytest

from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.lakehouse.tables import Kind, copied, open_in, options_of
from tests.pipeline.lakehouse.test_audit import audited, messages, total
from tests.pipeline.lakehouse.test_exactly_once import iceberg_table
from tests.pipeline.lakehouse.test_table import recreate


def overwrite(directory: Path, kind: Kind, change: Any = lambda rows: rows) -> None:
    """Write all rows again, as another program does."""
    if kind == "delta":
        table = deltalake.DeltaTable(str(directory / "delta"))
        deltalake.write_deltalake(str(directory / "delta"), change(table.to_pyarrow_table()), mode="overwrite")
    else:
        iceberg_table(directory).overwrite(change(iceberg_table(directory).scan().to_arrow()))


def again(writer: DirectoryWriter, directory: Path, kind: Kind, value: bytes = b"new", batches: int = 5) -> None:
    """Create the topic again, and copy it: records of partition 0 have other values."""
    recreate(writer, UUID(int=2))
    for path in writer.directory.glob("*.log"):
        path.unlink()
    writer.next_offset = 0
    writer.segment(*[[value] * 10 for _ in range(batches)])
    copied(open_in(directory, kind), options_of(writer, failOnDataLoss="false", maxOffsetsPerTrigger=40))


@pytest.fixture
def first(writer: DirectoryWriter, kind: Kind, tmp_path: Path) -> DirectoryWriter:
    """A table with the rows of the first topic: 60 of partition 0, and 30 of partition 1."""
    recreate(writer, UUID(int=1))
    copied(open_in(tmp_path, kind), options_of(writer))
    return writer


@pytest.mark.parametrize("value", [b"new", b"x"], ids=["other values", "the same values"])
@pytest.mark.parametrize("batches", [5, 6, 8])
@pytest.mark.parametrize("rewritten", ["earlier rows", "all rows"])
def test_rows_of_both_topics_are_proved(
    first: DirectoryWriter, kind: Kind, tmp_path: Path, rewritten: str, value: bytes, batches: int
) -> None:
    if rewritten == "earlier rows":
        overwrite(tmp_path, kind)
    again(first, tmp_path, kind, value, batches)
    if rewritten == "all rows":
        overwrite(tmp_path, kind)
    result = audited(tmp_path, kind, options_of(first))
    assert messages(result) == []
    counts = total(result)
    of_both = batches * 10 + 30
    assert (counts.rows, counts.in_log, counts.twice, counts.missing) == (60 + 30 + of_both - 30, of_both, 0, 0)
    assert counts.earlier == 60


def without(value: bytes, times: int = 0) -> Any:
    """A change that leaves out the row of offset 7 with a value, or adds it again."""

    def change(rows: Any) -> Any:
        are = pa.array([pair == (7, value) for pair in _pairs(rows)])
        if times:
            return pa.concat_tables([rows, *[rows.filter(are)] * times])
        return rows.filter(pa.compute.invert(are))

    return change


def altered(rows: Any) -> Any:
    values = [b"other" if pair == (7, b"new") else pair[1] for pair in _pairs(rows)]
    at = rows.column_names.index("value")
    return rows.set_column(at, rows.schema.field(at), pa.array(values, rows.schema.field(at).type))


def _pairs(rows: Any) -> list[tuple[int, bytes]]:
    values = [bytes(value) for value in rows["value"].to_pylist()]
    return list(zip(rows["offset"].to_pylist(), values, strict=True))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (without(b"x"), {"earlier": 0, "unproved": 59, "in_log": 80}),
        (without(b"new"), {"earlier": 60, "missing": 1, "in_log": 79}),
        (without(b"new", times=1), {"twice": 1, "in_log": 80}),
        (altered, {"altered": 1, "in_log": 79}),
    ],
    ids=["earlier row is missing", "row is missing", "row is doubled", "row is altered"],
)
def test_rows_that_are_wrong_are_counted(
    first: DirectoryWriter, kind: Kind, tmp_path: Path, change: Any, expected: dict[str, int]
) -> None:
    again(first, tmp_path, kind)
    overwrite(tmp_path, kind, change)
    result = audited(tmp_path, kind, options_of(first))
    counts = total(result)
    assert {name: getattr(counts, name) for name in expected} == expected
    assert len(messages(result)) in {1, 2}
