"""The job behind `warmlog pipeline table maintain`: merges small files, expires versions, deletes unneeded files.

1. Each step is repeatable, and no file of a version is deleted: a job that is killed leaves files without a commit,
which a later job deletes.
2. A commit is made on top of a version that was read: this version has all the files that the commit replaces, and the
ledger has the receipts of all commits up to it. If another commit comes first, the same files are committed on top of
that one.
3. Files without a commit are retained for at least `MIN_AGE`. A batch of a job is planned to take a minute from its
first file to its commit, so no file of a running job is that old.
"""

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.arrangement.spec import Arrangement
from warmlog.pipeline.lakehouse.committing import PAUSES_S
from warmlog.pipeline.lakehouse.ledger import Rewrite, fold
from warmlog.pipeline.lakehouse.maintenance.merging import DamagedFileError, Merged, UnorderedFileError, rewrite
from warmlog.pipeline.lakehouse.maintenance.planning import Bin, Footer, bins, candidates, read_footer, together
from warmlog.pipeline.lakehouse.maintenance.proving import merged_proofs
from warmlog.pipeline.lakehouse.maintenance.upkeep import Upkeep
from warmlog.pipeline.lakehouse.reading import NUMBERS, DataFile
from warmlog.pipeline.lakehouse.receipts import Receipt
from warmlog.pipeline.lakehouse.table import ConflictError, OutcomeUnknownError
from warmlog.pipeline.lakehouse.writing import DEFAULT_FILE_BYTES, NewFile

_log = logging.getLogger(__name__)

MIN_AGE = timedelta(days=1)  # minimum age of files without a commit before they are deleted

REMEDY = "restore it from a copy; an audit says which rows are missing"


@dataclass(slots=True, kw_only=True)
class Maintenance:
    """Summary of the work that was done, or that a dry run would do. Sizes are in bytes.

    `merged_files`: small files merged into `new_files`, with `rows`. `versions`: expired versions; `kept_versions`:
    retained ones. `left_alone`: paths of files that cannot be merged, with the reason. `unneeded`: paths of the files
    that a dry run would delete.
    """

    table: str
    dry_run: bool
    merged_files: int = 0
    merged_size: int = 0
    new_files: int = 0
    new_size: int = 0
    rows: int = 0
    versions: int = 0
    kept_versions: int = 0
    deleted_files: int = 0
    deleted_size: int = 0
    left_alone: dict[str, str] = field(default_factory=dict)
    unneeded: list[str] = field(default_factory=list)

    def form(self) -> dict[str, Any]:
        """Return the same as a JSON object."""
        return asdict(self)


