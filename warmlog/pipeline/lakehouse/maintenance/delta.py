"""Maintenance of a Delta table: expiry of log versions, and removal of files that no version needs.

These are the files that Delta's VACUUM would delete, except what no writer of Delta tables or warmlog names so, and
except files of tables inside the table's directory: VACUUM would delete both.

Delta does not expire versions individually: every program that cleans the log retains it for
`delta.logRetentionDuration`, 30 days by default. The ledger is in the log, too. It is therefore committed again when it
is a day old, or lacks receipts.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.delta.actions import add_action, remove_action
from warmlog.pipeline.lakehouse.delta.errors import delta_errors
from warmlog.pipeline.lakehouse.delta.log import LOG
from warmlog.pipeline.lakehouse.delta.table import DeltaTable
from warmlog.pipeline.lakehouse.ledger import LEDGER_KEY, ledger_text
from warmlog.pipeline.lakehouse.maintenance.history import mark_of
from warmlog.pipeline.lakehouse.maintenance.upkeep import Expired, Unneeded
from warmlog.pipeline.lakehouse.neighbours import OwnFiles, is_iceberg
from warmlog.pipeline.lakehouse.reading import DataFile
from warmlog.pipeline.lakehouse.receipts import Receipt
from warmlog.pipeline.lakehouse.writing import NewFile

LOG_RETENTION = "delta.logRetentionDuration"
DEFAULT_RETENTION = timedelta(days=30)
LEDGER_AGE = timedelta(days=1)
HOUR = timedelta(hours=1)
WRITTEN = re.compile(
    r"\.parquet(#\d+)?$|(^|/)(deletion_vector[^/]*\.bin|warmlog-[^/]*\.arrows)$|^batch=\d+/_commit\.json$"
)
ICEBERG_DATA = ("data/",)
UNITS = {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}


class DeltaUpkeep:
    """Maintains a Delta table. `age`: minimum age of files to delete. `now`: returns the time."""

    def __init__(self, table: DeltaTable, age: timedelta, now: Any = lambda: datetime.now(UTC)) -> None:
        self._table = table
        self._age = age
        self._now = now

    @property
    def table(self) -> DeltaTable:
        """The table."""
        return self._table

    def check(self) -> None:
        """Raise PipelineError if a restore took back rows that were not copied again."""
        taken = self._table.taken_back()
        if taken is not None:
            raise PipelineError(taken.message(self._table.name))

    def replace(self, removed: Sequence[DataFile], added: Sequence[NewFile], ledger: Sequence[Receipt]) -> None:
        """Replace files by others with the same rows. Raises ConflictError, RefusedError, OutcomeUnknownError.

        Raises PipelineError if a restore took back rows: a ledger settles that (see `delta.restores`).
        """
        self.check()
        arrangement = self._table.arrangement()
        gone = [remove_action(file, self._table.name, arrangement, data_change=False) for file in removed]
        new = [add_action(file, arrangement, data_change=False) for file in added]
        self._table.write([*gone, *new], {LEDGER_KEY: ledger_text(ledger, **mark_of(self._table))})

    def to_expire(self) -> Expired:
        """Return the versions of the log that are older than its retention."""
        files = {int(info.base_name[:20]): info for info in self._log() if info.extension == "json"}
        before = self._now() - self._retention()
        old = sorted(
            version for version, info in files.items() if version < self._table.version and info.mtime < before
        )
        return Expired(versions=tuple(old), kept=len(files) - len(old), moves_ledger=self._is_ledger_due())

    def _log(self) -> list[Any]:
        """List the versions of the log."""
        from pyarrow.fs import FileSelector

        with delta_errors(self._table.name):
            listed = self._files().get_file_info(FileSelector(LOG))
        return [info for info in listed if info.base_name[:20].isdecimal()]

    def _retention(self) -> timedelta:
        text = self._table.handle.metadata().configuration.get(LOG_RETENTION)
        if text is None:
            return DEFAULT_RETENTION
        words = text.lower().removeprefix("interval").split()
        try:
            number, unit = words
            return timedelta(seconds=float(number) * UNITS[unit.removesuffix("s")])
        except (ValueError, KeyError):
            raise PipelineError(
                f"{self._table.name}: {LOG_RETENTION} is {text!r}, not an interval such as 'interval 30 days'"
            ) from None

    def _is_ledger_due(self) -> bool:
        """Return whether the ledger lacks receipts, or its commit is old."""
        for entry in self._table.history():
            if entry.has_receipt:
                return True
            if entry.has_ledger:
                return bool(self._now() - datetime.fromtimestamp(entry.time_ms / 1000, UTC) > LEDGER_AGE)
        return False

    def expire(self, expired: Expired, ledger: Sequence[Receipt]) -> None:
        """Commit the ledger, write a checkpoint, and delete the versions of the log before it. Raises as `replace`."""
        if expired.moves_ledger:
            self.replace([], [], ledger)
            self._table.refresh()
        if expired.versions:
            self.check()  # the log says what was taken back
            with delta_errors(self._table.name):
                self._table.handle.create_checkpoint()
                self._table.handle.cleanup_metadata()

    def unneeded(self) -> Unneeded:
        """Return the files that were removed from the table or never committed, and are old enough."""
        with delta_errors(self._table.name):
            listed = self._table.handle.vacuum(
                -(-self._age // HOUR), dry_run=True, full=True, enforce_retention_duration=False
            )
            files = self._files()
            own = OwnFiles(files, ".")
            others = ICEBERG_DATA if is_iceberg(files, ".") else ()  # an Iceberg table in the same directory
            paths = [path for path in listed if WRITTEN.search(path) and own.has(path) and not path.startswith(others)]
            sizes = [info.size or 0 for info in files.get_file_info(paths)]
        return Unneeded(paths=tuple(paths), size=sum(sizes))

    def _files(self) -> Any:
        """Return the table's directory as a file system of pyarrow."""
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        return PyFileSystem(DeltaStorageHandler(self._table.name, self._table.storage))

    def delete(self, unneeded: Unneeded) -> None:
        """Delete these files."""
        with delta_errors(self._table.name):
            files = self._files()
            for path in unneeded.paths:
                with suppress(FileNotFoundError):  # another maintenance run has deleted it
                    files.delete_file(path)
