"""Topics with keys, in directories, and what tables with a row for each key have of them."""

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.pipeline.conftest import NOW_MS, DirectoryWriter
from tests.pipeline.lakehouse.tables import Kind, options_of, query
from warmlog.pipeline.lakehouse.job import TableSettings
from warmlog.pipeline.lakehouse.receipts import Receipt
from warmlog.pipeline.lakehouse.schemas.formats import Formats
from warmlog.pipeline.lakehouse.table import Table
from warmlog.pipeline.lakehouse.upserts.job import UpsertJob
from warmlog.pipeline.runner import LocalRunner, Runner
from warmlog.protocol.records.builder import build_batch

Pair = tuple[bytes | None, bytes | None]
Model = dict[tuple[int, bytes], tuple[int, bytes]]  # by partition and key: offset and value

UPSERT = TableSettings(formats=Formats(upsert=True))
S = TypeVar("S")
T = TypeVar("T")


class KeyedWriter(DirectoryWriter):
    """Writes a partition of records with keys, and notes what is left of them in `model`. Partitions may share it."""

    def __init__(
        self, data_dir: Path, partition: int = 0, *, model: Model | None = None, topic: str = "orders"
    ) -> None:
        super().__init__(data_dir, topic, partition)
        self.partition = partition
        self.model: Model = {} if model is None else model
        self.records: list[Pair] = []

    def add(self, *pairs: Pair) -> None:
        """Write a segment of one batch."""
        base = self.next_offset
        rows = [(NOW_MS + base + at, key, value, ()) for at, (key, value) in enumerate(pairs)]
        (self.directory / f"{base:020d}.log").write_bytes(build_batch(rows, base_offset=base))
        self.next_offset += len(rows)
        self.records += pairs
        for offset, (key, value) in enumerate(pairs, start=base):
            assert key is not None
            self.model.pop((self.partition, key), None)
            if value is not None:
                self.model[self.partition, key] = offset, value


class Elsewhere:
    """Runs items of work as if in processes of other machines: they get copies of all, and return copies."""

    parallelism = 3

    def __call__(self, items: Sequence[S], work: Callable[[S], T], _size: Callable[[S], int], /) -> list[T]:
        """Call `work` for each item."""
        return [_copied(_copied(work)(_copied(item))) for item in items]


def _copied(value: T) -> T:
    copy: T = pickle.loads(pickle.dumps(value))
    return copy


def upserted(
    table: Table,
    writer: DirectoryWriter,
    settings: TableSettings = UPSERT,
    run: Runner | None = None,
    **options: Any,
) -> list[Receipt]:
    """Upsert what is there, by default in this process."""
    job = UpsertJob(options_of(writer, **options), table, settings, pause=lambda _: None)
    return list(job.run_until_end(run or LocalRunner()))


def model_in(directory: Path, kind: Kind) -> Model:
    """Return the rows of the table, as DuckDB reads its files; fail if a key has several."""
    rows = query(directory, kind, 'SELECT "partition", key, "offset", value FROM data')
    model = {(partition, key): (offset, value) for partition, key, offset, value in rows}
    assert len(model) == len(rows), "a key has several rows"
    return model