class MaintenanceJob:
    """Maintains a table. `file_bytes`: target size of files. `pause`: waits the given seconds before a retry."""

    def __init__(
        self,
        upkeep: Upkeep,
        *,
        file_bytes: int = DEFAULT_FILE_BYTES,
        compression: str = "zstd",
        dry_run: bool = False,
        pause: Callable[[float], Any] = time.sleep,
    ) -> None:
        self._upkeep = upkeep
        self._table = upkeep.table
        self._file_bytes = file_bytes
        self._compression = compression
        self._pause = pause
        self._skip: set[frozenset[str]] = set()
        self._footers: dict[str, Footer] = {}
        self.done = Maintenance(table=self._table.name, dry_run=dry_run)

    def run(self) -> Maintenance:
        """Do all steps. Raises PipelineError, OSError."""
        self._table.refresh()
        self._upkeep.check()
        self._merge()
        self._expire()
        unneeded = self._upkeep.unneeded()
        self.done.deleted_files, self.done.deleted_size = len(unneeded.paths), unneeded.size
        if self.done.dry_run:
            self.done.unneeded = sorted(unneeded.paths)
        else:
            self._upkeep.delete(unneeded)
        return self.done

    # -- small files --

    def _merge(self) -> None:
        """Merge bins until there are none. Results that are still small are candidates for the next bins."""
        while planned := self._bins():
            if self.done.dry_run:
                for part in planned:
                    self._count(part, new_files=max(round(part.size / self._file_bytes), 1), new_size=part.size)
                return
            for parts in together(planned, self._file_bytes):
                self._merge_bins(parts)
            self._table.refresh()

    def _bins(self) -> list[Bin]:
        listed, receipts = [], self._receipts()
        for file in candidates(self._table.files(), receipts, self._file_bytes):
            if file.path in self.done.left_alone:
                continue
            if file.partition is None:
                self._leave(file, "it has other partition fields than the table has now")
                continue
            footer = self._footers.get(file.path) or self._footer(file)
            if footer is not None:
                self._footers[file.path] = footer
                lacking = [name for name in NUMBERS if name not in footer.schema.names]
                if lacking:
                    self._leave(file, f"it has no column {' and '.join(lacking)}")
                else:
                    listed.append((file, footer))
        return bins(listed, receipts, self._file_bytes, self._skip)

    def _footer(self, file: DataFile) -> Footer | None:
        import pyarrow as pa

        try:
            return read_footer(self._table.store(), file)
        except (OSError, pa.ArrowException) as error:
            self._leave(file, f"{error}; {REMEDY}")
            return None

    def _leave(self, file: DataFile, reason: str) -> None:
        self.done.left_alone[file.path] = reason
        _log.warning("%s is left as it is: %s", file.path, reason)

    def _receipts(self) -> list[Receipt]:
        """Return the receipts of the version, from oldest to newest."""
        return [commit.receipt for commit in self._table.commits()][::-1]

    def _merge_bins(self, parts: Sequence[Bin]) -> None:
        """Rewrite bins, and commit them together. Raises PipelineError."""
        arrangement = self._table.arrangement()
        ready: list[tuple[Bin, Merged]] = []
        try:
            for part in parts:
                merged = self._rewritten(part, arrangement)
                if merged is not None:
                    ready.append((part, merged))
        except (PipelineError, OSError):  # what is ready has no fault
            self._commit(ready, arrangement)
            raise
        for part, merged in self._commit(ready, arrangement):
            self._count(part, len(merged.files), sum(file.size for file in merged.files))
            self.done.rows += merged.rows

    def _rewritten(self, part: Bin, arrangement: Arrangement) -> Merged | None:
        """Rewrite a bin; None if a file is damaged or out of order, or if they would not become fewer.

        Raises PipelineError.
        """
        import pyarrow as pa

        store = self._table.store()
        try:
            merged = rewrite(
                store, part, compression=self._compression, file_bytes=self._file_bytes, arrangement=arrangement
            )
        except UnorderedFileError as error:
            order = ", ".join(map(str, arrangement.sort)) or "partition and offset"
            self._leave(error.file, f"it is not in the order of {order}")
            return None
        except DamagedFileError as error:
            self._leave(error.file, f"{error.reason}; {REMEDY}")
            return None
        except pa.ArrowException as error:
            raise PipelineError(
                f"files of {self._table.name} cannot be merged: {error}; `audit` names damaged files"
            ) from error
        if len(merged.files) < len(part.files):
            return merged
        self._skip.add(frozenset(file.name for file in part.files))
        self._discard(merged.files)
        return None

    def _count(self, part: Bin, new_files: int, new_size: int) -> None:
        self.done.merged_files += len(part.files)
        self.done.merged_size += part.size
        self.done.new_files += new_files
        self.done.new_size += new_size

    def _commit(self, ready: Sequence[tuple[Bin, Merged]], arrangement: Arrangement) -> list[tuple[Bin, Merged]]:
        """Commit rewrites, except those of which another program has removed or changed a file; return the others.

        Raises PipelineError.
        """
        failure: Exception | None = None
        left = list(ready)
        for pause_s in PAUSES_S:
            live = {file.path: file for file in self._table.files()}
            names = {file.name for file in live.values()}
            if any(file.name in names for _, merged in left for file in merged.files):
                return left  # the answer to an attempt was lost
            left = [each for each in left if self._is_current(each, live, arrangement)]
            if not left:
                return []
            removed = [file for part, _ in left for file in part.files]
            added = [file for _, merged in left for file in merged.files]
            try:
                self._upkeep.replace(removed, added, self._ledger(left, names))
            except (ConflictError, OutcomeUnknownError) as error:
                failure = error
                _log.info("%s; retrying", error)
                self._pause(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - only spreads attempts
                self._table.refresh()
                continue
            self._table.refresh()
            return left
        raise PipelineError(f"{failure}; gave up after {len(PAUSES_S)} attempts") from failure

    def _is_current(
        self, rewritten: tuple[Bin, Merged], live: Mapping[str, DataFile], arrangement: Arrangement
    ) -> bool:
        """Return whether the table still has the files of a bin, and its arrangement; otherwise drop the rewrite."""
        part, merged = rewritten
        if all(live.get(file.path) == file for file in part.files) and self._table.arrangement() == arrangement:
            return True
        _log.info("files of %s have changed meanwhile; their rewrite is dropped", self._table.name)
        self._discard(merged.files)
        return False

    def _ledger(self, rewritten: Sequence[tuple[Bin, Merged]], names: set[str]) -> Sequence[Receipt]:
        """Return the receipts of the version after rewrites. `names`: of the files before."""
        receipts: Sequence[Receipt] = self._receipts()
        for part, merged in rewritten:
            change = Rewrite(
                removed=frozenset(file.name for file in part.files),
                added=tuple(file.name for file in merged.files),
                proofs=merged.proofs,
            )
            receipts = fold(receipts, change, names)
            names |= set(change.added)
        return receipts

    def _discard(self, files: Sequence[NewFile]) -> None:
        store = self._table.store()
        for file in files:
            with suppress(OSError, PipelineError):  # a file that cannot be deleted now is found again by a later run
                store.delete(file.name)

    # -- versions --

    def _expire(self) -> None:
        failure: Exception | None = None
        change: Rewrite | None = None
        for pause_s in PAUSES_S:
            expired = self._upkeep.to_expire()
            self.done.versions, self.done.kept_versions = len(expired.versions), expired.kept
            if self.done.dry_run:
                return
            files, receipts = self._table.files(), self._receipts()
            if change is None:
                is_due = bool(expired.versions or expired.moves_ledger) and not self._table.arrangement().is_plain
                proofs = merged_proofs(self._table.store(), files, receipts) if is_due else []
                change = Rewrite(proofs=tuple(proofs))
            try:
                self._upkeep.expire(expired, fold(receipts, change, [file.name for file in files]))
            except (ConflictError, OutcomeUnknownError) as error:
                failure = error
                _log.info("%s; retrying", error)
                self._pause(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - only spreads attempts
                self._table.refresh()
                continue
            self._table.refresh()
            return
        raise PipelineError(f"{failure}; gave up after {len(PAUSES_S)} attempts") from failure
