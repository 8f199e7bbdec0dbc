"""The job behind `warmlog pipeline table --upsert`: each commit leaves the table with the newest row of each key.

1. Tasks write the records of a batch as files, and their keys as changes. A commit adds the new files and removes those
   they replace, in one version, together with the positions.
2. Tasks in this process write changes to a directory of this machine, tasks of Spark to the table's store.
3. Offsets must not begin again: rows of an earlier topic of the same name could not be told from those of this one.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.committing import Batch
from warmlog.pipeline.lakehouse.job import TableJob, TableSettings
from warmlog.pipeline.lakehouse.ledger import begins_again
from warmlog.pipeline.lakehouse.receipts import Receipt, Span
from warmlog.pipeline.lakehouse.schemas.decoding import DecodeRules
from warmlog.pipeline.lakehouse.table import Table
from warmlog.pipeline.lakehouse.upserts.changes import (
    Changes,
    UpsertedGroup,
    UpsertRules,
    check_needed,
    key_type_of,
    upserter,
)
from warmlog.pipeline.lakehouse.upserts.commits import UpsertCommits, check_upserted
from warmlog.pipeline.lakehouse.upserts.scratch import scratch_directory
from warmlog.pipeline.lakehouse.writing import FileStore, Group, LocalFiles, NewFile, ParquetRules, WrittenGroup
from warmlog.pipeline.runner import LocalRunner, Runner
from warmlog.pipeline.source.input import rules_of
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.plan import Plan


class UpsertJob(TableJob):
    """Upserts new records into a table, a batch at a time. Arguments as for TableJob."""

    def __init__(self, options: ReadOptions, table: Table, settings: TableSettings, **how: Callable[..., Any]) -> None:
        assert settings.formats.upsert, "receipts name the mode"
        check_needed(options.columns)
        super().__init__(options, table, settings, **how)
        only_topic = None if "topic" in options.columns else options.topics.named[0]
        self._commits = UpsertCommits(table, self._committer, only_topic)

    def step(self, run: Runner) -> Receipt | None:
        """Upsert one batch; return its receipt or, without new records, None.

        Raises PipelineError, InspectError, OSError.
        """
        with scratch_directory() as self._scratch, ExitStack() as self._after:
            return super().step(run)

    def _check_mode(self) -> None:
        check_upserted(self._table)

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
        self._after.close()  # deletes the changes of a batch that is written again
        written = super()._write(run, plan, decode)
        names = tuple(part.changes for part in written if isinstance(part, UpsertedGroup))
        key_type = key_type_of(self._table.schema())
        self._changes = Changes(store=self._change_store(run), names=names, key_type=key_type)
        self._after.callback(self._changes.delete)
        return written

    def _writer(self, run: Runner, decode: DecodeRules) -> Callable[[Group], WrittenGroup]:
        store = self._change_store(run)
        rules = UpsertRules(schema=self._table.schema(), decode=decode, changes=store, **self._file_rules())
        return upserter(rules, rules_of(self._options))

    def _change_store(self, run: Runner) -> FileStore:
        """Return where tasks write changes, and this process reads them."""
        return LocalFiles(str(self._scratch)) if isinstance(run, LocalRunner) else self._table.store()

    def _batch(self, run: Runner, receipt: Receipt, files: Sequence[NewFile]) -> Batch:
        rules = ParquetRules(schema=self._table.full_schema(), **self._file_rules())
        batch = super()._batch(run, receipt, files)
        return self._commits.upserted(run, rules, batch, self._changes, self._scratch)
