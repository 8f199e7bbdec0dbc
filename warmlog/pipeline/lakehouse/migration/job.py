"""The job behind `warmlog pipeline table migrate`: converts an archive's directory to a Delta table in place.

1. No file is copied, moved or changed. The table's first version names the files of all batches, and has the positions
and the receipts of all commits. It is a single commit: before it the directory is an archive, after it a table.
2. Rows are read once: for the digests of the receipts, so that an audit can prove them without the log, for the bounds
of the files, and to find damage, which is an error before anything is written.
3. The archive is locked during the migration. Until it is a table, no job writes a table into its directory.
4. An archive by day or hour becomes a table partitioned by `day(timestamp)` or `hour(timestamp)`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.arrangement.delta import bounded_columns, creation
from warmlog.pipeline.lakehouse.arrangement.spec import Arrangement, PartitionField, Wanted, wanted_of
from warmlog.pipeline.lakehouse.delta.actions import add_action, transactions_of
from warmlog.pipeline.lakehouse.delta.errors import delta_errors
from warmlog.pipeline.lakehouse.delta.log import USER_METADATA
from warmlog.pipeline.lakehouse.delta.table import DeltaTable, delta_uri
from warmlog.pipeline.lakehouse.ledger import LEDGER_KEY, Rewrite, fold, ledger_text
from warmlog.pipeline.lakehouse.migration.archive import LOCK, ArchiveCommit, locked, read_commits, remove_runs
from warmlog.pipeline.lakehouse.migration.rows import BatchRules, ReadBatch, read_batch, size_of_batch
from warmlog.pipeline.lakehouse.receipts import Proof, Receipt, Span, new_id
from warmlog.pipeline.lakehouse.schemas.columns import check_columns
from warmlog.pipeline.lakehouse.writing import NewFile
from warmlog.pipeline.runner import Runner
from warmlog.pipeline.source.offsets import Position
from warmlog.protocol.partitions import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """Contents of the table: batches of the archive, files, rows, columns. `is_new`: made by this run."""

    table: str
    is_new: bool
    batches: int = 0
    files: int = 0
    rows: int = 0
    columns: tuple[str, ...] = ()
    partition_by: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """A table to create. `made`: its schema and properties as deltalake takes them."""

    uri: str
    made: Mapping[str, Any]
    arrangement: Arrangement


def migrate_archive(run: Runner, directory: Path) -> Migrated:
    """Convert an archive to a Delta table, unless it is one already. Raises PipelineError, OSError."""
    table = DeltaTable(delta_uri(str(directory)), (), {})
    if directory.is_dir() and table.exists():
        if (directory / LOCK).exists():
            with locked(directory):
                remove_runs(directory)
        return Migrated(table=table.name, is_new=False)
    read_commits(directory)  # before the lock, which would create a file
    with locked(directory):
        commits = read_commits(directory)
        columns, partition_by = commits[-1].columns, commits[-1].partition_by
        positions = {key: position for commit in commits for key, position in commit.positions().items()}
        _check_accountable(directory, columns, len({topic for topic, _ in positions}))
        new = _new_table(table.name, columns, partition_by)
        rules = BatchRules(directory=directory, arrangement=new.arrangement)
        read = run(commits, partial(read_batch, rules), partial(size_of_batch, directory))
        files = [file for batch in read for file in batch.files]
        receipts = list(_receipts(commits, read))
        create_table(new, files, positions, fold(receipts, Rewrite(), [_last_part(file.name) for file in files]))
        remove_runs(directory)
    return Migrated(
        table=table.name,
        is_new=True,
        batches=len(commits),
        files=len(files),
        rows=sum(file.rows for file in files),
        columns=columns,
        partition_by=partition_by,
    )


def _check_accountable(directory: Path, columns: tuple[str, ...], topics: int) -> None:
    """Raise PipelineError unless the rows say which records they are."""
    try:
        check_columns(columns, topics)
    except PipelineError as error:
        raise PipelineError(
            f"{directory}: {error}. Keep it as Parquet files ({directory}/batch=*/**/*.parquet), and copy the topic to"
            " a new table"
        ) from error


def _new_table(uri: str, columns: tuple[str, ...], partition_by: str) -> NewTable:
    from warmlog.pipeline.source.arrow import arrow_schema

    wanted = Wanted() if partition_by == "none" else wanted_of([f"{partition_by}(timestamp)"], [])
    made = creation(uri, arrow_schema(columns), wanted)
    fields = (
        PartitionField(term=term, name=term.name, column=str(made["schema"].field(term.name).type))
        for term in wanted.partition
    )
    arrangement = Arrangement(partition=tuple(fields), bounded=bounded_columns(made["configuration"]))
    return NewTable(uri=uri, made=made, arrangement=arrangement)


def create_table(
    new: NewTable,
    files: Sequence[NewFile],
    positions: Mapping[TopicPartition, Position],
    ledger: Sequence[Receipt],
) -> None:
    """Create a Delta table from files in its directory, in one commit. Raises PipelineError."""
    from deltalake import Schema
    from deltalake.transaction import CommitProperties, create_table_with_add_actions

    receipt = Receipt(id="", spans={key: Span(first=0, end=position) for key, position in positions.items()})
    properties = CommitProperties(
        custom_metadata={USER_METADATA: json.dumps({LEDGER_KEY: ledger_text(ledger)})},
        app_transactions=transactions_of(receipt, {}),
    )
    made = {**new.made, "schema": Schema.from_arrow(new.made["schema"])}
    actions = [add_action(file, new.arrangement) for file in files]
    with delta_errors(new.uri):
        create_table_with_add_actions(new.uri, add_actions=actions, commit_properties=properties, **made)


def _receipts(commits: Sequence[ArchiveCommit], read: Sequence[ReadBatch]) -> Iterator[Receipt]:
    """Yield the receipt of each commit, oldest first."""
    before: dict[TopicPartition, Position] = {}
    for commit, batch in zip(commits, read, strict=True):
        spans, proofs = {}, {}
        for key, end in commit.positions().items():
            first, _ = commit.spans[key[0]][str(key[1])]
            if first < end.offset or (key in before and before[key] != end):
                spans[key] = Span(first=first, end=end)
                proofs[key] = (batch.proofs.get(key, Proof(first, end.offset, 0, "")),)
            before[key] = end
        yield Receipt(
            id=new_id(),
            spans=spans,
            rows=commit.rows,
            lost=commit.lost_offsets,
            damaged=commit.damaged,
            files=tuple(_last_part(name) for name in commit.files),
            columns=commit.columns,
            proofs=proofs,
        )


def _last_part(name: str) -> str:
    return name.rpartition("/")[2]
