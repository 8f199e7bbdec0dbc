"""Maintenance of an Iceberg table: expiry of snapshots, and removal of files that no snapshot needs.

pyiceberg expires snapshots only in the metadata. The files of expired snapshots are deleted together with those that a
killed run left: all files in `data/` and `metadata/` of the table's location that no snapshot names, that are old
enough, that have names as Iceberg's writers give, and that are not of another table inside.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.iceberg.entries import data_files_of
from warmlog.pipeline.lakehouse.iceberg.errors import first_line, is_permanent
from warmlog.pipeline.lakehouse.iceberg.history import marks_of
from warmlog.pipeline.lakehouse.iceberg.rollbacks import accepted
from warmlog.pipeline.lakehouse.iceberg.table import IcebergTable
from warmlog.pipeline.lakehouse.ledger import LEDGER_KEY, WHOLE, ledger_text
from warmlog.pipeline.lakehouse.maintenance.history import mark_of
from warmlog.pipeline.lakehouse.maintenance.upkeep import Expired, Unneeded
from warmlog.pipeline.lakehouse.neighbours import OwnFiles
from warmlog.pipeline.lakehouse.reading import DataFile
from warmlog.pipeline.lakehouse.receipts import KEY, Receipt
from warmlog.pipeline.lakehouse.table import ConflictError, OutcomeUnknownError, RefusedError
from warmlog.pipeline.lakehouse.writing import NewFile

FOLDERS = ("data", "metadata")
WRITTEN = re.compile(r"\.(parquet|orc|avro|puffin|stats)(\.crc)?$|\.metadata\.json(\.gz)?$|(^|/)warmlog-[^/]*\.arrows$")


class IcebergUpkeep:
    """Maintains an Iceberg table.

    `snapshot_age`: minimum age of snapshots to expire; the newest `keep_snapshots` and those of branches and tags are
    retained. `age`: minimum age of files to delete. `now`: returns the time.
    """

    def __init__(
        self,
        table: IcebergTable,
        *,
        snapshot_age: timedelta,
        keep_snapshots: int,
        age: timedelta,
        now: Any = lambda: datetime.now(UTC),
    ) -> None:
        self._table = table
        self._snapshot_age = snapshot_age
        self._keep_snapshots = keep_snapshots
        self._age = age
        self._now = now

    @property
    def table(self) -> IcebergTable:
        """The table."""
        return self._table

    def check(self) -> None:
        """Raise PipelineError if a rollback took back rows that were not copied again."""
        taken = self._table.taken_back()
        if taken is not None:
            raise PipelineError(taken.message(self._table.name))

    def replace(self, removed: Sequence[DataFile], added: Sequence[NewFile], ledger: Sequence[Receipt]) -> None:
        """Replace files by others with the same rows. Raises ConflictError, RefusedError, OutcomeUnknownError."""
        with self._commit(ledger) as transaction:
            _replace(transaction, self._table.handle, {file.path for file in removed}, added)

    def _commit(self, ledger: Sequence[Receipt]) -> "_Commit":
        return _Commit(self._table, ledger)

    def to_expire(self) -> Expired:
        """Return the snapshots that are old enough."""
        metadata = self._table.handle.metadata
        heads = {ref.snapshot_id for ref in metadata.refs.values()}
        newest = sorted(metadata.snapshots, key=lambda each: each.timestamp_ms, reverse=True)
        before_ms = (self._now() - self._snapshot_age).timestamp() * 1000
        old = [
            each
            for each in newest[self._keep_snapshots :]
            if each.timestamp_ms < before_ms and each.snapshot_id not in heads
        ]
        return Expired(
            versions=tuple(sorted(each.snapshot_id for each in old)),
            kept=len(newest) - len(old),
            moves_ledger=any(each.summary is not None and KEY in each.summary.additional_properties for each in old),
        )

    def expire(self, expired: Expired, ledger: Sequence[Receipt]) -> None:
        """Expire snapshots, and store the ledger in the same commit.

        Raises ConflictError, RefusedError, OutcomeUnknownError.
        """
        from pyiceberg.table.update.snapshot import ExpireSnapshots

        if expired.versions:
            with self._commit(ledger) as transaction:
                ExpireSnapshots(transaction).by_ids(list(expired.versions)).commit()

    def unneeded(self) -> Unneeded:
        """Return the files that no snapshot needs. Files are listed before the metadata is read again.

        So a file that is committed meanwhile is known to be needed; an uncommitted one is older than any commit can
        take.
        """
        before = self._now() - self._age
        listed = [info for info in self._listed() if info.mtime is not None and info.mtime < before]
        self._table.refresh()
        needed = {path.rpartition("/")[2] for path in self._needed()}
        own = OwnFiles(*self._files())
        gone = [
            info
            for info in listed
            if info.base_name not in needed and WRITTEN.search(info.base_name) and own.has(info.path)
        ]
        return Unneeded(paths=tuple(info.path for info in gone), size=sum(info.size or 0 for info in gone))

    def _files(self) -> tuple[Any, str]:
        """Return the table's Arrow file system, and the path of its location there. Raises PipelineError."""
        from pyiceberg.io.pyarrow import PyArrowFileIO

        table = self._table.handle
        if not isinstance(table.io, PyArrowFileIO):
            raise PipelineError(
                f"{self._table.name}: {type(table.io).__name__} cannot list files; give"
                " --storage py-io-impl=pyiceberg.io.pyarrow.PyArrowFileIO"
            )
        scheme, netloc, path = PyArrowFileIO.parse_location(table.location())
        return table.io.fs_by_scheme(scheme, netloc), path.rstrip("/")

    def _listed(self) -> Iterator[Any]:
        from pyarrow.fs import FileSelector, FileType

        files, path = self._files()
        for folder in FOLDERS:
            selector = FileSelector(f"{path}/{folder}", recursive=True, allow_not_found=True)
            yield from (info for info in files.get_file_info(selector) if info.type == FileType.File)

    def _needed(self) -> Iterator[str]:
        """Yield the paths of all files that the table's metadata names."""
        table = self._table.handle
        metadata = table.metadata
        yield table.metadata_location
        yield "version-hint.text"
        yield from (entry.metadata_file for entry in metadata.metadata_log)
        for statistics in (*metadata.statistics, *metadata.partition_statistics):
            yield statistics.statistics_path
        manifests: dict[str, Any] = {}
        for snapshot in metadata.snapshots:
            yield snapshot.manifest_list
            manifests |= {manifest.manifest_path: manifest for manifest in snapshot.manifests(table.io)}
        for path, manifest in manifests.items():
            yield path
            yield from (entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))

    def delete(self, unneeded: Unneeded) -> None:
        """Delete these files."""
        files, _ = self._files()
        for path in unneeded.paths:
            with suppress(FileNotFoundError):  # another maintenance run has deleted it
                files.delete_file(path)


