"""The arrangement of an Iceberg table: its default partition spec, and its default sort order."""

from collections.abc import Mapping
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.arrangement.spec import (
    WITH_NUMBER,
    Arrangement,
    PartitionField,
    SortField,
    Term,
    Transform,
    Wanted,
)
from warmlog.pipeline.lakehouse.arrangement.types import check_known, check_partition, check_sort
from warmlog.pipeline.lakehouse.neighbours import check_new

NAMES: tuple[Transform, ...] = ("identity", "year", "month", "day", "hour", *WITH_NUMBER)


def create_table(catalog: Any, identifier: str, schema: Any, wanted: Wanted) -> None:
    """Create a table of a catalog unless it exists. `schema`: Arrow's. Raises PipelineError, pyiceberg's errors.

    A table whose location is inside another table's, or contains one, is an error, too.
    """
    from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
    from pyiceberg.table.sorting import NullOrder
    from pyiceberg.transforms import IdentityTransform

    _check_new(identifier, {field.name: field.type for field in schema}, wanted)
    try:
        with catalog.create_table_transaction(identifier, schema=schema) as transaction:
            _check_location(identifier, transaction)
            if wanted.partition:
                with transaction.update_spec() as spec:
                    for term in wanted.partition:
                        spec.add_field(term.column, _library_transform(term), term.name)
            if wanted.sort:
                with transaction.update_sort_order() as order:
                    for term in wanted.sort:
                        order.asc(term.column, IdentityTransform(), NullOrder.NULLS_FIRST)
    except ValueError as error:
        if "specify a location" not in str(error):
            raise
        raise PipelineError(f"{identifier}: the catalog has no place for new tables: give --warehouse URL") from error
    except (CommitFailedException, TableAlreadyExistsError):
        if not catalog.table_exists(identifier):  # otherwise another job was faster
            raise


def _check_location(table: str, transaction: Any) -> None:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    files, location = transaction._table.io, transaction.table_metadata.location  # noqa: SLF001 - not exposed
    if isinstance(files, PyArrowFileIO):  # others cannot list files, and so cannot be maintained
        scheme, netloc, path = PyArrowFileIO.parse_location(location)
        check_new(f"{table} in {location}", files.fs_by_scheme(scheme, netloc), path.rstrip("/"), is_delta=False)


def _check_new(table: str, types: Mapping[str, Any], wanted: Wanted) -> None:
    check_known(table, "--partition-by", wanted.partition, types)
    check_known(table, "--sort-by", wanted.sort, types)
    check_partition(table, wanted.partition, types, is_delta=False)
    check_sort(table, wanted.sort, types)
    for term in wanted.partition:
        if term.transform != "identity" and term.name in types:
            raise PipelineError(f"--partition-by {term}: its name {term.name} is that of a column")


def arrangement_of(name: str, metadata: Any, types: Mapping[str, Any]) -> Arrangement:
    """Return the arrangement of a table by its metadata. `types`: Arrow's, by column.

    Raises PipelineError for partitions that cannot be written. An order that cannot be kept is left out, because files
    need not have it.
    """
    partition = []
    schema = metadata.schema()
    for field in metadata.spec().fields:
        if str(field.transform) == "void":
            partition.append(PartitionField(term=Term(f"void {field.name}"), name=field.name))
            continue
        column = schema.find_column_name(field.source_id)
        term = _term(column, field.transform)
        if term is None or column not in types:
            raise PipelineError(f"{name} is partitioned by {field.transform} of {column}, which is not supported")
        check_partition(name, [term], types, is_delta=False)
        partition.append(PartitionField(term=term, name=field.name))
    return Arrangement(partition=tuple(partition), sort=_order(metadata, types))


def _order(metadata: Any, types: Mapping[str, Any]) -> tuple[SortField, ...]:
    order = metadata.sort_order_by_id(metadata.default_sort_order_id)
    fields = []
    for field in () if order is None else order.fields:
        column = metadata.schema().find_column_name(field.source_id)
        term = _term(column, field.transform)
        if term is None or column not in types:
            return ()
        fields.append(
            SortField(
                term=term,
                descending=field.direction.name == "DESC",
                nulls_last=field.null_order.name == "NULLS_LAST",
            )
        )
    return tuple(fields)


def _term(column: str, transform: Any) -> Term | None:
    """Return a term for a transform of pyiceberg, or None for an unknown one."""
    text, _, number = str(transform).rstrip("]").partition("[")
    for known in NAMES:
        if text == known:
            return Term(column, known, int(number or 0))
    return None


def _library_transform(term: Term) -> Any:
    from pyiceberg.transforms import parse_transform

    return parse_transform(f"{term.transform}[{term.number}]" if term.number else term.transform)
