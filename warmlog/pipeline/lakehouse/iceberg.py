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

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from warmlog.pipeline.errors import PipelineError, UnavailableError
from warmlog.pipeline.lakehouse.arrangement.iceberg import arrangement_of, create_table
from warmlog.pipeline.lakehouse.arrangement.spec import NOTHING_WANTED, Arrangement, Wanted
from warmlog.pipeline.lakehouse.iceberg_files import bounds_of, data_files_of, partition_of, with_ids
from warmlog.pipeline.lakehouse.ledger import LEDGER_KEY, parse_ledger
from warmlog.pipeline.lakehouse.reading import ROW_KEYS, DataFile
from warmlog.pipeline.lakehouse.receipts import KEY, UNKNOWN_ID, Receipt, parse_receipt
from warmlog.pipeline.lakehouse.schemas.columns import check_column, check_nulls
from warmlog.pipeline.lakehouse.schemas.types import check_names, normal
from warmlog.pipeline.lakehouse.table import Committed, ConflictError, OutcomeUnknownError
from warmlog.pipeline.lakehouse.writing import FileStore, LocalFiles, NewFile
from warmlog.pipeline.source.offsets import Position
from warmlog.protocol.partitions import TopicPartition

NO_RETRIES = {"commit.retry.num-retries": "0"}
NO_SNAPSHOT = 0
NOTHING = Committed(version=NO_SNAPSHOT, receipt=Receipt(id="", spans={}))
LOCAL = "file://"
UPSERTED = "warmlog-upsert"


