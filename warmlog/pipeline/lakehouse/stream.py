"""A table as the sink of a Spark stream, through `foreachBatch`.

    from warmlog.pipeline.lakehouse.stream import TableSink
    stream = spark.readStream.format("warmlog").options(path="data", topic="orders", startingOffsets="earliest").load()
    stream.writeStream.foreachBatch(TableSink("lake/orders")).option("checkpointLocation", "lake/checkpoint").start()

1. Tasks write the rows of a micro-batch as files and describe them; the driver commits the files as the job does.
2. Spark repeats a micro-batch after a failure, even if it is committed. Rows below the table's positions are then
   omitted: the files are written again without them.
3. Rows of a partition must arrive in the order of their offsets, as the source reads them. A shuffle is an error.
"""

import json
import logging
import pickle
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from warmlog.pipeline.brokers import BROKERS_TABLE, parse_brokers
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.lakehouse.arrangement.sorting import check_partitions
from warmlog.pipeline.lakehouse.arrangement.spec import wanted_of
from warmlog.pipeline.lakehouse.committing import Committer
from warmlog.pipeline.lakehouse.digest import RowDigest
from warmlog.pipeline.lakehouse.receipts import Proof, Receipt, Runs, Span, all_runs, new_id, runs_of
from warmlog.pipeline.lakehouse.schemas.catalog import SchemaCatalog
from warmlog.pipeline.lakehouse.schemas.columns import check_columns
from warmlog.pipeline.lakehouse.schemas.dead_letters import LetterWriter
from warmlog.pipeline.lakehouse.schemas.decoding import SchemaKey
from warmlog.pipeline.lakehouse.schemas.formats import formats_of
from warmlog.pipeline.lakehouse.target import open_table
from warmlog.pipeline.lakehouse.writing import DEFAULT_FILE_BYTES, FileSequence, NewFile, RowWriter, WriteRules
from warmlog.pipeline.options import OptionTexts
from warmlog.pipeline.source.offsets import Position
from warmlog.pipeline.source.options import COLUMNS
from warmlog.protocol.partitions import TopicPartition

_log = logging.getLogger(__name__)

Proofs = dict[TopicPartition, list[Proof]]


