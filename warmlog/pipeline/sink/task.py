"""Build batches from the rows of one task: choose the partition of each row, and close batches that are full.

Invariants:
1. A row with a partition is sent there; a row with a key is sent to the partition that Kafka's Java client chooses for
   the key; others rotate through the partitions in runs of SPREAD_ROWS, beginning with one that depends on the task and
   its micro-batch. So attempts with the same rows send them to the same partitions with the same sequences.
2. No batch is larger than `batch_bytes`, uncompressed, unless it is a single record; open batches together take at most
   half of `buffer_bytes` plus one Arrow batch.
3. Sequences are consecutive in each partition, and continue after the stored ones.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from warmlog.client.errors import UnknownTopicError
from warmlog.client.producing.partitioner import partition_of
from warmlog.pipeline.cluster import ClusterConnection
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.retry import Retry
from warmlog.pipeline.sink.attempts import FETCH_BYTES, Identity, StoredReader, StoredRecords, producer_positions
from warmlog.pipeline.sink.options import WriteOptions
from warmlog.pipeline.sink.rows import Headers, Rows, row_size_bound
from warmlog.pipeline.sink.sender import BatchSender, SinkBatch
from warmlog.pipeline.sink.transactions import CompleteTask, TaskTransaction, Write
from warmlog.protocol.native.producers import ProducerPosition
from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.records.builder import BatchBuilder
from warmlog.protocol.records.codec import rows_by_partition

MAX_SEQUENCE = (1 << 31) - 1
SPREAD_ROWS = 256  # a batch of small rows holds several runs, and a few thousand rows reach all partitions
SLICES = 8  # per batch: records are added one slice at a time

Record: TypeAlias = tuple[int, bytes | None, bytes | None, Headers]  # headers in the builder's form


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """Result of a task. `stored_before`: rows stored by earlier attempts. `bytes`: bytes of batches as sent."""

    rows: int = 0
    bytes: int = 0
    batches: int = 0
    retries: int = 0
    stored_before: int = 0


class _OpenBatch:
    """The open batch of a partition."""

    __slots__ = ("builder", "next_sequence", "partition", "topic")

    def __init__(self, topic: str, partition: int, next_sequence: int) -> None:
        self.topic = topic
        self.partition = partition
        self.next_sequence = next_sequence
        self.builder = BatchBuilder()


class _Target:
    """A topic to write to. `unkeyed`: number of rows so far without key or partition."""

    __slots__ = ("_first", "name", "open", "stored", "unkeyed")

    def __init__(self, name: str, batches: list[_OpenBatch], stored: StoredRecords, first: int) -> None:
        self.name = name
        self.open = batches
        self.stored = stored
        self.unkeyed = 0
        self._first = first

    def of_partition(self, partition: int) -> _OpenBatch:
        """Return the batch of the partition named by a row. Raises PipelineError."""
        if not 0 <= partition < len(self.open):
            last = len(self.open) - 1
            raise PipelineError(f"column partition: topic {self.name} has partitions 0 to {last}, not {partition}")
        return self.open[partition]

    def of_unkeyed(self, rows: int = 1) -> _OpenBatch:
        """Return the batch for the next rows without a key, all of one run."""
        run = self.unkeyed // SPREAD_ROWS
        self.unkeyed += rows
        return self.open[(self._first + run) % len(self.open)]


class TaskWriter:
    """Writes the rows of one task; `finish` at the end. Not thread-safe. `now_ms`: clock for rows without a time."""

    def __init__(
        self, options: WriteOptions, identity: Identity, cluster: ClusterConnection, *, now_ms: Callable[[], int]
    ) -> None:
        self._options = options
        self._identity = identity
        self._cluster = cluster
        self._now_ms = now_ms
        self._sender = BatchSender(cluster, identity, options.codec, options.buffer_bytes)
        self._targets: dict[str, _Target] = {}
        self._stored_before = 0

    def add(self, rows: Rows) -> None:
        """Write rows. Raises PipelineError, for an invalid row before any of them is sent."""
        now_ms, count = self._now_ms(), len(rows.values)
        times = [now_ms] * count if rows.times is None else [now_ms if time is None else time for time in rows.times]
        headers: Sequence[Headers] = rows.headers or [()] * count
        records: list[Record] = list(zip(times, rows.keys or [None] * count, rows.values, headers, strict=True))
        plain = self._options.topic is not None and rows.partitions is None
        target = self._target(self._options.topic) if plain and self._options.topic is not None else None
        if target is not None and not target.stored.left:
            self._add_to(target, records, rows.largest, keyed=rows.keys is not None)
        else:
            self._add_each(rows, records)
        self._bound_open()

    def finish(self) -> TaskReport:
        """Send the remaining batches, and wait until all batches are stored. Raises PipelineError."""
        self._close_all()
        self._sender.flush()
        for target in self._targets.values():
            self._check_left(target)
        tally = self._sender.tally
        return TaskReport(
            rows=tally.rows,
            bytes=tally.bytes,
            batches=tally.batches,
            retries=tally.retries,
            stored_before=self._stored_before,
        )

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of the rows."""
        return tuple(self._targets)

    @property
    def first_offsets(self) -> dict[TopicPartition, int]:
        """The first stored offset in each partition."""
        return self._sender.first_offsets

    # -- partitions of rows --

    def _add_to(self, target: _Target, records: list[Record], largest: int, *, keyed: bool) -> None:
        """Add records of one topic without partitions. `keyed`: whether any may have a key."""
        if not keyed:
            self._spread(target, records, largest)
            return
        *by_partition, spread = rows_by_partition(records, len(target.open))
        for batch, some in zip(target.open, by_partition, strict=True):
            self._fill(batch, some, largest)
        self._spread(target, spread, largest)

    def _add_each(self, rows: Rows, records: list[Record]) -> None:
        """Add records that may name a topic or partition, or may already be stored."""
        chosen: dict[int, tuple[_OpenBatch, list[Record]]] = {}
        for at, record in enumerate(records):
            target = self._target(self._topic_of(rows, at))
            partition = rows.partitions[at] if rows.partitions is not None else None
            batch = _batch_of(target, record[1], partition)
            time = rows.times[at] if rows.times is not None else None
            if not self._is_stored(target, record, partition, time):
                chosen.setdefault(id(batch), (batch, []))[1].append(record)
        for batch, some in chosen.values():
            self._fill(batch, some, rows.largest)

    def _topic_of(self, rows: Rows, at: int) -> str:
        topic = self._options.topic or (rows.topics[at] if rows.topics is not None else None)
        if topic is None:
            raise PipelineError("column topic: the topic of a row is null, and there is no option topic")
        return topic

    def _is_stored(self, target: _Target, record: Record, partition: int | None, time: int | None) -> bool:
        if not target.stored.left:
            return False
        _, key, value, headers = record
        if not target.stored.match(target.name, (key, value, headers), partition=partition, time=time):
            return False
        self._stored_before += 1
        return True

    # -- batches --

    def _fill(self, batch: _OpenBatch, records: list[Record], largest: int) -> None:
        """Add records to a partition's batches."""
        step = self._step(largest)
        for at in range(0, len(records), step):
            self._extend(batch, records[at : at + step], largest)

    def _spread(self, target: _Target, records: list[Record], largest: int) -> None:
        """Add records without a key to their partitions."""
        at = 0
        while at < len(records):
            more = SPREAD_ROWS - target.unkeyed % SPREAD_ROWS
            some = records[at : at + more]
            self._fill(target.of_unkeyed(len(some)), some, largest)
            at += len(some)

    def _step(self, largest: int) -> int:
        return max(1, self._options.batch_bytes // SLICES // largest)

    def _extend(self, batch: _OpenBatch, some: list[Record], largest: int) -> None:
        if self._is_full(batch, some, largest):
            self._close(batch)
        batch.builder.extend(some)

    def _is_full(self, batch: _OpenBatch, some: list[Record], largest: int) -> bool:
        """Return whether the batch might be too large with these records, by their size bounds."""
        builder = batch.builder
        if not builder.count:
            return False
        more = len(some) * largest if len(some) > 1 else row_size_bound(*some[0][1:])
        return builder.size + more > self._options.batch_bytes

    def _close(self, batch: _OpenBatch) -> None:
        """Send an open batch. Raises PipelineError."""
        builder, sequence = batch.builder, batch.next_sequence
        if sequence + builder.count > MAX_SEQUENCE:
            raise PipelineError(f"{batch.topic}-{batch.partition}: a task writes at most {MAX_SEQUENCE} records to it")
        encoded = builder.build(
            compression=self._options.codec,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            base_sequence=sequence,
            attributes=self._identity.attributes,
        )
        closed = SinkBatch(
            topic=batch.topic,
            partition=batch.partition,
            base_sequence=sequence,
            count=builder.count,
            encoded=encoded,
        )
        batch.next_sequence += builder.count
        builder.clear()
        self._sender.send(closed)

    def _close_all(self) -> None:
        for target in self._targets.values():
            for batch in target.open:
                if batch.builder.count:
                    self._close(batch)

    def _bound_open(self) -> None:
        batches = (batch for target in self._targets.values() for batch in target.open)
        if sum(batch.builder.records_size for batch in batches) > self._options.buffer_bytes // 2:
            self._close_all()

    # -- topics --

    def _target(self, name: str) -> _Target:
        target = self._targets.get(name)
        if target is None:
            target = self._targets[name] = self._look_up(name)
        return target

    def _look_up(self, name: str) -> _Target:
        partitions = self._partition_count(name)
        first = self._identity.producer_id + self._identity.producer_epoch
        if self._identity.transactional_id is not None:  # its epoch is new, so no records are stored under it
            batches = [_OpenBatch(name, partition, 0) for partition in range(partitions)]
            return _Target(name, batches, StoredRecords(), first)
        positions = producer_positions(self._cluster, self._identity, name)
        stored, reader = StoredRecords(), StoredReader(self._cluster, self._identity)
        batches = [_OpenBatch(name, position.partition, self._next_sequence(position)) for position in positions]
        for position, batch in zip(positions, batches, strict=True):
            if batch.next_sequence:
                reader.collect(position, stored)
        return _Target(name, batches, stored, first)

    def _partition_count(self, name: str) -> int:
        """Return the number of partitions; create a missing topic if allowed.

        Raises PipelineError.
        """
        try:
            topic = self._cluster.call(lambda client: client.refresh(name, auto_create=self._options.auto_create))
        except PipelineError as error:
            if isinstance(error.__cause__, UnknownTopicError):
                why = "auto.create.topics.enable is off" if self._options.auto_create else "autoCreate is false"
                raise PipelineError(f"topic {name} does not exist, and {why}") from error
            raise
        return topic.partitions

    def _next_sequence(self, position: ProducerPosition) -> int:
        """Return the sequence to continue with. Raises PipelineError."""
        name = f"{position.topic}-{position.partition}"
        if position.producer_epoch > self._identity.producer_epoch:
            raise PipelineError(f"{name}: a later micro-batch has been written already")
        return position.last_sequence + 1 if position.producer_epoch == self._identity.producer_epoch else 0

    def _check_left(self, target: _Target) -> None:
        """Raise PipelineError if an earlier attempt has stored records that match no row."""
        stored = target.stored
        if not (stored.left or stored.gone) or self._options.on_changed_rows == "send":
            return
        raise PipelineError(
            f"topic {target.name}: an earlier attempt at this task has stored {stored.left + stored.gone} records that"
            f" match none of its rows now ({stored.gone} of them are deleted from the log): the query does not return"
            " the same rows each time, so some may be stored twice (onChangedRows=send accepts that)"
        )


def write_task(options: WriteOptions, identity: Identity, rows: Iterable[Rows]) -> tuple[TaskReport, tuple[str, ...]]:
    """Write the rows of one task, and wait until they are stored; return the topics too. Raises PipelineError."""
    with open_cluster(options) as cluster:
        report, writer = _written(options, identity, cluster, rows)
        return report, writer.topics


def write_in_transaction(
    options: WriteOptions, write: Write, task: int, rows: Iterable[Rows]
) -> tuple[TaskReport, CompleteTask]:
    """Write the rows of one task in a transaction, and leave it open.

    Raises PipelineError. Any exception aborts the transaction.
    """
    with open_cluster(options) as cluster:
        transaction = TaskTransaction(cluster, write, task, options.transaction_timeout_ms)
        if write.is_repeatable and transaction.is_decided():
            if task == 0:
                transaction.hasten()
            report = TaskReport(stored_before=sum(len(some.values) for some in rows))
            return report, CompleteTask(write=write, is_decided=True)
        identity = transaction.begin()
        try:
            report, writer = _written(options, identity, cluster, rows)
            return report, CompleteTask(
                write=write, transaction=transaction.complete(writer.first_offsets, report.rows)
            )
        except BaseException:
            with suppress(PipelineError):
                transaction.abandon()
            raise


def open_cluster(options: WriteOptions) -> ClusterConnection:
    """Return the target cluster of a write; it connects with its first request."""
    retry = Retry(options.delivery_timeout_ms / 1000, setting="deliveryTimeoutMs")
    return ClusterConnection(options.brokers, retry, max_reply_bytes=FETCH_BYTES)


def _written(
    options: WriteOptions, identity: Identity, cluster: ClusterConnection, rows: Iterable[Rows]
) -> tuple[TaskReport, TaskWriter]:
    writer = TaskWriter(options, identity, cluster, now_ms=lambda: time.time_ns() // 1_000_000)
    for some in rows:
        writer.add(some)
    return writer.finish(), writer


def _batch_of(target: _Target, key: bytes | None, partition: int | None) -> _OpenBatch:
    if partition is not None:
        return target.of_partition(partition)
    if key is not None:
        return target.open[partition_of(key, len(target.open))]
    return target.of_unkeyed()