class _Commit:
    """A transaction with a ledger, on top of the snapshot that was read; a context manager."""

    def __init__(self, table: IcebergTable, ledger: Sequence[Receipt]) -> None:
        self._table = table
        self._ledger = ledger

    def __enter__(self) -> Any:
        from pyiceberg.table.update import AssertRefSnapshotId

        positions = self._table.all_positions()  # a ledger says that the rows before its positions are in the table
        self._transaction = self._table.handle.transaction()
        snapshot = self._table.version
        # The public methods that add this requirement also add a snapshot.
        requirement = AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": snapshot or None})
        self._transaction._apply((), (requirement,))  # noqa: SLF001
        if self._ledger:
            marks = {**marks_of(self._table.handle.metadata), **mark_of(self._table)}
            ledger = accepted(self._ledger, positions) if WHOLE in marks else self._ledger
            self._transaction.set_properties({LEDGER_KEY: ledger_text(ledger, **marks)})
        return self._transaction

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        from pyiceberg.exceptions import CommitFailedException

        if kind is not None:
            return
        try:
            self._transaction.commit_transaction()
        except CommitFailedException as failure:
            raise ConflictError(f"{self._table.name}: {failure}") from failure
        except Exception as failure:
            if is_permanent(failure):
                raise RefusedError(f"{self._table.name}: cannot commit: {first_line(failure)}") from failure
            raise OutcomeUnknownError(f"{self._table.name}: {failure}") from failure


def _replace(transaction: Any, table: Any, removed: set[str], added: Sequence[NewFile]) -> None:
    """Stage a snapshot that replaces the removed files by the added ones."""
    from pyiceberg.table.snapshots import Operation, Summary
    from pyiceberg.table.update.snapshot import _OverwriteFiles

    class Replace(_OverwriteFiles):
        """A `replace` operation, which changes no rows, so that change readers skip it; pyiceberg 0.12 lacks it."""

        def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:
            summary = super()._summary(snapshot_properties or {})
            return Summary(Operation.REPLACE, **summary.additional_properties)

    producer = Replace(operation=Operation.OVERWRITE, transaction=transaction, io=table.io)
    for task in table.scan().plan_files():
        if task.file.file_path in removed:
            producer.delete_data_file(task.file)
    for file in data_files_of(table, table.metadata, added):
        producer.append_data_file(file)
    producer.commit()
