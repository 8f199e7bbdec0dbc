"""The job behind `warmlog pipeline audit TOPIC TABLE`: account for every offset of a topic in a Delta or Iceberg table.

A state stores the proved stretches, and the files of the table at that time. The next audit skips these stretches,
unless a file that may contain their rows was added or removed, is gone, or has another size. Only an audit without a
state detects damage inside a file of the same size.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from warmlog.pipeline.copying.parquet import replace_text
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.job_stats import Reporter
from warmlog.pipeline.jobs.audit_segment import AuditFinding
from warmlog.pipeline.jobs.log_ranges import log_extents, splits_of
from warmlog.pipeline.jobs.table_proof import Proved, Stretch, arrangement_to_check, prove
from warmlog.pipeline.jobs.table_stretches import PartitionProof, Stretches, TableContents, find_strays
from warmlog.pipeline.lakehouse.maintenance.history import is_whole
from warmlog.pipeline.lakehouse.reading import DataFile, Selection, TableReader, changed_files
from warmlog.pipeline.lakehouse.receipts import Runs
from warmlog.pipeline.lakehouse.schemas.auditing import ReceiptSchemas, SchemaSources
from warmlog.pipeline.lakehouse.table import Table
from warmlog.pipeline.runner import Runner
from warmlog.pipeline.session import check_libraries
from warmlog.pipeline.source.input import rules_of
from warmlog.pipeline.source.options import ReadOptions
from warmlog.pipeline.source.plan import size_of_split
from warmlog.pipeline.source.ranges import Range
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.record import MAX_INT64

GROUP_BYTES = 32 << 20  # bytes of the log per task

NO_SOURCES = SchemaSources()

StretchName = tuple[str, int, str | None, int, int]  # topic, partition, topic id, first, end


@dataclass(slots=True, kw_only=True)
class TableAudit:
    """Result of an audit. `version`: the table's version."""

    table: str
    version: int
    partitions: list[PartitionProof]
    findings: list[AuditFinding]

    def form(self) -> dict[str, Any]:
        """Return the audit as a JSON object."""
        partitions = []
        for partition in self.partitions:
            form = asdict(replace(partition, proved=Proved()))
            form.pop("proved")
            partitions.append(form | {name: getattr(partition.proved, name) for name in Proved.COUNTS})
        findings = [asdict(finding) for finding in self.findings]
        return {"table": self.table, "version": self.version, "partitions": partitions, "findings": findings}


@dataclass(slots=True, kw_only=True)
class AuditState:
    """The proved stretches of a table, the files that it had, and in Iceberg the names of its columns by id."""

    table: str
    files: dict[str, DataFile] = field(default_factory=dict)
    columns: Mapping[int, str] = field(default_factory=dict)
    stretches: set[StretchName] = field(default_factory=set)

    @classmethod
    def read(cls, path: Path, table: str) -> "AuditState":
        """Read a state; an empty one if there is no file. Raises PipelineError, OSError."""
        if not path.exists():
            return cls(table=table)
        try:
            form = json.loads(path.read_text())
            files = {
                name: DataFile(
                    path=name, size=size, bounds={column: (low, high) for column, (low, high) in bounds.items()}
                )
                for name, (size, bounds) in form["files"].items()
            }
            stretches = {(str(topic), *rest) for topic, *rest in form["stretches"]}
            columns = {int(number): str(name) for number, name in form.get("columns", {}).items()}
            state = cls(table=form["table"], files=files, columns=columns, stretches=stretches)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise PipelineError(f"{path} is not the state of an audit: {error!r}") from error
        if state.table != table:
            raise PipelineError(f"{path} is the state of an audit of {state.table}")
        return state

    def write(self, path: Path) -> None:
        """Replace the file atomically. Raises OSError."""
        files = {name: [file.size, file.bounds] for name, file in sorted(self.files.items())}
        stretches = sorted(self.stretches, key=str)
        form = {"table": self.table, "files": files, "columns": self.columns, "stretches": stretches}
        replace_text(path, json.dumps(form) + "\n")

    def changed(self, files: Sequence[DataFile]) -> list[DataFile]:
        """Return the files added, removed or replaced since then, or whose columns were renamed or dropped."""
        now = {file.path: file for file in files}
        names = _names_of(files)
        if not self.columns.items() <= names.items() or (names and not self.columns):
            return [*files, *self.files.values()]
        kept = {path for path, file in now.items() if path in self.files and self.files[path].size == file.size}
        return [file for held in (now, self.files) for path, file in held.items() if path not in kept]


