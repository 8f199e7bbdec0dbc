"""Maintenance of a Delta table: expiry of log versions, and VACUUM.

Delta does not expire versions individually: every program that cleans the log retains it for
`delta.logRetentionDuration`, 30 days by default. The ledger is in the log, too. It is therefore committed again when it
is a day old, or lacks receipts.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.delta.actions import add_action, remove_action
from warmlog.pipeline.lakehouse.delta.table import DeltaTable, delta_errors
from warmlog.pipeline.lakehouse.ledger import LEDGER_KEY, ledger_text
from warmlog.pipeline.lakehouse.maintenance.history import mark_of
from warmlog.pipeline.lakehouse.maintenance.upkeep import Expired, Unneeded
from warmlog.pipeline.lakehouse.reading import DataFile
from warmlog.pipeline.lakehouse.receipts import KEY, Receipt
from warmlog.pipeline.lakehouse.writing import NewFile

LOG = "_delta_log"
LOG_RETENTION = "delta.logRetentionDuration"
DEFAULT_RETENTION = timedelta(days=30)
LEDGER_AGE = timedelta(days=1)
HOUR = timedelta(hours=1)
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

    def replace(self, removed: Sequence[DataFile], added: Sequence[NewFile], ledger: Sequence[Receipt]) -> None:
        """Replace files by others with the same rows. Raises ConflictError, OutcomeUnknownError."""
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
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import FileSelector, PyFileSystem

        with delta_errors(self._table.name):
            files = PyFileSystem(DeltaStorageHandler(self._table.name, self._table.storage))
            listed = files.get_file_info(FileSelector(LOG))
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
            form = _form(entry.get("userMetadata"))
            if KEY in form:
                return True
            if LEDGER_KEY in form:
                made = datetime.fromtimestamp(entry["timestamp"] / 1000, UTC)
                return bool(self._now() - made > LEDGER_AGE)
        return False

    def expire(self, expired: Expired, ledger: Sequence[Receipt]) -> None:
        """Commit the ledger, write a checkpoint, and delete the versions of the log before it."""
        if expired.moves_ledger:
            self.replace([], [], ledger)
            self._table.refresh()
        if expired.versions:
            with delta_errors(self._table.name):
                self._table.handle.create_checkpoint()
                self._table.handle.cleanup_metadata()

    def unneeded(self) -> Unneeded:
        """Return the files that VACUUM deletes: files removed from the table or never committed, and old enough."""
        paths = self._vacuum(dry_run=True)
        return Unneeded(paths=tuple(paths), size=sum(self._sizes(paths)))

    def _sizes(self, paths: Sequence[str]) -> list[int]:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        with delta_errors(self._table.name):
            files = PyFileSystem(DeltaStorageHandler(self._table.name, self._table.storage))
            return [info.size or 0 for info in files.get_file_info(list(paths))]

    def delete(self, unneeded: Unneeded) -> None:
        """Run VACUUM if it would delete any file, since it commits its start and its end to the log."""
        if unneeded.paths:
            self._vacuum(dry_run=False)

    def _vacuum(self, *, dry_run: bool) -> list[str]:
        hours = -(-self._age // HOUR)
        with delta_errors(self._table.name):
            return list(self._table.handle.vacuum(hours, dry_run=dry_run, full=True, enforce_retention_duration=False))


def _form(metadata: Any) -> dict[str, Any]:
    try:
        form = json.loads(metadata)
    except (TypeError, ValueError):
        return {}
    return form if isinstance(form, dict) else {}
