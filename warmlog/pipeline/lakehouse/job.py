"""The job behind `warmlog pipeline table`: batches that each start at the positions of the table's last commit.

1. The table is the only checkpoint. A batch begins at the positions of the version on top of which it is committed.
2. A commit fails if another one came first. If the other commit moved none of the batch's positions (other programs
   also
append and compact), the same files are committed on top of it; otherwise they are deleted, and the job plans again.
3. If the answer to a commit is lost, the table is searched for its receipt. The same receipt cannot be committed twice,
   because both attempts require the same base version.
4. A killed job leaves files without a commit. No reader sees them; Delta's VACUUM and Iceberg's removal of orphan files
delete them.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from warmlog.pipeline.copying.group_offsets import GroupOffsets
from warmlog.pipeline.copying.metrics import CopyMetrics
from warmlog.pipeline.copying.progress import Progress
from warmlog.pipeline.errors import PipelineError, UnavailableError
from warmlog.pipeline.job_stats import Reporter, added
from warmlog.pipeline.lakehouse.arrangement.sorting import LIMITS, SortLimits, check_partitions
from warmlog.pipeline.lakehouse.committing import Batch, Committer
from warmlog.pipeline.lakehouse.pace import Pace, Targets
from warmlog.pipeline.lakehouse.receipts import Proof, Receipt, Span, all_runs, joined_runs, new_id
from warmlog.pipeline.lakehouse.schemas.catalog import SchemaCatalog
from warmlog.pipeline.lakehouse.schemas.columns import check_columns
from warmlog.pipeline.lakehouse.schemas.decoding import DecodeRules
from warmlog.pipeline.lakehouse.schemas.formats import BINARY, Formats
from warmlog.pipeline.lakehouse.table import Table
from warmlog.pipeline.lakehouse.writing import (
    DEFAULT_FILE_BYTES,
    Group,
    NewFile,
    WriteRules,
    WrittenGroup,
    groups_of,
    size_of_group,
    writer,
)
from warmlog.pipeline.runner import Runner
from warmlog.pipeline.source.input import choose_input, rules_of
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.plan import Plan
from warmlog.pipeline.source.ranges import Extent, Range, key_of, last_of
from warmlog.protocol.partitions import TopicPartition

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """Options for writing a table. `file_bytes`: target size of files. `limits`: of sorts."""

    targets: Targets = field(default_factory=Targets)
    file_bytes: int = DEFAULT_FILE_BYTES
    compression: str = "zstd"
    formats: Formats = BINARY
    limits: SortLimits = LIMITS


class TableJob:
    """Copies new records to a table, a batch at a time. `pause`: waits the given number of seconds before a retry."""

    def __init__(
        self,
        options: ReadOptions,
        table: Table,
        settings: TableSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Any] = time.sleep,
    ) -> None:
        if options.on_corrupt == "stop":
            raise PipelineError("onCorrupt=stop is not supported for tables: use fail or skip")
        check_columns(options.columns, len(options.topics.named))
        letters = settings.formats.dead_letters
        if letters is not None and options.topics.wants(letters.topic, 0):
            raise PipelineError(f"{letters.topic} is the topic that is copied: dead letters need another one")
        self._options = options
        self._table = table
        self._settings = settings
        self._clock = clock
        self._committer = Committer(table, pause)
        self._schemas = SchemaCatalog(settings.formats, options.columns)
        self._committed: set[TopicPartition] = set()
        self._progress = Progress(options)
        self._group = GroupOffsets(options, self._progress.warn)
        self._group.is_behind = True  # the last run may have been killed between a table commit and the group's
        self._pace: Pace | None = None
        self._ends: dict[TopicPartition, int] = {}
        self.metrics = CopyMetrics()
        self.reporter = Reporter("table")
        self.commits = 0

    def create_table(self) -> None:
        """Create the table unless it exists, with all columns that are known already. Raises PipelineError."""
        self._table.create(self._schemas.known_schema(self._table) if self._table.is_arranged else None)

    def pending_bytes(self) -> int:
        """Return the approximate size of the records to copy. Raises PipelineError, InspectError, OSError."""
        self._table.refresh()
        pending: dict[TopicPartition, Range] = {}

        def choose(extents: list[Extent]) -> dict[TopicPartition, Range]:
            self._load(extents)
            pending.update(self._progress.pending(extents))
            return pending

        size = choose_input(self._options).size(choose)
        offsets = sum(wanted.end - wanted.start for wanted in pending.values())
        self._pace = Pace(self._settings.targets, size / offsets if offsets else 0.0)
        return size

    def run_until_end(self, run: Runner) -> Iterator[Receipt]:
        """Copy the records that exist now, in batches. Raises PipelineError, InspectError, OSError."""
        self._progress.until = choose_input(self._options).with_extents(self._progress.ends)
        while (receipt := self.step(run)) is not None:
            yield receipt

    def run_every(self, run: Runner, wait: Callable[[], Any]) -> Iterator[Receipt]:
        """Copy new records endlessly, calling `wait` when there are none, even if the broker is unavailable."""
        while True:
            try:
                receipt = self.step(run)
            except UnavailableError as error:
                _log.warning("%s; retrying", error)
                self.metrics.failed_checks += 1
                receipt = None
            if receipt is not None:
                yield receipt
            else:
                wait()

    def step(self, run: Runner) -> Receipt | None:
        """Copy one batch; return its receipt or, without new records, None.

        Raises PipelineError, InspectError, OSError.
        """
        if self._pace is None:
            self.pending_bytes()
        assert self._pace is not None, "it was just set"
        while True:
            began = self._clock()
            self._table.refresh()
            self._check_mode()
            decode = self._schemas.rules(self._table)
            self._table.plan_columns(decode.schema)  # may add columns, and then reads the table again
            plan = self._plan(run.parallelism)
            offsets = sum(wanted.end - wanted.start for wanted in plan.ranges.values())
            if not offsets:
                self._progress.positions = (self._progress.positions or {}) | self._progress.reached
                self.metrics.checked(self._ends, self._progress.positions)
                if self._group.is_behind:
                    self._group.commit(self._progress.positions)
                return None
            written = self._write(run, plan, decode)
            self._check_partitions(written)
            files = [file for part in written for file in part.files]
            unknown = {schema for part in written for schema in part.unknown}
            if unknown:
                self._committer.discard(files)
                self._schemas.learn(unknown)
                continue
            written_s = self._clock() - began
            batch = self._batch(run, self._receipt(plan, written, decode), files)
            if self._committer.commit(batch.receipt, batch.files, batch.replaced):
                break
            self.metrics.dropped_batches += 1
        receipt, seconds = batch.receipt, self._clock() - began
        # files that are replaced take their time however few offsets a commit has
        self._pace.measured(offsets, sum(file.size for file in files), written_s if batch.replaced else seconds)
        self._count(batch, plan, written, seconds)
        self._group.commit(self._progress.positions)
        return receipt

    def _plan(self, parallelism: int) -> Plan:
        def choose(extents: list[Extent]) -> dict[TopicPartition, Range]:
            self._load(extents)
            self._ends = {key_of(extent): last_of(extent, self._options) for extent in extents}
            return self._progress.choose(extents, self._limit())

        source = choose_input(self._progress.split_options(parallelism))
        return source.plan(choose, lenient=self._progress.is_lenient)

    def _limit(self) -> int:
        assert self._pace is not None, "each step begins by setting it"
        return min(self._pace.offsets, self._options.max_offsets_per_trigger or self._pace.offsets)

    def _load(self, extents: Sequence[Extent]) -> None:
        """Load the table's positions; partitions without a commit retain their positions in memory."""
        known = self._progress.positions or {}
        stored = self._table.positions({key_of(extent) for extent in extents} | known.keys())
        for topic, partition in sorted(self._committed - stored.keys()):
            raise PipelineError(
                f"{self._table.name} no longer has the position of {topic}-{partition}: another program has set"
                " the table back, or replaced it. Start the job again to continue with what the table has now"
            )
        self._committed |= stored.keys()
        self._progress.positions = known | stored or None

    def _write(self, run: Runner, plan: Plan, decode: DecodeRules) -> list[WrittenGroup]:
        groups = groups_of(plan.splits, run.parallelism, self._settings.file_bytes)
        return run(groups, self._writer(run, decode), size_of_group)

    def _writer(self, run: Runner, decode: DecodeRules) -> Callable[[Group], WrittenGroup]:  # noqa: ARG002
        """Return the function that a task of `run` calls with its splits."""
        rules = WriteRules(schema=self._table.schema(), decode=decode, **self._file_rules())
        return writer(rules, rules_of(self._options))

    def _file_rules(self) -> dict[str, Any]:
        """Return the arguments of ParquetRules that are the same for all files of the table."""
        return {
            "store": self._table.store(),
            "compression": self._settings.compression,
            "file_bytes": self._settings.file_bytes,
            "arrangement": self._table.arrangement(),
            "limits": self._settings.limits,
        }

    def _check_partitions(self, written: Sequence[WrittenGroup]) -> None:
        """Delete the files of a batch and raise PipelineError if they are of too many partitions."""
        count = len({file.partition for part in written for file in part.files})
        try:
            check_partitions(count, self._table.arrangement(), self._settings.limits)
        except PipelineError:
            self._committer.discard([file for part in written for file in part.files])
            raise

    def _receipt(self, plan: Plan, written: Sequence[WrittenGroup], decode: DecodeRules) -> Receipt:
        """Return the receipt of a batch: partitions with new offsets, and partitions whose log was replaced."""
        before, stats = self._progress.positions or {}, added(part.stats for part in written)
        proofs: dict[TopicPartition, list[Proof]] = {}
        for key, proof in sorted(proof for part in written for proof in part.proofs):
            proofs.setdefault(key, []).append(proof)
        return Receipt(
            id=new_id(),
            spans={
                key: Span(first=plan.ranges[key].start, end=end)
                for key, end in self._progress.reached.items()
                if plan.ranges[key].end > plan.ranges[key].start
                or (key in before and (before[key].offset, before[key].topic_id) != (end.offset, end.topic_id))
            },
            rows=stats.rows,
            lost=stats.lost_offsets + self._progress.lost,
            lost_before=dict(self._progress.lost_before),
            damaged=tuple(damage for part in written for damage in part.damaged),
            damaged_offsets=joined_runs(runs for part in written for runs in part.damaged_offsets),
            files=tuple(file.name for part in written for file in part.files),
            columns=tuple(decode.schema.names),
            proofs={key: tuple(listed) for key, listed in proofs.items()},
            formats=self._settings.formats.form(),
            dead_letters=all_runs(dead for part in written for dead in part.dead),
        )

    def _check_mode(self) -> None:
        """Raise PipelineError if the table's rows are not only appended."""
        if self._table.is_upserted:
            raise PipelineError(f"{self._table.name} has one row for each key: copy to it with --upsert")

    def _batch(self, run: Runner, receipt: Receipt, files: Sequence[NewFile]) -> Batch:  # noqa: ARG002
        """Return what to commit for the files that tasks have written."""
        return Batch(receipt=receipt, files=files)

    def _count(self, batch: Batch, plan: Plan, written: Sequence[WrittenGroup], seconds: float) -> None:
        receipt, files = batch.receipt, batch.files
        self._progress.positions = (self._progress.positions or {}) | self._progress.reached
        stats = added(part.stats for part in written)
        stats.skipped_bytes = plan.skipped_bytes
        stats.lost_offsets = receipt.lost
        self.reporter.add(stats)
        self.commits += 1
        self.reporter.set_details(commits=self.commits, last_receipt=receipt.id, last_files=len(files))
        metrics = self.metrics
        metrics.rows += receipt.rows
        metrics.commit_seconds += seconds
        metrics.files += len(files)
        metrics.file_bytes += sum(file.size for file in files)
        metrics.lost_offsets += receipt.lost
        metrics.damaged_batches += len(receipt.damaged)
        metrics.committed()
        metrics.checked(self._ends, self._progress.positions)