def audit_table(
    run: Runner,
    options: ReadOptions,
    table: Table,
    reporter: Reporter,
    state: AuditState | None = None,
    *,
    sources: SchemaSources = NO_SOURCES,
) -> TableAudit:
    """Audit topics in a table, and update the state. Raises PipelineError, InspectError, OSError."""
    table.refresh()
    if table.is_upserted:
        if state is not None:
            raise PipelineError(f"--state is for tables of appended rows, and {table.name} has one row for each key")
        check_libraries("duckdb", extra="lakehouse")
        from warmlog.pipeline.jobs.upsert_audit import UpsertAudit

        audit = UpsertAudit(options, table, sources, reporter)
        return TableAudit(table=table.name, version=table.version, partitions=audit.run(), findings=audit.findings)
    state = state if state is not None else AuditState(table=table.name)
    logs = log_extents(options)
    receipts = [commit.receipt for commit in table.commits()][::-1]
    wanted = {key for receipt in receipts for key in receipt.spans if options.topics.wants(*key)} | logs.keys()
    files = sorted(table.files(), key=lambda file: (file.bounds.get("offset", (0, 0)), file.path))
    if not wanted:  # neither a topic nor a receipt
        raise PipelineError(f"{table.name} has no rows of {', '.join(options.topics.named)}")
    columns, other_columns = (receipts[-1].columns, []) if receipts else _comparable(table, options)
    contents = TableContents(
        files=files,
        receipts=receipts,
        positions=table.positions(wanted),
        columns=columns,
        formats=receipts[-1].formats if receipts else {},
        is_whole=is_whole(table),
    )
    changed = [*state.changed(files), *_changed_since(state, table, files, wanted)]
    partitions, tasks = [], []
    for key in sorted(wanted):
        stretches = Stretches(key, contents, logs.get(key))
        partitions.append(stretches.partition)
        for stretch in stretches:
            name = _name(stretch, stretches.partition)
            if name in state.stretches and not any(file.may_hold(stretch.selection) for file in changed):
                stretches.partition.audited_before += stretch.end - stretch.first
            else:
                tasks.append((stretches.partition, stretch))
    splits = splits_of(options, [(stretch.key, _range(stretch)) for _, stretch in tasks])
    rules = replace(rules_of(options), on_corrupt="skip", fail_on_data_loss=False)
    groups = _grouped([replace(stretch, log=log) for (_, stretch), log in zip(tasks, splits, strict=True)])
    work = partial(prove, table.store(), rules, arrangement_to_check(table))
    results = _proved(run, groups, work, ReceiptSchemas(sources, table))
    for (partition, stretch), proved in zip(tasks, results, strict=True):
        _count(partition, stretch, proved)
        reporter.add(proved.stats)
        name = _name(stretch, partition)
        state.stretches.discard(name)
        if stretch.proof is not None and not stretch.is_open and not proved.findings and not proved.unproved:
            state.stretches.add(name)
    strays = find_strays(partitions, files, options, TableReader(table.store()))
    state.files = {file.path: file for file in files if file.path not in strays}
    state.columns = _names_of(files)
    _find_columns(partitions, other_columns, table.name)
    findings = [finding for partition in partitions for finding in partition.proved.findings]
    reporter.set_details(findings=len(findings), version=table.version)
    return TableAudit(table=table.name, version=table.version, partitions=partitions, findings=findings)


def _proved(
    run: Runner,
    groups: Sequence[tuple[Stretch, ...]],
    work: Callable[[Sequence[Stretch]], list[Proved]],
    schemas: ReceiptSchemas,
) -> list[Proved]:
    """Return the proof of each stretch, in order. Groups with unknown schemas are repeated once these are known."""
    results: dict[int, list[Proved]] = {}
    while len(results) < len(groups):
        left = [number for number in range(len(groups)) if number not in results]
        ready = [
            tuple(
                replace(stretch, decode=schemas.rules(stretch.formats, stretch.columns)) for stretch in groups[number]
            )
            for number in left
        ]
        done = run(ready, work, lambda group: sum(map(_size, group)))
        unknown = {schema for proved in chain.from_iterable(done) for schema in proved.unknown}
        results |= {
            number: proved
            for number, proved in zip(left, done, strict=True)
            if not any(each.unknown for each in proved)
        }
        schemas.learn(unknown)
    return list(chain.from_iterable(results[number] for number in range(len(groups))))


