"""Write files again without some of their rows.

1. Rows keep their columns and their order by topic, partition and offset; files are merged up to the target size. A
   file that is not in this order, because another program has written it, is written again by itself. Rows of
   partitioned and sorted tables are arranged again.
2. Files are rewritten in groups, each a task: those of a partition or, without partitions and order, those whose row
   groups fit into memory together, as for maintenance.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.arrangement.ordering import OrderKey, SortedRows, merged
from warmlog.pipeline.lakehouse.arrangement.sorting import Values
from warmlog.pipeline.lakehouse.arrangement.spec import PLAIN
from warmlog.pipeline.lakehouse.arrangement.values import Terms
from warmlog.pipeline.lakehouse.maintenance.merging import UnorderedFileError
from warmlog.pipeline.lakehouse.maintenance.planning import parts_of, read_footer
from warmlog.pipeline.lakehouse.reading import DataFile, with_constants
from warmlog.pipeline.lakehouse.schemas.stored import StoredColumns
from warmlog.pipeline.lakehouse.schemas.types import conformed, normal
from warmlog.pipeline.lakehouse.writing import FileSequence, NewFile, ParquetRules
from warmlog.protocol.partitions import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Without:
    """A file, and the sorted offsets of the rows to leave out, by partition. `topic`: of rows without this column."""

    file: DataFile
    offsets: Mapping[TopicPartition, Any]
    topic: str | None


Parts = tuple[Without, ...]


def divided(rules: ParquetRules, parts: Sequence[Without]) -> list[Parts]:
    """Return the files that each task rewrites. Raises PipelineError for a damaged file, OSError."""
    if not rules.arrangement.is_plain:
        by_partition: dict[Values | None, list[Without]] = {}
        for part in parts:
            by_partition.setdefault(part.file.partition, []).append(part)
        return [tuple(listed) for listed in by_partition.values()]
    of_path = {part.file.path: part for part in parts}
    by_bounds = sorted((part.file for part in parts), key=lambda file: (file.bounds.get("offset", (0, 0)), file.path))
    with _arrow_errors():
        footers = [(file, read_footer(rules.store, file)) for file in by_bounds]
    return [tuple(of_path[file.path] for file, _ in listed) for listed in parts_of(footers, rules.file_bytes) if listed]


def size_of_parts(parts: Parts) -> int:
    """Return the number of bytes that a task reads."""
    return sum(part.file.size for part in parts)


def rewriter(rules: ParquetRules) -> partial[list[NewFile]]:
    """Return `rewrite_parts` bound to its rules."""
    return partial(rewrite_parts, rules)


def rewrite_parts(rules: ParquetRules, parts: Parts) -> list[NewFile]:
    """Return new files with the rows that are left. Raises PipelineError for a damaged file, OSError."""
    with _arrow_errors():
        if not rules.arrangement.is_plain:
            return _copy(rules, parts)
        left, made = list(parts), list[NewFile]()
        while left:
            try:
                return made + _merge(rules, left)
            except UnorderedFileError as error:
                alone = next(part for part in left if part.file is error.file)
                left = [part for part in left if part is not alone]
                made += _copy(rules, [alone])
        return made


@contextmanager
def _arrow_errors() -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException as error:
        raise PipelineError(f"a file of the table cannot be read: {error}; `audit` names damaged files") from error


def _merge(rules: ParquetRules, parts: Sequence[Without]) -> list[NewFile]:
    with ExitStack() as opened, FileSequence(rules) as files:
        order = Terms(PLAIN, rules.schema.names).order
        for table in merged([_in_order(rules, part, order, opened) for part in parts], order):
            for batch in table.to_batches():
                files.write(batch)
        files.finish()
    return files.complete


def _in_order(rules: ParquetRules, part: Without, order: Sequence[OrderKey], opened: ExitStack) -> Iterator[SortedRows]:
    last = None
    for table in _row_groups(rules, part, opened):
        rows = SortedRows(table, order)
        if last is not None and rows[0] < last:
            raise UnorderedFileError(part.file)
        last = rows.last
        yield rows


def _copy(rules: ParquetRules, parts: Sequence[Without]) -> list[NewFile]:
    with FileSequence(rules) as files:
        for part in parts:
            with ExitStack() as opened:
                for table in _row_groups(rules, part, opened):
                    for batch in table.combine_chunks().to_batches():
                        files.write(batch)
        files.finish()
    return files.complete


def _row_groups(rules: ParquetRules, part: Without, opened: ExitStack) -> Iterator[Any]:
    """Yield the rows of each row group that are left, with the columns of the rules."""
    import pyarrow as pa
    from pyarrow import parquet

    source = opened.enter_context(parquet.ParquetFile(opened.enter_context(rules.store.open(part.file.path))))
    stored = StoredColumns.of(source.schema_arrow, part.file.names)
    for number in range(source.metadata.num_row_groups):
        table = stored.read(source.read_row_group(number))
        lacking = part.file.constants.keys() - set(table.column_names)
        table = with_constants(table, {name: part.file.constants[name] for name in sorted(lacking)})
        mask = _left(table, part)
        table = table if mask is None else table.filter(mask)
        if table.num_rows:
            there = set(table.column_names)
            columns = [
                _conformed(table.column(each.name), each.type)
                if each.name in there
                else pa.nulls(table.num_rows, each.type)
                for each in rules.schema
            ]
            yield pa.Table.from_arrays(columns, schema=rules.schema)


def _left(table: Any, part: Without) -> Any:
    """Return which rows are left, or None for all."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import compute

    gone = np.zeros(table.num_rows, bool)
    partitions, offsets = table.column("partition").to_numpy(), table.column("offset").to_numpy()
    for (topic, partition), listed in part.offsets.items():
        at = partitions == partition
        if "topic" in table.column_names:
            at &= compute.equal(table.column("topic"), topic).to_numpy(zero_copy_only=False)
        elif topic != part.topic:
            continue
        rows = np.flatnonzero(at)
        gone[rows[np.isin(offsets[rows], listed)]] = True
    return pa.array(~gone) if gone.any() else None


def _conformed(column: Any, kind: Any) -> Any:
    array = column.combine_chunks()
    plain = normal(array.type)
    return conformed(array if array.type.equals(plain) else array.cast(plain), kind)
