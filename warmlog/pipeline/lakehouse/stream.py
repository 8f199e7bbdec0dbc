"""A table as the sink of a Spark stream, through `foreachBatch`.

    from warmlog.pipeline.lakehouse.stream import TableSink
    stream = spark.readStream.format("warmlog").options(path="data", topic="orders", startingOffsets="earliest").load()
    stream.writeStream.foreachBatch(TableSink("lake/orders")).option("checkpointLocation", "lake/checkpoint").start()

1. Tasks write the rows of a micro-batch as files and describe them; the driver commits the files as the job does.
2. Spark repeats a micro-batch after a failure, even if it is committed. Rows below the table's positions are then
   omitted: the files are written again without them.
3. Rows of a partition must arrive in the order of their offsets, as the source reads them. A shuffle is an error.
4. With `upsert=True` a micro-batch is upserted as the job upserts a batch; changes are beside the table's files.
"""

import json
import logging
import pickle
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from warmlog.pipeline.brokers import BROKERS_TABLE, parse_brokers
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.arrangement.sorting import check_partitions
from warmlog.pipeline.lakehouse.arrangement.spec import wanted_of
from warmlog.pipeline.lakehouse.committing import Batch, Committer
from warmlog.pipeline.lakehouse.digest import RowDigest
from warmlog.pipeline.lakehouse.receipts import Proof, Receipt, Runs, Span, all_runs, new_id, runs_of
from warmlog.pipeline.lakehouse.schemas.catalog import SchemaCatalog
from warmlog.pipeline.lakehouse.schemas.columns import check_columns
from warmlog.pipeline.lakehouse.schemas.dead_letters import LetterWriter
from warmlog.pipeline.lakehouse.schemas.decoding import DecodeRules, SchemaKey
from warmlog.pipeline.lakehouse.schemas.formats import formats_of
from warmlog.pipeline.lakehouse.table import Table
from warmlog.pipeline.lakehouse.target import open_table
from warmlog.pipeline.lakehouse.upserts.changes import (
    Changes,
    ChangeWriter,
    UpsertRules,
    check_needed,
    key_type_of,
    write_changed,
)
from warmlog.pipeline.lakehouse.writing import (
    DEFAULT_FILE_BYTES,
    FileSequence,
    NewFile,
    ParquetRules,
    RowWriter,
    WriteRules,
)
from warmlog.pipeline.options import OptionTexts
from warmlog.pipeline.session import check_libraries
from warmlog.pipeline.source.offsets import Position
from warmlog.pipeline.source.options import COLUMNS
from warmlog.protocol.partitions import TopicPartition

_log = logging.getLogger(__name__)

Proofs = dict[TopicPartition, list[Proof]]


