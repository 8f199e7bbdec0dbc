"""An Iceberg table, accessed through the pyiceberg library.

    property warmlog.orders              {"receipt": "5f0c…", "positions": {"AAAAAAAAAAAAAAAAAAAABw": {"0": [2000, 3]}}}
    property warmlog-upsert              true if the table has one row for each key
    property warmlog in each summary     the receipt

Positions are stored by topic id ("" if unknown) and partition, each as the next offset and the leader epoch.

Both are in the same commit as the files. The property outlives expired snapshots. If it is missing, the receipts of the
current snapshot and its ancestors contain the same positions, as long as all of these snapshots exist.

A commit requires that the table's main branch is still at the snapshot from which the positions were read. pyiceberg
would retry a rejected commit on top of a concurrent one (`commit.retry.num-retries`, 4 by default), and so append rows
that the concurrent commit may already contain. This process therefore sets that property to 0, but only in its own copy
of the table's metadata.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from warmlog.pipeline.errors import PipelineError, UnavailableError
from warmlog.pipeline.lakehouse.arrangement.iceberg import arrangement_of, create_table
from warmlog.pipeline.lakehouse.arrangement.spec import NOTHING_WANTED, Arrangement, Wanted
from warmlog.pipeline.lakehouse.iceberg.catalog import create_namespace
from warmlog.pipeline.lakehouse.iceberg.entries import (
    bounds_of,
    data_files_of,
    has_values,
    names_of,
    partition_of,
    with_ids,
)
from warmlog.pipeline.lakehouse.iceberg.errors import first_line, has_equality_deletes, is_permanent, reason
from warmlog.pipeline.lakehouse.iceberg.files import IcebergFiles
from warmlog.pipeline.lakehouse.iceberg.history import NO_SNAPSHOT, History
from warmlog.pipeline.lakehouse.iceberg.properties import parse_positions, positions_text
from warmlog.pipeline.lakehouse.iceberg.rollbacks import Rollbacks, of_topic
from warmlog.pipeline.lakehouse.present import PresentRows
from warmlog.pipeline.lakehouse.reading import NUMBERS, ROW_KEYS, DataFile
from warmlog.pipeline.lakehouse.receipts import KEY, Receipt
from warmlog.pipeline.lakehouse.schemas.columns import check_column, check_nulls
from warmlog.pipeline.lakehouse.schemas.types import check_names, normal
from warmlog.pipeline.lakehouse.table import Committed, ConflictError, OutcomeUnknownError, RefusedError
from warmlog.pipeline.lakehouse.taken_back import TakenBack, together
from warmlog.pipeline.lakehouse.writing import LOCAL, FileStore, LocalFiles, NewFile
from warmlog.pipeline.source.offsets import Position
from warmlog.protocol.partitions import TopicPartition

NO_RETRIES = {"commit.retry.num-retries": "0"}
UPSERTED = "warmlog-upsert"


class IcebergTable:
    """A table of a catalog. `columns`: the columns to write. `identifier`: such as `db.orders`.

    `wanted`: the arrangement of a new table.
    """

    def __init__(self, catalog: Any, identifier: str, columns: Sequence[str], wanted: Wanted = NOTHING_WANTED) -> None:
        self._catalog = catalog
        self._wanted = wanted
        self._identifier = identifier
        self._columns = tuple(columns)
        self._table: Any = None
        self._tried_at = NO_SNAPSHOT
        self._planned: Any = None
        self._fits: dict[str, Any] = {}  # topics whose positions fit their rows, with what was judged

    @property
    def name(self) -> str:
        """The identifier."""
        return self._identifier

    @property
    def version(self) -> int:
        """The id of the last snapshot read, 0 without one."""
        snapshot = self._table.metadata.current_snapshot_id
        return NO_SNAPSHOT if snapshot is None else int(snapshot)

    @property
    def handle(self) -> Any:
        """The library's table at the last snapshot read."""
        return self._table

    @property
    def is_upserted(self) -> bool:
        """Whether the version that was read last has one row for each key."""
        return UPSERTED in self._table.metadata.properties

    @property
    def is_arranged(self) -> bool:
        """Whether partitions or an order of rows were chosen for a new table."""
        return self._wanted != NOTHING_WANTED

    def create(self, schema: Any = None) -> None:
        """Create the table and its namespace unless they exist. `schema`: its columns, by default those to write.

        Raises PipelineError.
        """
        from warmlog.pipeline.source.arrow import arrow_schema

        namespace, dot, _ = self._identifier.rpartition(".")
        if not dot:
            raise PipelineError(f"{self._identifier} is not NAMESPACE.TABLE")
        with self._errors():
            if not self._catalog.table_exists(self._identifier):
                create_namespace(self._catalog, namespace)
                schema = arrow_schema(self._columns) if schema is None else schema
                create_table(self._catalog, self._identifier, schema, self._wanted)

    def exists(self) -> bool:
        """Whether there is a table. Raises PipelineError."""
        with self._errors():
            return bool(self._catalog.table_exists(self._identifier))

    def refresh(self) -> None:
        """Read the newest version. Raises PipelineError if rows can no longer be appended to it."""
        with self._errors():
            if self._table is None:
                self._table = self._catalog.load_table(self._identifier)
            else:
                self._table.refresh()
            metadata = self._table.metadata
            self._table.metadata = metadata.model_copy(update={"properties": {**metadata.properties, **NO_RETRIES}})
            self._check()

    def _check(self) -> None:
        """Raise PipelineError for a table to which rows cannot be appended by only adding files."""
        if not self._columns:
            return
        types = {field.name: _arrow_field(field).type for field in self._table.schema().fields}
        for name in self._columns:
            check_column(self._identifier, name, types.get(name))
        self._check_nulls(self._columns)
        actual = self.arrangement()
        self._wanted.check(self._identifier, [field.term for field in actual.partition], actual.sort)

    def _check_nulls(self, written: Sequence[str]) -> None:
        for field in self._table.schema().fields:
            check_nulls(self._identifier, _arrow_field(field), written)

    def positions(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, Position]:
        """Return the positions of partitions in the last version read. Raises PipelineError after a rollback."""
        wanted = set(keys)
        positions: dict[TopicPartition, Position] = {}
        for topic in {topic for topic, _ in wanted}:
            positions |= self._topic(topic)
        return {key: position for key, position in positions.items() if key in wanted}

    def _topic(self, topic: str) -> dict[TopicPartition, Position]:
        """Return the positions of a topic. Raises PipelineError if rows were taken back."""
        taken, positions = self._judged(topic)
        if taken is not None:
            raise PipelineError(taken.message(self._identifier))
        return positions

    def _judged(self, topic: str) -> tuple[TakenBack | None, dict[TopicPartition, Position]]:
        """Return what was taken back from a topic, and its positions by its property, or else by receipts."""
        text = self._table.metadata.properties.get(f"{KEY}.{topic}")
        if text is None:
            return None, self._by_receipts(topic)
        receipt_id, positions = parse_positions(topic, text, self._identifier)
        judged = self._table.metadata.current_snapshot_id, text
        if self._fits.get(topic) == judged:
            return None, positions
        rows = None if self.is_upserted else self._present
        taken = Rollbacks(self._identifier, self._history, rows).taken_back(topic, receipt_id, positions, self.version)
        if taken is None:
            self._fits[topic] = judged
        return taken, positions

    def taken_back(self) -> TakenBack | None:
        """Return what a rollback took back from all topics with a property. Raises PipelineError."""
        listed = [taken for topic in self._topics() if (taken := self._judged(topic)[0]) is not None]
        return together(listed) if listed else None

    def _topics(self) -> list[str]:
        return sorted(
            name.removeprefix(f"{KEY}.") for name in self._table.metadata.properties if name.startswith(f"{KEY}.")
        )

    @property
    def _history(self) -> History:
        return History(self._table.metadata, self._identifier)

    def _present(self) -> PresentRows:
        receipts = (commit.receipt for commit in self.commits())
        return PresentRows.of(self._identifier, self.store(), self.files(), receipts)

    def all_positions(self) -> dict[TopicPartition, Position]:
        """Return the positions of all topics with a property. Raises PipelineError after a rollback."""
        return {key: position for topic in self._topics() for key, position in self._topic(topic).items()}

    def _by_receipts(self, topic: str) -> dict[TopicPartition, Position]:
        """Return the positions of a topic without a property. Raises PipelineError if rows are beyond them."""
        positions = self._remaining(topic)
        if positions:
            self._present().check_end(positions)
        return positions

    def _remaining(self, topic: str) -> dict[TopicPartition, Position]:
        positions: dict[TopicPartition, Position] = {}
        commits = self._history.commits() if self._history.is_whole() else self._history.ancestors()
        for commit in of_topic(commits, topic):
            if commit is None:  # older receipts may have covered other partitions
                if positions or self._has_rows(topic):
                    raise PipelineError(
                        f"{self._identifier} has rows of {topic}, but neither a property {KEY}.{topic} nor all of its"
                        " snapshots: its offsets cannot be determined. Copy the topic to a new table"
                    )
                break
            positions = {key: at for key, at in commit.receipt.positions().items() if key[0] == topic} | positions
        return positions

    def _has_rows(self, topic: str) -> bool:
        from pyiceberg import expressions

        equal_to: Any = expressions.EqualTo  # typed for its JSON
        named = "topic" in self._table.schema().column_names
        scan = self._table.scan(
            row_filter=equal_to("topic", topic) if named else expressions.AlwaysTrue(),
            selected_fields=("offset",),
            limit=1,
        )
        with self._errors():
            return bool(scan.to_arrow().num_rows)

    def store(self) -> FileStore:
        """Return the store that tasks write files to."""
        location = LOCAL.sub("", f"{self._table.location().rstrip('/')}/data")
        return LocalFiles(location) if "://" not in location else IcebergFiles(self._table.io, location)

    def schema(self) -> Any:
        """Return the Arrow schema of files, with the table's field ids."""
        import pyarrow as pa

        from warmlog.pipeline.source.arrow import arrow_schema

        schema = arrow_schema(self._columns) if self._planned is None else self._planned
        fields = {field.name: field for field in self._with_columns(self._table.transaction()).fields}
        return pa.schema([with_ids(field, fields[field.name]) for field in schema])

    def full_schema(self) -> Any:
        """Return the Arrow schema of files with all columns of the table, and their field ids."""
        import pyarrow as pa

        columns = [(_arrow_field(field), field) for field in self._with_columns(self._table.transaction()).fields]
        return pa.schema([with_ids(pa.field(each.name, normal(each.type)), field) for each, field in columns])

    def _with_columns(self, transaction: Any) -> Any:
        """Add planned columns in a transaction, and return its schema. New field ids follow those of the table."""
        known = {field.name: field.type for field in self.fields()}
        planned = () if self._planned is None else self._planned
        missing = [field for field in planned if field.name not in known or not known[field.name].equals(field.type)]
        if missing:
            import pyarrow as pa

            with transaction.update_schema() as update:
                update.union_by_name(pa.schema(missing))
        return transaction.table_metadata.schema()

    def arrangement(self) -> Arrangement:
        """Return how rows are arranged. Raises PipelineError for partitions that cannot be written."""
        return arrangement_of(self._identifier, self._table.metadata, {each.name: each.type for each in self.fields()})

    def fields(self) -> list[Any]:
        """Return the columns of the version that was read last, with types as files are written."""
        import pyarrow as pa

        return [pa.field(field.name, normal(_arrow_field(field).type)) for field in self._table.schema().fields]

    def stored_type(self, kind: Any) -> Any:
        """Return the type that the table has for an Arrow type."""
        return kind

    def check_change(self, before: Any, after: Any) -> None:  # noqa: ARG002 - all that can be merged can be widened
        """Raise SchemaError for names that the table cannot have. It can add fields, and widen numbers and decimals."""
        import pyarrow as pa

        check_names(pa.struct([after]), "")

    def plan_columns(self, schema: Any) -> None:
        """Write files with these columns from now on; the next commit adds those that the table lacks."""
        self._planned = schema
        self._check_nulls(schema.names)

    def commit(self, receipt: Receipt, files: Sequence[NewFile], removed: Sequence[DataFile] = ()) -> None:
        """Add and remove files as one snapshot. Raises ConflictError, RefusedError, OutcomeUnknownError."""
        topics = {topic for topic, _ in receipt.spans}
        after = {topic: self._topic(topic) for topic in topics}
        for key, position in receipt.positions().items():
            after[key[0]][key] = position
        properties = {f"{KEY}.{topic}": positions_text(receipt.id, after[topic]) for topic in topics}
        if receipt.upsert:
            properties[UPSERTED] = "true"
        self._write(files, {file.path for file in removed}, receipt, properties)

    def accept(self, taken: TakenBack, receipt: Receipt) -> None:
        """Store the positions of the rows that a rollback has left. Raises as `commit` does."""
        positions = {**taken.kept, **taken.positions}
        properties: dict[str, str | None] = {}
        for topic in {topic for topic, _ in taken.positions}:
            after = {key: at for key, at in positions.items() if key[0] == topic and at is not None}
            properties[f"{KEY}.{topic}"] = positions_text(receipt.id, after) if after else None
        self._write((), set(), receipt, properties)

    def _write(
        self, files: Sequence[NewFile], gone: set[str], receipt: Receipt, properties: Mapping[str, str | None]
    ) -> None:
        """Commit a snapshot. `gone`: paths of files to remove. `properties`: to set, or to remove if None."""
        from pyiceberg.exceptions import CommitFailedException

        self._tried_at = self.version
        try:
            self._change(files, gone, receipt, properties)
        except CommitFailedException as error:
            raise ConflictError(f"{self._identifier}: {reason(error)}") from error
        except PipelineError as error:
            raise PipelineError(f"{self._identifier}: {error}") from error
        except Exception as error:
            if is_permanent(error):
                raise RefusedError(f"{self._identifier}: cannot commit: {first_line(error)}") from error
            raise OutcomeUnknownError(f"{self._identifier}: {first_line(error)}") from error

    def _change(
        self, added: Sequence[NewFile], gone: set[str], receipt: Receipt, properties: Mapping[str, str | None]
    ) -> None:
        with self._table.transaction() as transaction:
            self._with_columns(transaction)
            transaction.set_properties({name: text for name, text in properties.items() if text is not None})
            if removed := [name for name, text in properties.items() if text is None]:
                transaction.remove_properties(*removed)
            files = list(data_files_of(self._table, transaction.table_metadata, added))
            update = transaction.update_snapshot(snapshot_properties={KEY: receipt.text()})
            with update.overwrite() if gone else update.fast_append() as snapshot:
                for task in self._table.scan().plan_files() if gone else ():
                    if task.file.file_path in gone:
                        snapshot.delete_data_file(task.file)
                for file in files:
                    snapshot.append_data_file(file)

    def holds(self, receipt: Receipt) -> bool:
        """Return whether the last attempt to commit this receipt is in the last version read."""
        for commit in self._history.ancestors():
            if commit is None or commit.version == self._tried_at:
                return False
            if commit.receipt.id == receipt.id:
                return True
        return False

    def files(self) -> list[DataFile]:
        """Return the files of the last snapshot read."""
        fields = {field.name: field for field in self._table.schema().fields if field.name in ROW_KEYS}
        names = names_of(self._table.schema())
        with self._errors():
            return [
                DataFile(
                    path=task.file.file_path,
                    size=task.file.file_size_in_bytes,
                    bounds=bounds_of(task.file, fields),
                    hides_rows=bool(task.delete_files),
                    names=names,
                    is_keyed=has_values(task.file, [fields[name] for name in NUMBERS if name in fields]),
                    **partition_of(self._table.metadata, task.file),
                )
                for task in self._table.scan().plan_files()
            ]

    def commits(self) -> Iterator[Committed]:
        """Yield the commits with receipts in the remaining history, then those of the ledger, newest first."""
        return self._history.commits()

    def is_whole(self) -> bool:
        """Return whether the receipts of all commits exist. Raises PipelineError."""
        return self._history.is_whole()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert the errors of pyiceberg and its catalogs to the pipeline's."""
        try:
            yield
        except ConnectionError as error:
            raise UnavailableError(f"{self._identifier}: {error}") from error
        except (PipelineError, OSError):
            raise
        except Exception as error:
            kind = PipelineError if has_equality_deletes(error) else UnavailableError
            raise kind(f"{self._identifier}: {reason(error)}") from error


def _arrow_field(iceberg_field: Any) -> Any:
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return pa.field(iceberg_field.name, schema_to_pyarrow(iceberg_field.field_type), not iceberg_field.required)