def _changed_since(
    state: AuditState, table: Table, files: Sequence[DataFile], keys: Iterable[TopicPartition]
) -> list[DataFile]:
    """Return the files with rows of these partitions that are gone or have another size."""
    if not state.stretches:
        return []  # all of them will be read
    everything = [Selection(key=key, first=0, end=MAX_INT64, columns=()) for key in keys]
    return changed_files(table.store(), [file for file in files if any(map(file.may_hold, everything))])


def _names_of(files: Sequence[DataFile]) -> Mapping[int, str]:
    return files[0].names if files else {}


def _count(partition: PartitionProof, stretch: Stretch, proved: Proved) -> None:
    """Add the proof of a stretch to its partition."""
    partition.proved.add(proved)
    if stretch.proof is None and not stretch.is_covered:
        if stretch.absent:
            setattr(partition, stretch.absent, max(getattr(partition, stretch.absent) - proved.rows, 0))
    elif not stretch.is_earlier and not stretch.is_open:
        without = stretch.end - stretch.first - proved.rows - proved.missing - _within(stretch, stretch.dead_letters)
        damaged = min(_within(stretch, stretch.damaged), max(without, 0))
        partition.damaged += damaged
        partition.empty += max(without - damaged, 0)


def _comparable(table: Table, options: ReadOptions) -> tuple[tuple[str, ...], list[str]]:
    """Return the columns to compare without any receipt, and the table's columns that it would take to decode."""
    from pyarrow import types

    from warmlog.pipeline.source.arrow import TYPES

    kinds = {field.name: field.type for field in table.fields()}
    same = {
        name
        for name, kind in kinds.items()
        if name in TYPES and (types.is_nested(kind) == types.is_nested(TYPES[name])) and not types.is_decimal(kind)
    }
    made = {each.name for each in table.arrangement().partition if each.name != each.term.column}  # Delta's terms
    return tuple(name for name in options.columns if name in same), sorted(kinds.keys() - same - made)


def _find_columns(partitions: Sequence[PartitionProof], columns: Sequence[str], path: str) -> None:
    """Report columns that were not compared, in each partition that has rows."""
    what = f"not compared: {', '.join(columns)}: the receipts that say how these columns were decoded have expired"
    for each in partitions:
        if columns and each.proved.rows:
            each.proved.findings.append(
                AuditFinding(topic=each.topic, partition=each.partition, kind="table", what=what, path=path)
            )


def _within(stretch: Stretch, runs: Runs) -> int:
    """Return how many offsets of the runs are in a stretch."""
    return sum(max(min(end, stretch.end) - max(first, stretch.first), 0) for first, end in runs)


def _name(stretch: Stretch, partition: PartitionProof) -> StretchName:
    topic_id = "earlier" if stretch.is_earlier else partition.topic_id
    return (*stretch.key, topic_id, stretch.first, stretch.end)


def _range(stretch: Stretch) -> Range:
    """Return the offsets of a stretch to read from the log."""
    first = max(stretch.first, min(stretch.log_first, stretch.end))
    return Range(start=first, end=max(min(stretch.end, stretch.log_end), first))


def _grouped(stretches: Sequence[Stretch]) -> list[tuple[Stretch, ...]]:
    """Return the stretches of each task, in order. Small stretches share a task, because they share files."""
    groups: list[list[Stretch]] = []
    taken = 0
    for stretch in stretches:
        if not groups or taken + _size(stretch) > GROUP_BYTES:
            groups.append([])
            taken = 0
        groups[-1].append(stretch)
        taken += _size(stretch)
    return [tuple(group) for group in groups]


def _size(stretch: Stretch) -> int:
    return sum(map(size_of_split, stretch.log)) + 1