class TableSink:
    """Appends micro-batches to a Delta table, or with a catalog to an Iceberg table, each row exactly once.

    With `upsert=True` the newest record of each key of a partition is its row, and records without a value delete it.

    `target`, `catalog`, `warehouse`, `storage`, `partition_by` and `sort_by` are as for `warmlog pipeline table`; so
    are `formats`, with the names of the arguments of `formats_of`: `value_format="avro"`, `value_schema="order.avsc"`.
    `brokers`: options of the source for the brokers of dead letters, such as `{"bootstrap": "127.0.0.1:9091"}`. Frames
    must have the columns topic, partition and offset, and only columns of the data source. Raises PipelineError; when
    called, also OSError.
    """

    def __init__(
        self,
        target: str,
        *,
        catalog: str | None = None,
        warehouse: str | None = None,
        storage: Mapping[str, str] | None = None,
        partition_by: Iterable[str] = (),
        sort_by: Iterable[str] = (),
        compression: str = "zstd",
        file_bytes: int = DEFAULT_FILE_BYTES,
        brokers: Mapping[str, str] | None = None,
        **formats: Any,
    ) -> None:
        self._target = target
        self._where: dict[str, Any] = {"catalog": catalog, "warehouse": warehouse, "storage": storage}
        self._wanted = wanted_of(partition_by, sort_by)
        self._compression = compression
        self._file_bytes = file_bytes
        given = parse_brokers(OptionTexts(brokers or {}, BROKERS_TABLE, "of brokers"))
        self._formats = formats_of(**formats, brokers=given)
        if self._formats.upsert:
            check_libraries("duckdb", extra="lakehouse")
        self._has_warned = False
        if self._formats.dead_letters is not None:
            self._formats.dead_letters.check()

    def __call__(self, frame: Any, batch_id: int) -> None:
        """Append or upsert a frame. `batch_id` is not used: offsets determine which rows are already in the table."""
        unknown = [name for name in frame.columns if name not in COLUMNS]
        if unknown:
            raise PipelineError(f"the stream has columns that the source does not have: {', '.join(unknown)}")
        columns = tuple(name for name in COLUMNS if name in frame.columns)
        check_columns(columns, topics=2)
        if self._formats.upsert:
            check_needed(columns)
        schemas = SchemaCatalog(self._formats, columns)
        table = open_table(self._target, schemas.layout.plain, wanted=self._wanted, **self._where)
        table.create(schemas.known_schema(table) if table.is_arranged else None)
        committer = Committer(table)
        known: dict[TopicPartition, Position] = {}
        with ExitStack() as after:
            while True:
                after.close()  # deletes the changes of an attempt that is repeated
                table.refresh()
                self._check_mode(table)
                decode = schemas.rules(table)
                table.plan_columns(decode.schema)
                rules = self._rules(table, decode)
                written = _written(frame.select(*columns), rules, {key: at.offset for key, at in known.items()})
                after.callback(written.changes.delete)
                try:
                    written.check_order()
                    check_partitions(len({file.partition for file in written.files}), rules.arrangement)
                except PipelineError:
                    committer.discard(written.files)
                    raise
                if written.unknown:
                    committer.discard(written.files)
                    schemas.learn(written.unknown)
                    continue
                proofs, positions = written.proofs, table.positions(written.proofs)
                if any(key in positions and listed[0].first < positions[key].offset for key, listed in proofs.items()):
                    committer.discard(written.files)
                    known |= positions
                    _log.warning("micro-batch %d is in %s, at least in part; leaving that out", batch_id, table.name)
                    continue
                if not proofs:
                    return
                batch = Batch(receipt=written.receipt(positions, decode), files=written.files)
                if self._formats.upsert:
                    batch = self._upserted(frame.sparkSession, table, committer, batch, written.changes)
                if committer.commit(batch.receipt, batch.files, batch.replaced):
                    return
                known |= table.positions(proofs)

    def _check_mode(self, table: Table) -> None:
        """Raise PipelineError if the table has rows of the other mode."""
        if self._formats.upsert:
            from warmlog.pipeline.lakehouse.upserts.commits import check_upserted

            check_upserted(table)
        elif table.is_upserted:
            raise PipelineError(f"{table.name} has one row for each key: write to it with TableSink(..., upsert=True)")

    def _rules(self, table: Table, decode: DecodeRules) -> WriteRules:
        rules = {**self._file_rules(table), "schema": table.schema(), "decode": decode}
        return UpsertRules(changes=table.store(), **rules) if self._formats.upsert else WriteRules(**rules)

    def _file_rules(self, table: Table) -> dict[str, Any]:
        """Return the arguments of ParquetRules that are the same for all files of the table."""
        return {
            "store": table.store(),
            "compression": self._compression,
            "file_bytes": self._file_bytes,
            "arrangement": table.arrangement(),
        }

    def _upserted(self, session: Any, table: Table, committer: Committer, batch: Batch, changes: Changes) -> Batch:
        """Return what to commit for the records of a micro-batch. Raises PipelineError, OSError."""
        from warmlog.pipeline.lakehouse.upserts.commits import UpsertCommits
        from warmlog.pipeline.lakehouse.upserts.scratch import scratch_directory
        from warmlog.pipeline.runner import LocalRunner, SparkRunner

        run = SparkRunner(session) if hasattr(session, "sparkContext") else LocalRunner()  # Connect has no RDDs
        rules = ParquetRules(schema=table.full_schema(), **self._file_rules(table))
        commits = UpsertCommits(table, committer, has_warned=self._has_warned)
        with scratch_directory() as scratch:
            made = commits.upserted(run, rules, batch, changes, scratch)
        self._has_warned = commits.has_warned
        return made


@dataclass(slots=True)
class _Written:
    """What the tasks of a micro-batch have written. `changes`: of upserts, none otherwise."""

    changes: Changes
    proofs: Proofs = field(default_factory=dict)
    files: list[NewFile] = field(default_factory=list)
    unknown: set[SchemaKey] = field(default_factory=set)
    dead: list[tuple[TopicPartition, Runs]] = field(default_factory=list)

    def check_order(self) -> None:
        """Raise PipelineError if tasks have rows of the same offsets."""
        for (topic, partition), listed in self.proofs.items():
            if any(proof.end > following.first for proof, following in pairwise(listed)):
                raise _shuffled(topic, partition)

    def receipt(self, positions: Mapping[TopicPartition, Position], decode: DecodeRules) -> Receipt:
        """Return the receipt. Rows have no topic id and no leader epoch; a known topic id is kept."""
        spans = {}
        for key, listed in self.proofs.items():
            before = positions.get(key)
            end = Position(offset=listed[-1].end, topic_id=None if before is None else before.topic_id)
            spans[key] = Span(first=listed[0].first, end=end)
        formats = decode.layout.formats
        return Receipt(
            id=new_id(),
            spans=spans,
            rows=sum(proof.rows for listed in self.proofs.values() for proof in listed),
            files=tuple(file.name for file in self.files),
            columns=tuple(decode.schema.names),
            proofs={} if formats.upsert else {key: tuple(listed) for key, listed in self.proofs.items()},
            formats=formats.form(),
            dead_letters=all_runs(self.dead),
        )


