"""Sort the rows of a task by partition and order, in bounded memory: a sort with runs on the local disk.

1. Rows wait in memory until they have `SORT_BYTES`; then they are sorted, and written to a temporary file without a
name, which no crash can leave behind. `FAN_IN` runs of a level become one of the next level.
2. At the end all runs are merged, with `SORT_BYTES` of their rows in memory for each level. Rows of a partition follow
each other, so that one file of the table is open at a time, however many partitions there are.
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.arrangement.ordering import SortedRows, merged, sorted_by
from warmlog.pipeline.lakehouse.arrangement.spec import Arrangement, listed
from warmlog.pipeline.lakehouse.arrangement.values import Terms

SORT_BYTES = 64 << 20  # rows in memory; sorting needs as much once more
FAN_IN = 16
BATCH_ROWS = 1 << 13  # maximum rows of a batch of the result
MAX_PARTITIONS = 10_000  # maximum number of partitions in a commit

Values = tuple[Any, ...]  # of the partition fields


@dataclass(frozen=True, slots=True, kw_only=True)
class SortLimits:
    """Limits of a sort. `bytes`: rows in memory; `partitions`: their maximum number in a commit."""

    bytes: int = SORT_BYTES
    partitions: int = MAX_PARTITIONS


LIMITS = SortLimits()


class RowSorter:
    """Sorts rows. `schema`: their Arrow schema."""

    def __init__(self, arrangement: Arrangement, schema: Any, limits: SortLimits = LIMITS) -> None:
        self._arrangement = arrangement
        self._schema = schema
        self._terms = Terms(arrangement, schema.names)
        self._limits = limits
        self._partitions: set[Values] = set()
        self._waiting: list[Any] = []
        self._waiting_bytes = 0
        self._levels: list[list[Any]] = []  # runs; each of a level has about `FAN_IN` times the rows of the one before
        self._opened = ExitStack()

    def add(self, batch: Any) -> None:
        """Add the rows of a record batch. Raises PipelineError for too many partitions, OSError."""
        import pyarrow as pa

        table = self._terms.added(pa.Table.from_arrays(batch.columns, schema=self._schema))
        self._count(table)
        self._waiting.append(table)
        self._waiting_bytes += table.nbytes
        if self._waiting_bytes >= self._limits.bytes:
            self._spill()

    def _count(self, table: Any) -> None:
        names = [key.column for key in self._terms.partition]
        if not names:
            return
        for row in table.select(names).group_by(names).aggregate([]).to_pylist():
            self._partitions.add(tuple(row.values()))
        check_partitions(len(self._partitions), self._arrangement, self._limits)

    def _taken(self) -> Any:
        """Return the rows in memory, and forget them."""
        import pyarrow as pa

        table = pa.concat_tables(self._waiting).combine_chunks()
        self._waiting, self._waiting_bytes = [], 0
        return table

    def _spill(self) -> None:
        """Write the rows in memory as a run, and merge the runs of levels that are full."""
        run = self._written(iter([sorted_by(self._taken(), self._terms.order)]))
        for level in self._levels:
            level.append(run)
            if len(level) < FAN_IN:
                return
            run = self._written(merged([self._run(each) for each in level], self._terms.order))
            for each in level:
                each.close()
            level.clear()
        self._levels.append([run])

    def _written(self, tables: Iterator[Any]) -> Any:
        """Write sorted rows as a run, in batches of which `FAN_IN` fit into memory."""
        import pyarrow as pa

        run = self._opened.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - closed by `finish` or `close`
        first = next(tables)
        with pa.ipc.new_stream(run, first.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
            for table in chain([first], tables):
                batch_bytes = self._limits.bytes // FAN_IN
                writer.write_table(table, max(table.num_rows * batch_bytes // max(table.nbytes, 1), 1))
        run.seek(0)
        return run

    def finish(self) -> Iterator[tuple[Values, Any]]:
        """Yield all rows in order, as record batches of one partition with its values. Raises OSError."""
        order = self._terms.order
        if self._levels and self._waiting:
            self._spill()
        sources = [self._run(run) for level in self._levels for run in level]
        if self._waiting:
            sources.append(iter([SortedRows(self._taken(), order)]))
        with self._opened:
            for table in merged(sources, order):
                yield from self._by_partition(table)

    def _run(self, run: Any) -> Iterator[SortedRows]:
        import pyarrow as pa

        for batch in pa.ipc.open_stream(run):
            yield SortedRows(pa.Table.from_batches([batch]), self._terms.order)

    def _by_partition(self, table: Any) -> Iterator[tuple[Values, Any]]:
        import numpy as np

        names = [key.column for key in self._terms.partition]
        changes = np.zeros(max(table.num_rows - 1, 0), bool)
        for name in names:
            codes = table.column(name).combine_chunks().dictionary_encode(null_encoding="encode").indices.to_numpy()
            changes |= codes[1:] != codes[:-1]
        edges = [0, *(int(at) + 1 for at in np.flatnonzero(changes)), table.num_rows]
        for first, end in pairwise(edges):
            part = table.slice(first, end - first)
            values = tuple(part.column(name)[0].as_py() for name in names)
            for batch in self._terms.removed(part).to_batches(BATCH_ROWS):
                yield values, batch

    def close(self) -> None:
        """Delete the runs."""
        self._opened.close()


def check_partitions(count: int, arrangement: Arrangement, limits: SortLimits = LIMITS) -> None:
    """Raise PipelineError if a commit has too many partitions."""
    if count > limits.partitions:
        terms = listed(field.term for field in arrangement.partition)
        raise PipelineError(
            f"a commit has rows of more than {limits.partitions:,} partitions of {terms}: partition by fewer values, or"
            " commit fewer rows at a time (--commit-rows)"
        )
