"""Delete files of other programs, which pyiceberg does not write."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyarrow import parquet
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record

PATH_ID, POSITION_ID = 2147483546, 2147483545  # field ids that the specification reserves


def delete_positions(table: Any, path: str, positions: Sequence[int]) -> None:
    """Delete rows of a data file by their positions."""
    fields = [_field("file_path", pa.string(), PATH_ID), _field("pos", pa.int64(), POSITION_ID)]
    rows = pa.Table.from_pylist([{"file_path": path, "pos": at} for at in positions], pa.schema(fields))
    _commit(table, rows, DataFileContent.POSITION_DELETES, bounds={PATH_ID: path.encode()})


def delete_equal(table: Any, column: str, values: Sequence[Any]) -> None:
    """Delete the rows that have one of these values in a column."""
    field = table.schema().find_field(column)
    fields = [_field(column, schema_to_pyarrow(field.field_type), field.field_id)]
    rows = pa.table([pa.array(values, fields[0].type)], schema=pa.schema(fields))
    _commit(table, rows, DataFileContent.EQUALITY_DELETES, equality_ids=[field.field_id])


def _field(name: str, kind: Any, number: int) -> Any:
    return pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(number)})


class _DeleteManifestWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _DeleteSnapshot(_FastAppendFiles):
    """A snapshot of the parent's files and one more delete file."""

    file: DataFile

    def _manifests(self) -> list[ManifestFile]:
        metadata = self._transaction.table_metadata
        output = self._io.new_output(f"{metadata.location}/metadata/{uuid4()}-deletes.avro")
        with _DeleteManifestWriter(metadata.spec(), metadata.schema(), output, self.snapshot_id, "null") as writer:
            status = ManifestEntryStatus.ADDED
            writer.add_entry(
                ManifestEntry.from_args(
                    status=status,
                    snapshot_id=self.snapshot_id,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=self.file,
                )
            )
        return [*super()._manifests(), writer.to_manifest_file()]


def _commit(
    table: Any,
    rows: Any,
    content: DataFileContent,
    bounds: Mapping[int, bytes] | None = None,
    equality_ids: list[int] | None = None,
) -> None:
    path = f"{table.location()}/data/{uuid4()}-deletes.parquet"
    local = Path(path.removeprefix("file://"))
    parquet.write_table(rows, local)
    with table.transaction() as transaction:
        snapshot = _DeleteSnapshot(operation=Operation.APPEND, transaction=transaction, io=table.io)
        snapshot.file = DataFile.from_args(
            _table_format_version=2,
            content=content,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=rows.num_rows,
            file_size_in_bytes=local.stat().st_size,
            column_sizes={},
            value_counts={},
            null_value_counts={},
            nan_value_counts={},
            lower_bounds=dict(bounds or {}),
            upper_bounds=dict(bounds or {}),
            equality_ids=equality_ids,
        )
        snapshot.commit()
