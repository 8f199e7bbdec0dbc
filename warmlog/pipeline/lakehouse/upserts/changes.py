"""Write the records of splits as files of a table, and their keys as changes: one task of an upsert.

1. Files have each record with a value, in order, and are as those of other tables. Records that delete a row, and those
   that others of the batch replace, are known by the changes alone.
2. Changes are Arrow streams: topic, partition, key, offset, and whether the record deletes the row of its key. They are
   in a directory of this machine or, if tasks run elsewhere, beside the table's files until the commit. No version
   names them, so VACUUM and the removal of orphan files delete those that a killed job has left.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.job_stats import JobStats, Stopwatch, added
from warmlog.pipeline.lakehouse.receipts import Runs, runs_of
from warmlog.pipeline.lakehouse.schemas.dead_letters import LetterWriter
from warmlog.pipeline.lakehouse.schemas.decoding import SchemaKey
from warmlog.pipeline.lakehouse.writing import (
    PREFIX,
    FileSequence,
    FileStore,
    Group,
    RowWriter,
    WriteRules,
    WrittenGroup,
)
from warmlog.pipeline.source.input import read_batches
from warmlog.pipeline.source.plan import AnySplit
from warmlog.pipeline.source.reading import ReadRules, Tally
from warmlog.protocol.partitions import TopicPartition

NEEDED = ("key", "value")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertRules(WriteRules):
    """Rules for a task. `changes`: where it writes changes."""

    changes: FileStore


@dataclass(frozen=True, slots=True, kw_only=True)
class UpsertedGroup(WrittenGroup):
    """Result of a task. `changes`: name of the file with the changes of its records."""

    changes: str


class ChangeWriter:
    """Writes changes to a new file; a context manager that deletes the file after an error. `key_type`: Arrow's."""

    def __init__(self, store: FileStore, key_type: Any) -> None:
        self.name = f"{PREFIX}{uuid4().hex}.arrows"
        self._store = store
        self._schema = change_schema(key_type)
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        import pyarrow as pa

        sink = self._opened.enter_context(self._store.create(self.name))
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._stream = self._opened.enter_context(pa.ipc.new_stream(sink, self._schema, options=options))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._opened.close()
            return
        with suppress(OSError):  # the first error is the one to report
            self._opened.close()
        with suppress(OSError):
            self._store.delete(self.name)

    def write(self, key: TopicPartition, rows: Any, deletes: Any) -> None:
        """Write the changes of a partition's rows. `deletes`: for each, whether it deletes the row of its key."""
        import pyarrow as pa

        topic, partition = (pa.repeat(pa.scalar(part, kind), rows.num_rows) for part, kind in _kinds(key))
        arrays = [topic, partition, rows.column("key"), rows.column("offset"), deletes]
        self._stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The files with the changes of a batch. `key_type`: Arrow type of keys."""

    store: FileStore
    names: tuple[str, ...]
    key_type: Any

    def reader(self) -> Any:
        """Return all changes as a RecordBatchReader, which can be read once."""
        import pyarrow as pa

        def batches() -> Iterator[Any]:
            for name in self.names:
                with self.store.open(self.store.path_of(name)) as source, pa.ipc.open_stream(source) as stream:
                    yield from stream

        return pa.RecordBatchReader.from_batches(change_schema(self.key_type), batches())

    def delete(self) -> None:
        """Delete the files. One that cannot be deleted becomes an orphan, as after a kill."""
        for name in self.names:
            with suppress(OSError, PipelineError):
                self.store.delete(name)


def _kinds(key: TopicPartition) -> Iterator[tuple[Any, Any]]:
    import pyarrow as pa

    return zip(key, (pa.string(), pa.int32()), strict=True)


def check_needed(columns: Sequence[str]) -> None:
    """Raise PipelineError unless records are read with the columns of which upserts consist."""
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise PipelineError(f"upserts need the columns key and value, and the columns leave out {missing[0]}")


def key_type_of(schema: Any) -> Any:
    """Return the Arrow type of keys: null until the schema of a key is known."""
    import pyarrow as pa

    return schema.field("key").type if "key" in schema.names else pa.null()


def change_schema(key_type: Any) -> Any:
    """Return the Arrow schema of changes."""
    import pyarrow as pa

    kinds = {
        "topic": pa.string(),
        "partition": pa.int32(),
        "key": key_type,
        "offset": pa.int64(),
        "deleted": pa.bool_(),
    }
    return pa.schema(list(kinds.items()))


def write_changed(files: FileSequence, changes: ChangeWriter, key: TopicPartition, rows: Any, deletes: Any) -> None:
    """Write the changes of a partition's rows, and the rows that delete none. `deletes`: for each, whether it does."""
    from pyarrow import compute

    changes.write(key, rows, deletes)
    kept = rows.filter(compute.invert(deletes)) if deletes.true_count else rows
    if kept.num_rows:
        files.write(kept)