class TableSink:
    """Appends micro-batches to a Delta table, or with a catalog to an Iceberg table, each row exactly once.

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
            raise PipelineError("a stream of Spark cannot upsert: warmlog pipeline table --upsert does")
        if self._formats.dead_letters is not None:
            self._formats.dead_letters.check()

    def __call__(self, frame: Any, batch_id: int) -> None:
        """Append a frame. `batch_id` is not used, since offsets determine which rows are already in the table."""
        unknown = [name for name in frame.columns if name not in COLUMNS]
        if unknown:
            raise PipelineError(f"the stream has columns that the source does not have: {', '.join(unknown)}")
        columns = tuple(name for name in COLUMNS if name in frame.columns)
        check_columns(columns, topics=2)
        schemas = SchemaCatalog(self._formats, columns)
        table = open_table(self._target, schemas.layout.plain, wanted=self._wanted, **self._where)
        table.create(schemas.known_schema(table) if table.is_arranged else None)
        committer = Committer(table)
        known: dict[TopicPartition, Position] = {}
        while True:
            table.refresh()
            if table.is_upserted:
                raise PipelineError(f"{table.name} has one row for each key, which a stream of Spark cannot continue")
            decode = schemas.rules(table)
            table.plan_columns(decode.schema)
            rules = WriteRules(
                store=table.store(),
                decode=decode,
                schema=table.schema(),
                compression=self._compression,
                file_bytes=self._file_bytes,
                arrangement=table.arrangement(),
            )
            offsets = {key: at.offset for key, at in known.items()}
            proofs, files, lacking, dead = _written(frame.select(*columns), rules, offsets)
            try:
                check_partitions(len({file.partition for file in files}), rules.arrangement)
            except PipelineError:
                committer.discard(files)
                raise
            if lacking:
                committer.discard(files)
                schemas.learn(lacking)
                continue
            positions = table.positions(proofs)
            if any(key in positions and listed[0].first < positions[key].offset for key, listed in proofs.items()):
                committer.discard(files)
                known |= positions
                _log.warning("micro-batch %d is in %s, at least in part; leaving that out", batch_id, table.name)
                continue
            receipt = _receipt(proofs, files, positions)
            receipt = replace(
                receipt, columns=tuple(decode.schema.names), formats=self._formats.form(), dead_letters=all_runs(dead)
            )
            if not proofs or committer.commit(receipt, files):
                return
            known |= table.positions(proofs)


def _receipt(proofs: Proofs, files: list[NewFile], positions: Mapping[TopicPartition, Position]) -> Receipt:
    """Return the receipt of a micro-batch. Rows have no topic id and no leader epoch; a known topic id is kept."""
    spans = {}
    for key, listed in proofs.items():
        before = positions.get(key)
        end = Position(offset=listed[-1].end, topic_id=None if before is None else before.topic_id)
        spans[key] = Span(first=listed[0].first, end=end)
    return Receipt(
        id=new_id(),
        spans=spans,
        rows=sum(proof.rows for listed in proofs.values() for proof in listed),
        files=tuple(file.name for file in files),
        proofs={key: tuple(listed) for key, listed in proofs.items()},
    )


def _written(
    frame: Any, rules: WriteRules, known: Mapping[TopicPartition, int]
) -> tuple[Proofs, list[NewFile], set[SchemaKey], list[tuple[TopicPartition, Runs]]]:
    """Write a frame's rows, starting at the known positions; return the results. Raises PipelineError."""
    from warmlog.pipeline.runner import worker_errors

    with worker_errors():
        results = frame.mapInArrow(partial(_write, rules, known), "result string").collect()
    proofs: Proofs = {}
    files: list[NewFile] = []
    unknown: set[SchemaKey] = set()
    dead: list[tuple[TopicPartition, Runs]] = []
    for row in results:
        form = json.loads(row["result"])
        files += pickle.loads(b64decode(form["files"]))  # noqa: S301 - from this job's tasks, as all that Spark returns
        unknown |= set(map(tuple, form["unknown"]))
        dead += [((topic, partition), tuple(map(tuple, runs))) for (topic, partition), runs in form["dead"]]
        for topic, partition, *proof in form["proofs"]:
            proofs.setdefault((topic, partition), []).append(Proof(*proof))
    for (topic, partition), listed in proofs.items():
        listed.sort()
        if any(proof.end > following.first for proof, following in pairwise(listed)):
            raise _shuffled(topic, partition)
    return proofs, files, unknown, dead


def _write(rules: WriteRules, known: Mapping[TopicPartition, int], batches: Iterable[Any]) -> Iterator[Any]:
    """Write the rows of a task, and yield one row that describes the files. Runs in a worker."""
    import pyarrow as pa

    from warmlog.pipeline.source.arrow import arrow_schema

    schema = arrow_schema(rules.decode.layout.source)
    writers: dict[TopicPartition, RowWriter] = {}
    digests: dict[TopicPartition, tuple[int, int, RowDigest]] = {}
    with LetterWriter(rules.decode.layout.formats.dead_letters) as letters, FileSequence(rules) as files:
        for batch in batches:
            for key, rows in _by_partition(batch.cast(schema), known):
                offsets = rows.column("offset")
                names = rules.decode.schema.names
                first, last, digest = digests.get(key, (offsets[0].as_py(), -1, RowDigest(names)))
                digests[key] = first, _last(offsets, last, key), digest
                decoded = writers.setdefault(key, RowWriter(rules.decode, key, letters)).decode(rows)
                if decoded.num_rows:
                    digest.add(decoded)
                    files.write(decoded)
        files.finish()
    form = {
        "files": b64encode(pickle.dumps(files.complete)).decode(),  # partitions have values of any type
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