def _written(frame: Any, rules: WriteRules, known: Mapping[TopicPartition, int]) -> _Written:
    """Write a frame's rows, starting at the known positions; return the results. Raises PipelineError."""
    from warmlog.pipeline.runner import worker_errors

    with worker_errors():
        results = frame.mapInArrow(partial(_write, rules, known), "result string").collect()
    forms = [json.loads(row["result"]) for row in results]
    names = tuple(form["changes"] for form in forms if form["changes"] is not None)
    written = _Written(Changes(store=rules.store, names=names, key_type=key_type_of(rules.schema)))
    for form in forms:
        written.files += pickle.loads(b64decode(form["files"]))  # noqa: S301 - from this job's tasks, as all of Spark's
        written.unknown |= set(map(tuple, form["unknown"]))
        written.dead += [((topic, partition), tuple(map(tuple, runs))) for (topic, partition), runs in form["dead"]]
        for topic, partition, *proof in form["proofs"]:
            written.proofs.setdefault((topic, partition), []).append(Proof(*proof))
    for listed in written.proofs.values():
        listed.sort()
    return written


def _write(rules: WriteRules, known: Mapping[TopicPartition, int], batches: Iterable[Any]) -> Iterator[Any]:
    """Write the rows of a task, and yield one row that describes the files. Runs in a worker."""
    import pyarrow as pa

    from warmlog.pipeline.source.arrow import arrow_schema

    schema = arrow_schema(rules.decode.layout.source)
    writers: dict[TopicPartition, RowWriter] = {}
    digests: dict[TopicPartition, tuple[int, int, RowDigest]] = {}
    changes = ChangeWriter(rules.changes, key_type_of(rules.schema)) if isinstance(rules, UpsertRules) else None
    columns = () if changes is not None else rules.decode.schema.names  # rows of upserts are not proved by digests
    with (
        LetterWriter(rules.decode.layout.formats.dead_letters) as letters,
        changes or nullcontext(),
        FileSequence(rules) as files,
    ):
        for batch in batches:
            for key, rows in _by_partition(batch.cast(schema), known):
                offsets = rows.column("offset")
                first, last, digest = digests.get(key, (offsets[0].as_py(), -1, RowDigest(columns)))
                digests[key] = first, _last(offsets, last, key), digest
                writer = writers.setdefault(key, RowWriter(rules.decode, key, letters))
                decoded = writer.decode(rows)
                if decoded.num_rows:
                    digest.add(decoded)
                    if changes is None:
                        files.write(decoded)
                    else:
                        write_changed(files, changes, key, decoded, writer.decoder.deletes)
        files.finish()
    form = {
        "files": b64encode(pickle.dumps(files.complete)).decode(),  # partitions have values of any type
        "changes": None if changes is None else changes.name,
        "unknown": [schema for writer in writers.values() for schema in writer.decoder.unknown],
        "dead": [(key, runs_of(writer.decoder.dead)) for key, writer in writers.items()],
        "proofs": [
            (*key, first, last + 1, digest.rows, digest.hexdigest()) for key, (first, last, digest) in digests.items()
        ],
    }
    yield pa.RecordBatch.from_pydict({"result": [json.dumps(form)]})


def _by_partition(batch: Any, known: Mapping[TopicPartition, int]) -> Iterator[tuple[TopicPartition, Any]]:
    """Yield the new rows of each partition; usually there is one."""
    import pyarrow as pa
    from pyarrow import compute

    pairs = pa.Table.from_batches([batch.select(["topic", "partition"])])
    for pair in pairs.group_by(["topic", "partition"]).aggregate([]).to_pylist():
        key = pair["topic"], pair["partition"]
        mask = compute.and_(
            compute.equal(batch.column("partition"), key[1]), compute.equal(batch.column("topic"), key[0])
        )
        if key in known:
            mask = compute.and_(mask, compute.greater_equal(batch.column("offset"), known[key]))
        rows = batch.filter(mask)
        if rows.num_rows:
            yield key, rows


def _last(offsets: Any, before: int, key: TopicPartition) -> int:
    """Return the last offset. Raises PipelineError unless offsets increase, starting above `before`."""
    import numpy as np

    numbers = offsets.to_numpy(zero_copy_only=False)
    if numbers[0] <= before or (np.diff(numbers) <= 0).any():
        raise _shuffled(*key)
    return int(numbers[-1])


def _shuffled(topic: str, partition: int) -> PipelineError:
    return PipelineError(
        f"rows of {topic}-{partition} are out of order or duplicated: write the stream in the order in which it is read"
    )
