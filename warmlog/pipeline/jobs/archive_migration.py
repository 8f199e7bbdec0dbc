"""The job behind `warmlog pipeline table migrate`: converts an archive's directory to a Delta table in place.

1. No file is copied, moved or changed. The table's first version names the files of all batches, and has the positions
and the receipts of all commits. It is a single commit: before it the directory is an archive, after it a table.
2. Rows are read once, for the digests of the receipts, so that an audit can prove them without the log.
3. The archive is locked during the migration. Afterwards archive jobs refuse to continue it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from warmlog.pipeline.archive.store import ArchiveStore, Commit
from warmlog.pipeline.archive.table import TableFile, read_commits, read_in_order, table_files
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.arrangement.delta import bounded_columns, bounded_configuration
from warmlog.pipeline.lakehouse.arrangement.spec import BOUNDED, Arrangement
from warmlog.pipeline.lakehouse.delta import (
    USER_METADATA,
    DeltaTable,
    delta_errors,
    delta_uri,
)
from warmlog.pipeline.lakehouse.delta_actions import add_action, transactions_of
from warmlog.pipeline.lakehouse.digest import RowDigest
from warmlog.pipeline.lakehouse.ledger import LEDGER_KEY, Rewrite, fold, ledger_text
from warmlog.pipeline.lakehouse.receipts import Proof, Receipt, Span, new_id
from warmlog.pipeline.lakehouse.schemas.columns import check_columns
from warmlog.pipeline.lakehouse.writing import NewFile
from warmlog.pipeline.source.offsets import Position
from warmlog.protocol.partitions import TopicPartition

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """Contents of the table: batches of the archive, files, rows, and their columns. `is_new`: made by this run."""

    table: str
    is_new: bool
    batches: int = 0
    files: int = 0
    rows: int = 0
    columns: tuple[str, ...] = ()


def migrate_archive(directory: Path) -> Migrated:
    """Convert an archive to a Delta table, unless it is one already. Raises PipelineError, OSError."""
    table = DeltaTable(delta_uri(str(directory)), (), {})
    if directory.is_dir() and table.exists():
        return Migrated(table=table.name, is_new=False)
    read_commits(directory)  # before the lock, which would create the directory
    store = ArchiveStore(directory)
    with store.locked():
        commits = read_commits(directory)
        columns = commits[-1].columns
        check_columns(columns, len(commits[-1].spans))
        files = [_file(store, commit, name) for commit in commits for name in commit.files]
        receipts = list(_receipts(directory, commits))
        names = [name.rpartition("/")[2] for commit in commits for name in commit.files]
        create_table(table.name, columns, files, commits[-1].positions(), fold(receipts, Rewrite(), names))
    rows = sum(file.rows for file in files)
    return Migrated(table=table.name, is_new=True, batches=len(commits), files=len(files), rows=rows, columns=columns)


def create_table(
    uri: str,
    columns: Sequence[str],
    files: Sequence[NewFile],
    positions: Mapping[TopicPartition, Position],
    ledger: Sequence[Receipt],
) -> None:
    """Create a Delta table from files in its directory, in one commit. Raises PipelineError."""
    from deltalake import Schema
    from deltalake.transaction import CommitProperties, create_table_with_add_actions

    from warmlog.pipeline.source.arrow import arrow_schema

    receipt = Receipt(id="", spans={key: Span(first=0, end=position) for key, position in positions.items()})
    properties = CommitProperties(
        custom_metadata={USER_METADATA: json.dumps({LEDGER_KEY: ledger_text(ledger)})},
        app_transactions=transactions_of(receipt, {}),
    )
    schema = Schema.from_arrow(arrow_schema(tuple(columns)))
    configuration = bounded_configuration(columns)
    arrangement = Arrangement(bounded=bounded_columns(configuration))
    actions = [add_action(file, arrangement) for file in files]
    with delta_errors(uri):
        create_table_with_add_actions(uri, schema, actions, configuration=configuration, commit_properties=properties)


def _file(store: ArchiveStore, commit: Commit, name: str) -> NewFile:
    """Return a file of an archive with the bounds from its footer. Raises PipelineError, OSError."""
    import pyarrow as pa
    from pyarrow import parquet

    path = store.batch_directory(commit.number) / name
    bounds: dict[str, tuple[Any, Any]] = {}
    try:
        metadata = parquet.read_metadata(path)
    except pa.ArrowInvalid as error:
        raise PipelineError(f"{path}: {error}") from error
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for at in range(group.num_columns):
            column = group.column(at)
            if column.path_in_schema in BOUNDED and column.statistics and column.statistics.has_min_max:
                low, high = _plain(column.statistics.min), _plain(column.statistics.max)
                before = bounds.get(column.path_in_schema, (low, high))
                bounds[column.path_in_schema] = min(before[0], low), max(before[1], high)
    relative = str(path.relative_to(store.directory))
    return NewFile(name=relative, size=path.stat().st_size, rows=metadata.num_rows, bounds=bounds)


def _plain(value: Any) -> Any:
    """Return times as microseconds."""
    return round((value - EPOCH).total_seconds() * 1_000_000) if isinstance(value, datetime) else value


def _receipts(directory: Path, commits: Sequence[Commit]) -> Iterator[Receipt]:
    """Yield the receipt of each commit, oldest first."""
    listed = table_files(directory, commits)
    store = ArchiveStore(directory)
    before: dict[TopicPartition, Position] = {}
    for commit in commits:
        batch = f"{store.batch_directory(commit.number)}/"
        spans, proofs = {}, {}
        for key, end in commit.positions().items():
            first, _ = commit.spans[key[0]][str(key[1])]
            if first < end.offset or (key in before and before[key] != end):
                spans[key] = Span(first=first, end=end)
                files = [file for file in listed.get(key, ()) if file.path.startswith(batch)]
                proofs[key] = (_proof(files, commit.columns, first, end.offset),)
            before[key] = end
        yield Receipt(
            id=new_id(),
            spans=spans,
            rows=commit.rows,
            lost=commit.lost_offsets,
            damaged=commit.damaged,
            files=tuple(name.rpartition("/")[2] for name in commit.files),
            columns=commit.columns,
            proofs=proofs,
        )


def _proof(files: Sequence[TableFile], columns: tuple[str, ...], first: int, end: int) -> Proof:
    digest = RowDigest(columns)
    for batch in read_in_order(files, columns):
        digest.add(batch)
    return Proof(first, end, digest.rows, digest.hexdigest())