class IcebergFiles:
    """The data directory of a table, accessed through pyiceberg's FileIO; workers get a copy."""

    def __init__(self, files: Any, location: str) -> None:
        self._files = files
        self._location = location

    def open(self, path: str) -> Any:
        """Return a file open for reading. Raises OSError."""
        return self._files.new_input(path).open()

    def create(self, name: str) -> Any:
        """Return a file open for writing. Raises OSError."""
        return self._files.new_output(f"{self._location}/{name}").create()

    def path_of(self, name: str) -> str:
        """Return the URL of an object."""
        return f"{self._location}/{name}"

    def finished(self, name: str) -> None:
        """Do nothing: an object is durable when it is closed."""

    def delete(self, name: str) -> None:
        """Delete an object. Raises OSError."""
        self._files.delete(f"{self._location}/{name}")


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
                self._catalog.create_namespace_if_not_exists(namespace)
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
        """Return the positions of a topic from its property, or without one from the receipts of the snapshots."""
        text = self._table.metadata.properties.get(f"{KEY}.{topic}")
        of_topic = (commit for commit in self._ancestors() if commit is None or _names(commit, topic))
        if text is None:
            return self._by_receipts(topic, of_topic)
        receipt_id, positions = _parse_positions(topic, text, self._identifier)
        newest = next(of_topic, NOTHING)
        if newest is not None and newest.receipt.id != receipt_id:
            last = f"of snapshot {newest.version}" if newest.version else "gone"
            raise PipelineError(
                f"{self._identifier} was rolled back: its newest rows of {topic} are {last}, and its property"
                f" {KEY}.{topic} is of a later snapshot. Remove the property to continue after the remaining rows"
            )
        return positions

    def _by_receipts(self, topic: str, commits: Iterator[Committed | None]) -> dict[TopicPartition, Position]:
        positions: dict[TopicPartition, Position] = {}
        for commit in commits:
            if commit is None:  # older receipts may have covered other partitions
                if positions or self._has_rows(topic):
                    raise PipelineError(
                        f"{self._identifier} has rows of {topic}, but neither a property {KEY}.{topic} nor all of its"
                        " snapshots: its offsets cannot be determined"
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
        return bool(scan.to_arrow().num_rows)

    def _ancestors(self) -> Iterator[Committed | None]:
        """Yield the receipts of the current snapshot and its ancestors, newest first, then None if some expired."""
        for commit, snapshot in self._history():
            if commit is not None or snapshot == NO_SNAPSHOT:
                yield commit

    def _history(self) -> Iterator[tuple[Committed | None, int]]:
        """Yield the receipt (or None) and the id of the current snapshot and each of its ancestors, newest first.

        The last id is NO_SNAPSHOT if older snapshots have expired.
        """
        at = self._table.metadata.current_snapshot_id
        while at is not None:
            snapshot = self._table.metadata.snapshot_by_id(at)
            if snapshot is None:
                yield None, NO_SNAPSHOT
                return
            text = None if snapshot.summary is None else snapshot.summary.additional_properties.get(KEY)
            source = f"{self._identifier}, snapshot {at}"
            yield None if text is None else Committed(version=at, receipt=parse_receipt(text, source)), at
            at = snapshot.parent_snapshot_id
            if at is None and not is_first(snapshot):
                yield None, NO_SNAPSHOT  # when pyiceberg expires a parent, it also removes the parent's id

    def store(self) -> FileStore:
        """Return the store that tasks write files to."""
        location = f"{self._table.location().rstrip('/')}/data"
        if location.startswith(LOCAL):
            return LocalFiles(location.removeprefix(LOCAL))
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
        """Add and remove files as one snapshot. Raises ConflictError, OutcomeUnknownError."""
        from pyiceberg.exceptions import CommitFailedException

        self._tried_at = self.version
        topics = {topic for topic, _ in receipt.spans}
        after = {topic: self._topic(topic) for topic in topics}
        for key, position in receipt.positions().items():
            after[key[0]][key] = position
        properties = {f"{KEY}.{topic}": _positions_text(receipt.id, after[topic]) for topic in topics}
        if receipt.upsert:
            properties[UPSERTED] = "true"
        try:
            self._change(files, {file.path for file in removed}, receipt, properties)
        except CommitFailedException as error:
            raise ConflictError(f"{self._identifier}: {error}") from error
        except PipelineError as error:
            raise PipelineError(f"{self._identifier}: {error}") from error
        except Exception as error:
            raise OutcomeUnknownError(f"{self._identifier}: {error}") from error

    def _change(
        self, added: Sequence[NewFile], gone: set[str], receipt: Receipt, properties: Mapping[str, str]
    ) -> None:
        with self._table.transaction() as transaction:
            self._with_columns(transaction)
            transaction.set_properties(dict(properties))
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
        for commit in self._ancestors():
            if commit is None or commit.version == self._tried_at:
                return False
            if commit.receipt.id == receipt.id:
                return True
        return False

    def files(self) -> list[DataFile]:
        """Return the files of the last snapshot read."""
        fields = {field.name: field for field in self._table.schema().fields if field.name in ROW_KEYS}
        with self._errors():
            return [
                DataFile(
                    path=task.file.file_path,
                    size=task.file.file_size_in_bytes,
                    bounds=bounds_of(task.file, fields),
                    hides_rows=bool(task.delete_files),
                    **partition_of(self._table.metadata, task.file),
                )
                for task in self._table.scan().plan_files()
            ]

    def commits(self) -> Iterator[Committed]:
        """Yield the commits with receipts in the remaining history, then those of the ledger, newest first."""
        text = self._table.metadata.properties.get(LEDGER_KEY)
        receipts, marks = ((), {}) if text is None else parse_ledger(text, self._identifier)
        for commit, snapshot in self._history():
            if snapshot == marks.get("snapshot") or snapshot == NO_SNAPSHOT:
                break
            if commit is not None:
                yield commit
        else:
            return  # no snapshot expired and none is the ledger's: the table was rolled back to an earlier snapshot
        yield from (Committed(version=marks["snapshot"], receipt=receipt) for receipt in reversed(receipts))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert the errors of pyiceberg and its catalogs to the pipeline's."""
        try:
            yield
        except (PipelineError, OSError):
            raise
        except Exception as error:
            raise UnavailableError(f"{self._identifier}: {error}") from error


def open_catalog(catalog: str, warehouse: str | None, properties: Mapping[str, str]) -> Any:
    """Open a catalog by its URL (`http://…`: REST, others: SQL), or by its name in pyiceberg's configuration file.

    Raises PipelineError.
    """
    from pyiceberg.catalog import load_catalog

    given = dict(properties)
    if warehouse is not None:
        given["warehouse"] = warehouse
    try:
        if "://" not in catalog:
            return load_catalog(catalog, **given)
        kind = "rest" if catalog.startswith(("http://", "https://")) else "sql"
        return load_catalog("default", **{"type": kind, "uri": catalog, **given})
    except Exception as error:
        raise PipelineError(f"catalog {catalog}: {error}") from error


def _arrow_field(iceberg_field: Any) -> Any:
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return pa.field(iceberg_field.name, schema_to_pyarrow(iceberg_field.field_type), not iceberg_field.required)


def is_first(snapshot: Any) -> bool:
    """Return whether a snapshot without a parent is the table's first one, judging by its sequence number.

    Tables of format version 1 do not number snapshots; their first snapshot is the one that appended all of its rows.
    """
    if snapshot.sequence_number:
        return bool(snapshot.sequence_number == 1)
    if snapshot.summary is None:
        return True
    summary = snapshot.summary.additional_properties
    appended = "total-records" not in summary or summary["total-records"] == summary.get("added-records", "0")
    return bool(appended and snapshot.summary.operation.value == "append")


def _names(commit: Committed, topic: str) -> bool:
    return any(key[0] == topic for key in commit.receipt.spans)


def _positions_text(receipt_id: str, positions: Mapping[TopicPartition, Position]) -> str:
    by_id: dict[str, dict[str, list[int | None]]] = {}
    for (_, partition), position in sorted(positions.items()):
        listed = by_id.setdefault(position.topic_id or UNKNOWN_ID, {})
        listed[str(partition)] = [position.offset, position.leader_epoch]
    return json.dumps({"receipt": receipt_id, "positions": by_id}, separators=(",", ":"))


def _parse_positions(topic: str, text: str, table: str) -> tuple[str, dict[TopicPartition, Position]]:
    try:
        form = json.loads(text)
        return form["receipt"], {
            (topic, int(partition)): Position(offset=int(offset), leader_epoch=epoch, topic_id=topic_id or None)
            for topic_id, listed in form["positions"].items()
            for partition, (offset, epoch) in listed.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise PipelineError(f"{table}: property {KEY}.{topic} cannot be read: {error!r}") from error
