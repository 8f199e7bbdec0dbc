"""Commit a batch to a table despite concurrent commits and lost answers. For the invariants see `job`."""

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from warmlog.pipeline.errors import PipelineError, UnavailableError
from warmlog.pipeline.lakehouse.arrangement.spec import Arrangement
from warmlog.pipeline.lakehouse.reading import DataFile
from warmlog.pipeline.lakehouse.receipts import Receipt
from warmlog.pipeline.lakehouse.table import ConflictError, OutcomeUnknownError, RefusedError, Table
from warmlog.pipeline.lakehouse.writing import NewFile
from warmlog.pipeline.source.offsets import Position
from warmlog.protocol.partitions import TopicPartition

_log = logging.getLogger(__name__)

# Pauses between attempts while other programs commit or the table is unreachable: one minute in total.
PAUSES_S = tuple(min(0.05 * 2**attempt, 5.0) for attempt in range(20))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """Files that a batch replaces, and the paths of all files from which they were chosen."""

    files: tuple[DataFile, ...]
    chosen_from: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What a commit consists of. `replaced`: files of the table that it removes."""

    receipt: Receipt
    files: Sequence[NewFile]
    replaced: Replaced | None = None


class Committer:
    """Commits batches to a table. `pause`: waits the given number of seconds before a retry."""

    def __init__(self, table: Table, pause: Callable[[float], Any] = time.sleep) -> None:
        self._table = table
        self._pause = pause

    def commit(self, receipt: Receipt, files: Sequence[NewFile], replaced: Replaced | None = None) -> bool:
        """Commit a batch. Raises PipelineError.

        Return False if the batch must be written again: another job has committed some of its offsets, or changed
        columns, or if files are replaced, has added or removed any.
        """
        before = self._table.positions(receipt.spans)
        schema, arrangement = self._table.schema(), self._table.arrangement()
        for pause_s in PAUSES_S:
            try:
                self._table.commit(receipt, files, () if replaced is None else replaced.files)
            except RefusedError as error:
                if not self._is_there_all_the_same(receipt, files):
                    raise
                _log.warning("%s; its receipt is in the table", error)
                return True
            except (ConflictError, OutcomeUnknownError) as error:
                failure = error
            else:
                return True
            self._pause(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - only spreads attempts
            if self._is_committed(receipt):
                _log.warning("%s; its receipt is in the table", failure)
                return True
            if self._moved(receipt, before, files):
                if self._has(files):
                    _log.warning("%s; its files are in the table, and its receipt is expired", failure)
                    return True
                _log.warning("another job has written the same offsets to %s; continuing after it", self._table.name)
                self.discard(files)
                return False
            changed = self._changed(schema, arrangement, replaced)
            if changed is not None:
                _log.warning("the %s of %s were changed meanwhile; writing again", changed, self._table.name)
                self.discard(files)
                return False
            _log.info("%s; retrying", failure)
        raise PipelineError(f"{failure}; gave up after {len(PAUSES_S)} attempts") from failure

    def _moved(self, receipt: Receipt, before: Mapping[TopicPartition, Position], files: Sequence[NewFile]) -> bool:
        """Return whether the table's positions have changed. Raises PipelineError if rows were taken back meanwhile."""
        try:
            return self._table.positions(receipt.spans) != before
        except UnavailableError:
            raise
        except PipelineError:
            if not self._has(files):
                self.discard(files)
            raise

    def _changed(self, schema: Any, arrangement: Arrangement, replaced: Replaced | None) -> str | None:
        """Name what files depend on and another program has changed, or return None."""
        if not self._table.schema().equals(schema, check_metadata=True):
            return "columns"
        if self._table.arrangement() != arrangement:
            return "partitions or order"
        if replaced is not None and replaced.chosen_from != frozenset(file.path for file in self._table.files()):
            return "files"
        return None

    def _is_there_all_the_same(self, receipt: Receipt, files: Sequence[NewFile]) -> bool:
        """Return whether the table has a commit that was refused, as when only its checkpoint cannot be written.

        Files are deleted if it certainly has not.
        """
        with suppress(PipelineError):
            self._table.refresh()
            if self._table.holds(receipt):
                return True
            self.discard(files)
        return False

    def _is_committed(self, receipt: Receipt) -> bool:
        """Read the newest version, and return whether it contains the receipt. Raises UnavailableError."""
        for pause_s in PAUSES_S:
            try:
                self._table.refresh()
                return self._table.holds(receipt)
            except UnavailableError as error:
                _log.warning("%s; retrying", error)
                self._pause(pause_s)
        self._table.refresh()
        return self._table.holds(receipt)

    def _has(self, files: Sequence[NewFile]) -> bool:
        names = {file.name for file in self._table.files()}
        return any(file.name in names for file in files)

    def discard(self, files: Sequence[NewFile]) -> None:
        """Delete files that no commit references."""
        store = self._table.store()
        for file in files:
            with suppress(OSError, PipelineError):  # a file that cannot be deleted becomes an orphan, as after a kill
                store.delete(file.name)
