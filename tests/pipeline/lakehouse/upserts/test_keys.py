"""Keys of any type are compared as they are."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.reading import DataFile
from warmlog.pipeline.lakehouse.schemas.types import list_of, map_of
from warmlog.pipeline.lakehouse.upserts.changes import Changes, ChangeWriter
from warmlog.pipeline.lakehouse.upserts.keys import BatchKeys, Replacement, rows_of
from warmlog.pipeline.lakehouse.writing import LocalFiles

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bytes": (pa.binary(), [b"", b"a", b"a\0", b"\xff" * 100]),
    "text": (pa.string(), ["", "a", "A", "ä"]),
    "long": (pa.int64(), [0, 1, -1, 1 << 62]),
    "int": (pa.int32(), [0, 1, -1, 7]),
    "double": (pa.float64(), [0.0, 1.5, float("inf"), float("nan")]),
    "boolean": (pa.bool_(), [True, False]),
    "decimal": (pa.decimal128(38, 2), [Decimal("0.00"), Decimal("1.25"), Decimal(10) ** 35]),
    "date": (pa.date32(), [date(1, 1, 1), date(2026, 1, 2)]),
    "timestamp": (pa.timestamp("us", "UTC"), [NOON, NOON.replace(microsecond=1)]),
    "local timestamp": (pa.timestamp("us"), [NOON.replace(tzinfo=None)]),
    "time": (pa.time64("us"), [time(1), time(2)]),
    "record": (
        pa.struct([pa.field("id", pa.int64()), pa.field("city", pa.string())]),
        [{"id": 1, "city": None}, {"id": 1, "city": ""}, {"id": None, "city": None}, {"id": 2, "city": "Ulm"}],
    ),
    "list": (list_of(pa.string()), [[], ["a"], ["a", None], ["a", "b"]]),
    "map": (map_of(pa.string(), pa.int64()), [[], [("a", 1)], [("a", None)], [("b", 1)]]),
}


def write(changes: ChangeWriter, kind: pa.DataType, keys: Sequence[Any], first: int, *, deleted: bool = False) -> None:
    rows = pa.RecordBatch.from_arrays(
        [pa.array(keys, kind), pa.array(range(first, first + len(keys)), pa.int64())], ["key", "offset"]
    )
    changes.write(("orders", 0), rows, pa.array([deleted] * len(keys)))


def of(directory: Path, changes: ChangeWriter, kind: pa.DataType) -> Changes:
    return Changes(store=LocalFiles(str(directory)), names=(changes.name,), key_type=kind)


def stored_rows(kind: pa.DataType, stored: Sequence[Any]) -> pa.Table:
    count = len(stored)
    return pa.table(
        {
            "topic": pa.array(["orders"] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "key": pa.array(stored, kind),
        }
    )


def replaced(directory: Path, kind: pa.DataType, stored: Sequence[Any], changes: ChangeWriter) -> Replacement:
    parquet.write_table(stored_rows(kind, stored), directory / "stored.parquet", row_group_size=2)
    file = DataFile(path=str(directory / "stored.parquet"), size=1)
    with BatchKeys(directory, of(directory, changes, kind)) as keys:
        return keys.replaced(LocalFiles(str(directory)), [file], None)


@pytest.mark.parametrize("name", KEYS)
def test_the_row_of_each_key_is_known(name: str, tmp_path: Path) -> None:
    """One key is updated, and one deleted, if there are as many; the rows of the others stay."""
    kind, keys = KEYS[name]
    with ChangeWriter(LocalFiles(str(tmp_path)), kind) as changes:
        write(changes, kind, keys[:1], 100)
        write(changes, kind, keys[-1:], 200, deleted=True)
    replacement = replaced(tmp_path, kind, keys, changes)
    gone = sorted({0, len(keys) - 1})
    assert replacement.offsets[0]["orders", 0].tolist() == gone
    assert (replacement.updated, replacement.deleted) == (len(gone) - 1, 1)


@pytest.mark.parametrize("name", KEYS)
def test_the_newest_record_of_each_key_is_known(name: str, tmp_path: Path) -> None:
    kind, keys = KEYS[name]
    with ChangeWriter(LocalFiles(str(tmp_path)), kind) as changes:
        write(changes, kind, keys, 0)
        write(changes, kind, keys[:1], 100)
    with BatchKeys(tmp_path, of(tmp_path, changes, kind)) as batch:
        assert batch.rows() == len(keys)
        assert batch.superseded()["orders", 0].tolist() == [0]


@pytest.mark.parametrize("name", ["bytes", "text", "long", "int"])
def test_row_groups_without_a_key_of_the_batch_are_not_read(name: str, tmp_path: Path) -> None:
    kind, keys = KEYS[name]
    listed = sorted(keys)
    parquet.write_table(stored_rows(kind, listed), tmp_path / "stored.parquet", row_group_size=1)
    file = DataFile(path=str(tmp_path / "stored.parquet"), size=1)
    rows = rows_of(
        LocalFiles(str(tmp_path)), [file], None, kind, unreadable=fail, bounds=(listed[1], listed[2])
    ).read_all()
    assert rows.column("key").to_pylist() == listed[1:3]


def fail(file: DataFile, reason: str) -> None:
    raise AssertionError(f"{file}: {reason}")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    with ChangeWriter(LocalFiles(str(tmp_path)), pa.binary()) as changes:
        write(changes, pa.binary(), [b"a"], 0)
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    with (
        BatchKeys(tmp_path, of(tmp_path, changes, pa.binary())) as keys,
        pytest.raises(PipelineError, match=r"bad\.parquet cannot be read"),
    ):
        keys.replaced(LocalFiles(str(tmp_path)), [DataFile(path=str(tmp_path / "bad.parquet"), size=4)], None)
