"""The job behind `warmlog pipeline table --upsert`: each commit leaves the table with the newest row of each key.

1. Tasks write the records of a batch as files, and their keys as changes. The newest change of each key decides: rows
   that it replaces, in the files of the batch and of the table, are left out of files that are written again.
2. A commit adds the new files and removes those they replace, in one version, together with the positions. If another
   program has changed any file since these were chosen, the batch is written again.
3. Offsets must not begin again: rows of an earlier topic of the same name could not be told from those of this one.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.committing import Replaced
from warmlog.pipeline.lakehouse.job import Batch, TableJob, TableSettings
from warmlog.pipeline.lakehouse.ledger import begins_again
from warmlog.pipeline.lakehouse.maintenance.planning import SMALL
from warmlog.pipeline.lakehouse.reading import DataFile, Selection
from warmlog.pipeline.lakehouse.receipts import Receipt, Span
from warmlog.pipeline.lakehouse.schemas.decoding import DecodeRules
from warmlog.pipeline.lakehouse.table import Table
from warmlog.pipeline.lakehouse.upserts.changes import UpsertedGroup, UpsertRules, key_type_of, upserter
from warmlog.pipeline.lakehouse.upserts.keys import BatchKeys, Offsets, Replacement, database_errors
from warmlog.pipeline.lakehouse.upserts.rewriting import Without, rewrite_without
from warmlog.pipeline.lakehouse.upserts.scratch import scratch_directory
from warmlog.pipeline.lakehouse.writing import NewFile, ParquetRules, WrittenGroup
from warmlog.pipeline.runner import LocalRunner, Runner
from warmlog.pipeline.source.input import rules_of
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.plan import Plan
from warmlog.protocol.partitions import TopicPartition

_log = logging.getLogger(__name__)

NEEDED = ("key", "value")


class UpsertJob(TableJob):
    """Upserts new records into a table, a batch at a time. Arguments as for TableJob."""

    def __init__(self, options: ReadOptions, table: Table, settings: TableSettings, **how: Callable[..., Any]) -> None:
        assert settings.formats.upsert, "receipts name the mode"
        missing = [name for name in NEEDED if name not in options.columns]
        if missing:
            raise PipelineError(f"--upsert needs the columns key and value, and -o columns leaves out {missing[0]}")
        super().__init__(options, table, settings, **how)
        self._changes: list[str] = []
        self._warned_elsewhere = False

    def step(self, run: Runner) -> Receipt | None:
        """Upsert one batch; return its receipt or, without new records, None.

        Raises PipelineError, InspectError, OSError.
        """
        if not isinstance(run, LocalRunner):
            raise PipelineError("--upsert runs in this process only: --engine local")
        with scratch_directory() as self._directory:
            return super().step(run)

    def _check_mode(self) -> None:
        if not self._table.is_upserted and self._table.files():
            raise PipelineError(
                f"{self._table.name} has rows that were not written by --upsert, so a key may have several of them:"
                " name another table"
            )

    def _plan(self, parallelism: int) -> Plan:
        plan = super()._plan(parallelism)
        before = self._table.positions(plan.ranges)
        for key, position in before.items():
            end = self._progress.reached.get(key)
            if end is not None and begins_again(position, Span(first=plan.ranges[key].start, end=end)):
                raise PipelineError(
                    f"{key[0]}-{key[1]} was deleted and created again, or truncated, since its rows were written to"
                    f" {self._table.name}: upsert it into another table"
                )
        return plan

    def _write(self, run: Runner, plan: Plan, decode: DecodeRules) -> list[WrittenGroup]:
        written = super()._write(run, plan, decode)
        self._changes = [part.changes for part in written if isinstance(part, UpsertedGroup)]
        return written

    def _writer(self, decode: DecodeRules) -> Any:
        scratch = str(self._directory)
        rules = UpsertRules(schema=self._table.schema(), decode=decode, scratch=scratch, **self._file_rules())
        return upserter(rules, rules_of(self._options))

    def _batch(self, receipt: Receipt, files: Sequence[NewFile]) -> Batch:
        listed = self._table.files()
        live = [file for file in listed if self._may_have_keys(file, receipt)]
        with database_errors(), BatchKeys(self._directory, self._changes, self._key_type()) as keys:
            superseded, rows = keys.superseded(), keys.rows()
            replacement = keys.replaced(self._table.store(), live, self._topic)
        made, replaced = self._rewritten(files, superseded, live, replacement)
        self._warn(replacement)
        counts = {
            "inserted": rows - replacement.updated,
            "updated": replacement.updated,
            "deleted": replacement.deleted,
            "elsewhere": replacement.elsewhere,
        }
        return Batch(
            receipt=replace(receipt, files=tuple(file.name for file in made), upsert=counts),
            files=made,
            replaced=Replaced(files=tuple(replaced), chosen_from=frozenset(file.path for file in listed)),
        )

    def _may_have_keys(self, file: DataFile, receipt: Receipt) -> bool:
        """Return whether a file may have rows of the topics. Raises PipelineError if other programs hide its rows."""
        topics = {topic for topic, _ in receipt.spans}
        low_high = file.bounds.get("topic")
        if low_high is not None and not any(low_high[0] <= topic <= low_high[1] for topic in topics):
            return False
        if file.hides_rows:
            raise PipelineError(
                f"{self._table.name}: rows of {file.path} were deleted by another program, which notes that elsewhere:"
                " rewrite the file first (OPTIMIZE of Delta, rewrite_data_files of Iceberg)"
            )
        return True

    @property
    def _topic(self) -> str | None:
        """The only topic of the table, if its rows do not name it."""
        return None if "topic" in self._options.columns else self._options.topics.named[0]

    def _key_type(self) -> Any:
        return key_type_of(self._table.schema())

    def _rewritten(
        self, files: Sequence[NewFile], superseded: Offsets, live: Sequence[DataFile], replacement: Replacement
    ) -> tuple[list[NewFile], list[DataFile]]:
        """Write files again without replaced rows; return the new files, and the files of the table they replace."""
        store, topic = self._table.store(), self._topic
        parts = [
            Without(file=live[number], offsets=offsets, topic=topic) for number, offsets in replacement.offsets.items()
        ]
        replaced = [part.file for part in parts]
        small = SMALL * self._settings.file_bytes if parts else 0
        again, kept = [], []
        for file in files:
            there = DataFile(path=store.path_of(file.name), size=file.size, bounds=file.bounds)
            if file.size < small or any(_may_hold(there, key, offsets) for key, offsets in superseded.items()):
                again.append(file)
                parts.append(Without(file=there, offsets=superseded, topic=topic))
            else:
                kept.append(file)
        rules = ParquetRules(schema=self._table.full_schema(), **self._file_rules())
        made = rewrite_without(rules, parts) if parts else []
        self._committer.discard(again)
        return [*kept, *made], replaced

    def _warn(self, replacement: Replacement) -> None:
        if replacement.elsewhere and not self._warned_elsewhere:
            self._warned_elsewhere = True
            _log.warning(
                "%s: keys are in more than one partition, and have a row for each (%s in this commit)",
                self._table.name,
                f"{replacement.elsewhere:,}",
            )


def _may_hold(file: DataFile, key: TopicPartition, offsets: Any) -> bool:
    """Return whether the bounds of a file allow one of these sorted offsets of a partition."""
    low, high = file.bounds["offset"]
    at = int(np.searchsorted(offsets, low))
    if at == len(offsets) or offsets[at] > high:
        return False
    return file.may_hold(Selection(key=key, first=low, end=high + 1, columns=()))
