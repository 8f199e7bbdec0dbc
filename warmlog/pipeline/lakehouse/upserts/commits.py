"""Commits of upserts: the files of a batch, and those that replace files of the table.

1. The newest change of each key decides: rows that it replaces, in the files of the batch and of the table, are left
   out of files that are written again.
2. Files are chosen from the version that was read last. If another program has changed any since, the commit is
   refused, and the batch is written again.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.committing import Batch, Committer, Replaced
from warmlog.pipeline.lakehouse.maintenance.planning import SMALL
from warmlog.pipeline.lakehouse.reading import DataFile, Selection
from warmlog.pipeline.lakehouse.receipts import Receipt
from warmlog.pipeline.lakehouse.table import Table
from warmlog.pipeline.lakehouse.upserts.changes import Changes
from warmlog.pipeline.lakehouse.upserts.keys import BatchKeys, Offsets, Replacement, database_errors
from warmlog.pipeline.lakehouse.upserts.rewriting import Without, divided, rewriter, size_of_parts
from warmlog.pipeline.lakehouse.writing import NewFile, ParquetRules
from warmlog.pipeline.runner import Runner
from warmlog.protocol.partitions import TopicPartition

_log = logging.getLogger(__name__)


def check_upserted(table: Table) -> None:
    """Raise PipelineError for a table with rows that were not upserted."""
    if not table.is_upserted and table.files():
        raise PipelineError(
            f"{table.name} has rows that were not written by --upsert, so a key may have several of them:"
            " name another table"
        )


class UpsertCommits:
    """Makes the commits of a table. `topic`: the only topic of the table, if its rows do not name it.

    `has_warned`: whether it has warned of keys in several partitions, which it does once.
    """

    def __init__(
        self, table: Table, committer: Committer, topic: str | None = None, *, has_warned: bool = False
    ) -> None:
        self._table = table
        self._committer = committer
        self._topic = topic
        self.has_warned = has_warned

    def upserted(self, run: Runner, rules: ParquetRules, batch: Batch, changes: Changes, scratch: Path) -> Batch:
        """Return what to commit for a batch of records that tasks have written, and their changes.

        `run`: runs the tasks that write files again, by `rules`. `scratch`: a directory for intermediate results.
        Raises PipelineError, OSError.
        """
        listed = self._table.files()
        live = [file for file in listed if self._may_have_keys(file, batch.receipt)]
        with database_errors(), BatchKeys(scratch, changes) as keys:
            superseded, rows = keys.superseded(), keys.rows()
            replacement = keys.replaced(self._table.store(), live, self._topic)
        parts = [
            Without(file=live[number], offsets=offsets, topic=self._topic)
            for number, offsets in replacement.offsets.items()
        ]
        replaced = tuple(part.file for part in parts)
        made = self._rewritten(run, rules, batch.files, superseded, parts)
        self._warn(replacement)
        counts = {
            "inserted": rows - replacement.updated,
            "updated": replacement.updated,
            "deleted": replacement.deleted,
            "elsewhere": replacement.elsewhere,
        }
        return Batch(
            receipt=replace(batch.receipt, files=tuple(file.name for file in made), upsert=counts),
            files=made,
            replaced=Replaced(files=replaced, chosen_from=frozenset(file.path for file in listed)),
        )

    def _may_have_keys(self, file: DataFile, receipt: Receipt) -> bool:
        """Return whether a file may have rows of the topics. Raises PipelineError if other programs hide its rows."""
        topics = {topic for topic, _ in receipt.spans}
        low_high = file.bounds.get("topic")
        if low_high is not None and not any(low_high[0] <= topic <= low_high[1] for topic in topics):
            return False
        if file.hides_rows:
            raise PipelineError(
                f"{self._table.name}: another program has only marked rows of {file.path} as deleted:"
                " rewrite the file first (OPTIMIZE of Delta, rewrite_data_files of Iceberg)"
            )
        return True

    def _rewritten(
        self,
        run: Runner,
        rules: ParquetRules,
        files: Sequence[NewFile],
        superseded: Offsets,
        replaced: Sequence[Without],
    ) -> list[NewFile]:
        """Write files again without replaced rows; return the new files, and those of the batch that stay."""
        small = SMALL * rules.file_bytes if replaced else 0
        parts, again, kept = list(replaced), [], []
        for file in files:
            there = DataFile(
                path=rules.store.path_of(file.name), size=file.size, bounds=file.bounds, partition=file.partition
            )
            offsets = _within(there, superseded)
            if offsets or file.size < small:
                again.append(file)
                parts.append(Without(file=there, offsets=offsets, topic=self._topic))
            else:
                kept.append(file)
        made = [file for listed in run(divided(rules, parts), rewriter(rules), size_of_parts) for file in listed]
        self._committer.discard(again)
        return [*kept, *made]

    def _warn(self, replacement: Replacement) -> None:
        if replacement.elsewhere and not self.has_warned:
            self.has_warned = True
            _log.warning(
                "%s: keys are in more than one partition, and have a row for each (%s in this commit)",
                self._table.name,
                f"{replacement.elsewhere:,}",
            )


def _within(file: DataFile, offsets: Offsets) -> Mapping[TopicPartition, Any]:
    """Return the sorted offsets that the bounds of a file allow."""
    low, high = file.bounds["offset"]
    within = {}
    for key, listed in offsets.items():
        chosen = listed[np.searchsorted(listed, low) : np.searchsorted(listed, high, side="right")]
        if len(chosen) and file.may_hold(Selection(key=key, first=low, end=high + 1, columns=())):
            within[key] = chosen
    return within
