"""A Delta table, accessed through the deltalake library.

The table stores the position of a partition in application transactions (`txn` actions), which every Delta writer
preserves, even in checkpoints and after older log entries are deleted:

    warmlog/orders/0                 next offset
    warmlog/orders/0/epoch           leader epoch at that offset, if known
    warmlog/orders/0/id-high, -low   the topic id, if known, as two signed 64-bit numbers

    warmlog-upsert                   1 if the table has one row for each key

They are written in the same version as the files and the receipt (`userMetadata` of the commit). Versions are appended
with `max_commit_retries=0`: deltalake then fails if the next version exists. With retries it would append on top of a
commit that this process has not read, unless that commit has the same transactions.

Source: the Delta protocol, "Transaction Identifiers".
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.arrangement.delta import arrangement_of, creation, plain_value
from warmlog.pipeline.lakehouse.arrangement.spec import NOTHING_WANTED, Arrangement, Wanted
from warmlog.pipeline.lakehouse.delta.actions import (
    NO_EPOCH,
    add_action,
    remove_action,
    topic_id_of,
    transaction_app,
    transactions_of,
)
from warmlog.pipeline.lakehouse.delta.errors import delta_errors, is_permanent, one_line
from warmlog.pipeline.lakehouse.delta.files import DeltaFiles, directory_of
from warmlog.pipeline.lakehouse.delta.log import USER_METADATA, DeltaLog, LogEntry
from warmlog.pipeline.lakehouse.delta.restores import (
    CutLogError,
    Lineage,
    has_last_rows,
    partitions_of,
    taken_back,
)
from warmlog.pipeline.lakehouse.neighbours import check_new
from warmlog.pipeline.lakehouse.present import PresentRows
from warmlog.pipeline.lakehouse.reading import NUMBERS, ROW_KEYS, DataFile
from warmlog.pipeline.lakehouse.receipts import KEY, Receipt
from warmlog.pipeline.lakehouse.schemas.columns import NEVER_NULL, check_column, check_nulls
from warmlog.pipeline.lakehouse.schemas.types import check_names, check_only_added, normal, without_times
from warmlog.pipeline.lakehouse.table import Committed, ConflictError, OutcomeUnknownError, RefusedError
from warmlog.pipeline.lakehouse.taken_back import TakenBack
from warmlog.pipeline.lakehouse.writing import FileStore, LocalFiles, NewFile
from warmlog.pipeline.source.offsets import Position
from warmlog.protocol.partitions import TopicPartition

NOT_IN_NAMES = " ,;{}()\n\t="  # characters that names cannot contain without column mapping
ATTEMPTS = 20  # attempts to add columns while other programs commit
HEADER_KEYS = frozenset({"headers.element", "headers.element.key"})  # never null, and some programs say so
UPSERTED = "warmlog-upsert"  # application id that marks a table with one row for each key
APPEND_ONLY = "delta.appendOnly"
TRANSACTION_RETENTION = "delta.setTransactionRetentionDuration"  # a table with this property would lose positions


class DeltaTable:
    """A Delta table in a directory or an object store.

    `columns`: the columns to write. `storage`: options of the object store, named as in deltalake. `wanted`: the
    arrangement of a new table.
    """

    def __init__(
        self, uri: str, columns: Sequence[str], storage: Mapping[str, str], wanted: Wanted = NOTHING_WANTED
    ) -> None:
        self._uri = uri
        self._wanted = wanted
        self._columns = tuple(columns)
        self._storage = dict(storage)
        self._table: Any = None
        self._tried_at = 0
        self._known: dict[TopicPartition, Position | None] = {}
        self._known_at = 0
        self._settled: set[str] = set()  # topics of which nothing was taken back
        self._planned: Any = None

    @property
    def name(self) -> str:
        """The directory or URL."""
        return self._uri

    @property
    def version(self) -> int:
        """The last version read."""
        return int(self._table.version())

    @property
    def handle(self) -> Any:
        """The library's table at the last version read."""
        return self._table

    @property
    def storage(self) -> dict[str, str]:
        """Options of the object store."""
        return self._storage

    @property
    def is_upserted(self) -> bool:
        """Whether the version that was read last has one row for each key."""
        with delta_errors(self._uri):
            return self._table.transaction_version(UPSERTED) is not None

    @property
    def is_arranged(self) -> bool:
        """Whether partitions or an order of rows were chosen for a new table."""
        return self._wanted != NOTHING_WANTED

    def create(self, schema: Any = None) -> None:
        """Create the table unless it exists. `schema`: its columns, by default those to write.

        Raises PipelineError, also if it would be inside another table, or contain one.
        """
        import deltalake

        from warmlog.pipeline.source.arrow import arrow_schema

        with delta_errors(self._uri):
            if not deltalake.DeltaTable.is_deltatable(self._uri, storage_options=self._storage):
                check_new(self._uri, *directory_of(self._uri, self._storage), is_delta=True)
                made = creation(self._uri, arrow_schema(self._columns) if schema is None else schema, self._wanted)
                deltalake.DeltaTable.create(self._uri, mode="ignore", storage_options=self._storage, **made)

    def exists(self) -> bool:
        """Return whether the table exists. Raises PipelineError."""
        import deltalake

        with delta_errors(self._uri):
            return bool(deltalake.DeltaTable.is_deltatable(self._uri, storage_options=self._storage))

    def refresh(self) -> None:
        """Read the newest version. Raises PipelineError if rows can no longer be appended to it."""
        import deltalake

        with delta_errors(self._uri):
            before = self._table
            self._table = deltalake.DeltaTable(self._uri, storage_options=self._storage)
            if before is not None and (
                before.metadata().id != self._table.metadata().id or before.version() > self.version
            ):
                raise PipelineError(f"{self._uri} was replaced by another table")
            self._check()

    def _check(self) -> None:
        """Raise PipelineError for a table to which rows cannot be appended by only adding files."""
        settings = self._table.metadata().configuration
        for name, value in settings.items():
            mapped = name == "delta.columnMapping.mode" and value != "none"
            if mapped or name.startswith("delta.constraints.") or name == TRANSACTION_RETENTION:
                raise PipelineError(f"{self._uri} has {name}, which is not supported")
        if not self._columns:
            return
        types = {field.name: _arrow_field(field).type for field in self._table.schema().fields}
        for name in self._columns:
            check_column(self._uri, name, types.get(name))
        self._check_nulls(self._columns)
        actual = self.arrangement()
        self._wanted.check(self._uri, [field.term for field in actual.partition], actual.sort)

    def _check_nulls(self, written: Sequence[str]) -> None:
        for field in self._table.schema().fields:
            check_nulls(self._uri, _arrow_field(field), written, NEVER_NULL | HEADER_KEYS)

    def positions(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, Position]:
        """Return the positions of partitions in the last version read. Raises PipelineError if rows were taken back."""
        positions = self.stored_positions(keys)
        unsettled = {topic for topic, _ in positions} - self._settled
        if unsettled:
            taken = self.taken_back(unsettled)
            if taken is not None:
                raise PipelineError(taken.message(self._uri))
            self._settled |= unsettled
        return positions

    def taken_back(self, topics: Collection[str] | None = None) -> TakenBack | None:
        """Return what `RESTORE` took back from these topics, or from all. Raises PipelineError."""
        try:
            taken = taken_back(self._log, self.stored_positions, topics)
            return None if taken is None else taken.without_present(self._present())
        except CutLogError:
            files = self.files()
            keys = partitions_of(files) if topics is None else {key for key in self._known if key[0] in topics}
            if keys and has_last_rows(files, self.store(), self.stored_positions(keys)):
                return None
            raise

    def accept(self, taken: TakenBack, receipt: Receipt) -> None:  # noqa: ARG002 - the receipt has its positions
        """Store the positions of the rows that a restore has left. Raises as `write` does."""
        self.commit(receipt, [])

    def _present(self) -> PresentRows:
        receipts = (commit.receipt for commit in self.commits())
        return PresentRows.of(self._uri, self.store(), self.files(), receipts)

    def stored_positions(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, Position]:
        """Return the positions of partitions in the last version read, which a restore leaves as they are."""
        wanted = list(keys)
        with delta_errors(self._uri):
            self._follow()
            for key in wanted:
                if key not in self._known:  # each lookup reads the log from the last checkpoint: 0.3 ms
                    self._known[key] = self._position(key)
        listed = {key: self._known[key] for key in wanted}
        return {key: position for key, position in listed.items() if position is not None}

    def _follow(self) -> None:
        """Update cached positions from the receipts committed since they were read, or drop them if one is missing."""
        newer = self.version - self._known_at
        if newer > 0 and self._known:
            entries = self._log.newest(newer)
            is_whole = bool(entries) and entries[-1].version == self._known_at + 1
            if is_whole:
                for entry in reversed(entries):
                    receipt = entry.receipt()
                    self._known |= {} if receipt is None else receipt.positions()
            else:
                self._known = {}
            if not is_whole or any(entry.is_restore for entry in entries):
                self._settled.clear()
        self._known_at = self.version

    @property
    def _log(self) -> DeltaLog:
        return DeltaLog(self._uri, self._table, self.store())

    def _position(self, key: TopicPartition) -> Position | None:
        lookup = self._table.transaction_version
        app = transaction_app(key)
        offset = lookup(app)
        if offset is None:
            return None
        epoch = lookup(f"{app}/epoch")
        high, low = lookup(f"{app}/id-high"), lookup(f"{app}/id-low")
        return Position(
            offset=offset,
            leader_epoch=None if epoch in {None, NO_EPOCH} else epoch,
            topic_id=None if not (high or low) else topic_id_of(high or 0, low or 0),
        )

    def store(self) -> FileStore:
        """Return the store that tasks write files to."""
        if "://" not in self._uri:
            return LocalFiles(self._uri)
        return DeltaFiles(self._uri, self._storage)

    def schema(self) -> Any:
        """Return the Arrow schema of files."""
        from warmlog.pipeline.source.arrow import arrow_schema

        return arrow_schema(self._columns) if self._planned is None else self._planned

    def full_schema(self) -> Any:
        """Return the Arrow schema of files with all columns of the table."""
        import pyarrow as pa

        return pa.schema(self.fields())

    def arrangement(self) -> Arrangement:
        """Return how rows of the planned columns are arranged. Raises PipelineError for partitions it cannot write."""
        fields = {
            field.name: (normal(_arrow_field(field).type), field.metadata) for field in self._table.schema().fields
        }
        written = self._columns if self._planned is None else self._planned.names
        return arrangement_of(self._uri, fields, self._table.metadata(), written)

    def fields(self) -> list[Any]:
        """Return the columns of the version that was read last, with types as files are written."""
        import pyarrow as pa

        return [pa.field(field.name, normal(_arrow_field(field).type)) for field in self._table.schema().fields]

    def stored_type(self, kind: Any) -> Any:
        """Return the type that the table has for an Arrow type."""
        return without_times(kind)

    def check_change(self, before: Any, after: Any) -> None:
        """Raise SchemaError if the table cannot have this column, or cannot change it this way."""
        import pyarrow as pa

        check_names(pa.struct([after]), "", NOT_IN_NAMES)
        if before is not None:
            check_only_added(self._uri, before.type, after.type, after.name)

    def plan_columns(self, schema: Any) -> None:
        """Write files with these columns from now on, and add those that the table lacks. Raises PipelineError.

        deltalake changes columns only in separate commits.
        """
        self._planned = schema
        self._check_nulls(schema.names)
        for _ in range(ATTEMPTS):  # each failure means that another commit succeeded
            known = {field.name: field.type for field in self.fields()}
            missing = [field for field in schema if field.name not in known or not known[field.name].equals(field.type)]
            if not missing:
                return
            self._add_columns(missing)
            self.refresh()
        raise PipelineError(f"{self._uri}: columns could not be added in {ATTEMPTS} attempts: others commit meanwhile")

    def _add_columns(self, fields: Sequence[Any]) -> None:
        import pyarrow as pa
        from deltalake import Schema
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import CommitProperties

        once = CommitProperties(max_commit_retries=0)
        with delta_errors(self._uri), suppress(CommitFailedError):
            try:
                self._table.alter.add_columns(Schema.from_arrow(pa.schema(fields)).fields, commit_properties=once)
            except Exception as error:
                if type(error) is Exception:  # deltalake raises this for a schema that it rejects
                    raise PipelineError(f"{self._uri}: {str(error).splitlines()[0]}") from error
                raise

    def commit(self, receipt: Receipt, files: Sequence[NewFile], removed: Sequence[DataFile] = ()) -> None:
        """Add and remove files as the version after the one read. Raises as `write` does."""
        from deltalake import Transaction

        self._tried_at = self.version
        assert self._known_at == self._tried_at, "positions were read from this version"
        if removed and self._table.metadata().configuration.get(APPEND_ONLY) == "true":
            raise PipelineError(
                f"{self._uri} has {APPEND_ONLY}, and rows would be replaced: unset it, or do not upsert"
            )
        transactions = transactions_of(receipt, self._known)
        if receipt.upsert and not self.is_upserted:
            transactions.append(Transaction(UPSERTED, 1))
        arrangement = self.arrangement()
        gone = [remove_action(file, self._uri, arrangement) for file in removed]
        actions = [*gone, *(add_action(file, arrangement) for file in files)]
        self.write(actions, {KEY: receipt.text()}, transactions)

    def write(self, actions: Sequence[Any], metadata: Mapping[str, str], transactions: Sequence[Any] = ()) -> None:
        """Commit actions as the version after the one read. Raises ConflictError, RefusedError, OutcomeUnknownError."""
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import CommitProperties

        properties = CommitProperties(
            custom_metadata={USER_METADATA: json.dumps(metadata)},
            max_commit_retries=0,
            app_transactions=list(transactions),
        )
        version = self.version + 1
        try:
            self._table.create_write_transaction(
                list(actions), "append", self._table.schema(), commit_properties=properties
            )
        except Exception as error:
            if is_permanent(error):
                raise RefusedError(f"{self._uri}: cannot commit version {version}: {one_line(error)}") from error
            if isinstance(error, CommitFailedError):
                raise ConflictError(f"{self._uri}: version {version} was not committed: {error}") from error
            raise OutcomeUnknownError(f"{self._uri}: {one_line(error)}") from error

    def holds(self, receipt: Receipt) -> bool:
        """Return whether the last attempt to commit this receipt is in the last version read."""
        since = self.version - self._tried_at
        if since <= 0:
            return False
        listed = (entry.receipt() for entry in self._log.newest(since))
        return any(each is not None and each.id == receipt.id for each in listed)

    def files(self) -> list[DataFile]:
        """Return the files of the last version read."""
        import pyarrow as pa

        with delta_errors(self._uri):
            listed = pa.table(self._table.get_add_actions(flatten=True))
            hiding = pa.table(self._table.deletion_vectors().read_all())
        hidden = {path.rpartition("/")[2] for path in hiding.column("filepath").to_pylist()}
        kinds = ("min", "max", "null_count")
        wanted = ["path", "size_bytes", *(f"{kind}.{name}" for name in ROW_KEYS for kind in kinds)]
        rows = listed.select([name for name in wanted if name in listed.column_names]).to_pylist()
        names = self._table.metadata().partition_columns
        partitions = [listed.column(f"partition.{name}") if listed.num_rows else () for name in names]
        return [
            DataFile(
                path=row["path"] if "://" in row["path"] else f"{self._uri.rstrip('/')}/{unquote(row['path'])}",
                size=row["size_bytes"],
                bounds={
                    name: (row[f"min.{name}"], row[f"max.{name}"])
                    for name in ROW_KEYS
                    if row.get(f"min.{name}") is not None and row.get(f"max.{name}") is not None
                }
                | {
                    name: (values[number].as_py(), values[number].as_py())
                    for name, values in zip(names, partitions, strict=True)
                    if name in ROW_KEYS and values[number].is_valid
                },
                hides_rows=row["path"].rpartition("/")[2] in hidden,
                partition=tuple(plain_value(values[number].as_py()) for values in partitions),
                constants={name: values[number] for name, values in zip(names, partitions, strict=True)},
                is_keyed=all(row.get(f"null_count.{name}") == 0 for name in NUMBERS if name not in names),
            )
            for number, row in enumerate(rows)
        ]

    def commits(self) -> Iterator[Committed]:
        """Yield the commits with receipts that count, then those of the ledger, newest first."""
        for entry in self.history():
            ledger, receipt = entry.ledger(), entry.receipt()
            if ledger is not None:
                yield from (Committed(version=entry.version, receipt=each) for each in reversed(ledger[0]))
                return
            if receipt is not None:
                yield Committed(version=entry.version, receipt=receipt)

    def history(self) -> Iterator[LogEntry]:
        """Yield the commits up to the last version read, newest first, without those that were taken back.

        Older ones are read only if the caller needs them.
        """
        return iter(Lineage(self._log))


def _arrow_field(field: Any) -> Any:
    import pyarrow as pa
    from deltalake import Schema

    return pa.schema(Schema([field]).to_arrow()).field(0)


def delta_uri(target: str) -> str:
    """Return a target in deltalake's form: a URL, or an absolute directory."""
    target = target.removeprefix("file://")
    return target if "://" in target else str(Path(target).absolute())