def upsert_group(rules: UpsertRules, read_rules: ReadRules, group: Group) -> UpsertedGroup:
    """Write the records and changes of some splits. Raises PipelineError, InspectError, OSError."""
    damaged: list[str] = []
    damaged_offsets: list[tuple[TopicPartition, Runs]] = []
    unknown: set[SchemaKey] = set()
    dead: list[tuple[TopicPartition, Runs]] = []
    parts: list[JobStats] = []
    key_type = key_type_of(rules.decode.schema)
    with (
        LetterWriter(rules.decode.layout.formats.dead_letters) as letters,
        ChangeWriter(rules.changes, key_type) as changes,
        FileSequence(rules) as files,
    ):
        for split in group:
            rows = RowWriter(rules.decode, (split.topic, split.partition), letters)
            stats, tally = _write_split(files, changes, rows, read_rules, split)
            parts.append(stats)
            damaged += map(str, tally.damaged)
            damaged_offsets.append(((split.topic, split.partition), tuple(tally.damaged_offsets)))
            unknown |= rows.decoder.unknown
            if rows.decoder.dead:
                dead.append(((split.topic, split.partition), runs_of(rows.decoder.dead)))
        finishing = Stopwatch()
        finishing.timed(files.finish)()
    parts.append(JobStats(tasks=1, write_s=finishing.seconds))
    return UpsertedGroup(
        proofs=(),
        files=tuple(files.complete),
        damaged=tuple(damaged),
        stats=added(parts),
        unknown=frozenset(unknown),
        dead=tuple(dead),
        damaged_offsets=tuple(damaged_offsets),
        changes=changes.name,
    )


def _write_split(
    files: FileSequence, changes: ChangeWriter, rows: RowWriter, read_rules: ReadRules, split: AnySplit
) -> tuple[JobStats, Tally]:
    from warmlog.pipeline.source.arrow import ArrowDecoder, record_batches

    reading, decoding, fields, writing = Stopwatch(), Stopwatch(), Stopwatch(), Stopwatch()
    decoder = ArrowDecoder(split.topic, split.partition, rows.rules.layout.source)
    decode, write = fields.timed(rows.decode), writing.timed(write_changed)
    steps, tally = read_batches(split, read_rules, decoding.timed(decoder.add))
    stats = JobStats()
    for batch in map(decode, record_batches(decoder, reading.steps(steps))):
        if batch.num_rows:
            stats.rows += batch.num_rows
            write(files, changes, (split.topic, split.partition), batch, rows.decoder.deletes)
    stats.decode_s, stats.write_s = decoding.seconds + fields.seconds, writing.seconds
    stats.read_s = reading.seconds - decoding.seconds  # each step reads a batch and decodes it
    stats.add_tally(tally)
    return stats, tally


def upserter(rules: UpsertRules, read_rules: ReadRules) -> partial[UpsertedGroup]:
    """Return `upsert_group` bound to its rules."""
    return partial(upsert_group, rules, read_rules)
