"""One task's rows into batches: which partition each goes to, and when a batch is full.

Owns: the partitions of the topics that are written to, their open batches, leaving out rows that are stored already.
Must not know: Spark, and what becomes of a batch (`sink_sender`).

Invariants:
1. A row with a key goes where Kafka's Java client puts that key; one that names its partition goes there; others go
   to one partition after the other in runs of SPREAD_ROWS, beginning at one that is the task's and its micro-batch's
   own. So where a row goes is a matter of the rows alone: attempts that send the same meet in the same sequences.
2. No batch is larger than `batch_bytes`, uncompressed, but one of a single record; open ones together are no larger
   than half of `buffer_bytes` and what one Arrow batch adds.
3. Sequences follow each other in each partition, from what the broker says is there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from protocol.errors import ErrorCode
from protocol.groups import TopicPartition
from protocol.native.producers import DescribeProducerRequest, DescribeProducerResponse, ProducerPosition
from protocol.records.builder import BatchBuilder
from protocol.request import MetadataRequest
from protocol.response import MetadataResponse, TopicMetadata
from warmlog.client.partitioner import partition_of
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.sink_broker import PatientBroker
from warmlog.pipeline.sink_identity import Identity
from warmlog.pipeline.sink_options import WriteOptions
from warmlog.pipeline.sink_rows import Headers, Rows, row_size_bound
from warmlog.pipeline.sink_sender import Sender, SinkBatch
from warmlog.pipeline.sink_stored import StoredReader, StoredRecords
from warmlog.pipeline.wire import trouble

MAX_SEQUENCE = (1 << 31) - 1
SPREAD_ROWS = 256  # a batch of small rows holds several runs, and a few thousand rows are on all partitions
SLICES = 8  # of a batch: records are added so many at a time that as many additions, or more, fill it

Record: TypeAlias = tuple[int, bytes | None, bytes | None, Headers]  # as the builder takes it


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """What a task has done. `stored_before`: rows that an earlier attempt had stored. `bytes`: of batches as sent."""

    rows: int = 0
    bytes: int = 0
    batches: int = 0
    retries: int = 0
    stored_before: int = 0


class _Place:
    """A partition that is written to, and its open batch."""

    __slots__ = ("builder", "next_sequence", "partition", "topic")

    def __init__(self, topic: str, partition: int, next_sequence: int) -> None:
        self.topic = topic
        self.partition = partition
        self.next_sequence = next_sequence
        self.builder = BatchBuilder()


class _Target:
    """A topic that is written to. `unkeyed`: how many rows without a key or a partition there were so far."""

    __slots__ = ("_first", "name", "places", "stored", "unkeyed")

    def __init__(self, name: str, places: list[_Place], stored: StoredRecords, first: int) -> None:
        self.name = name
        self.places = places
        self.stored = stored
        self.unkeyed = 0
        self._first = first

    def named(self, partition: int) -> _Place:
        """The partition that a row names. Raises PipelineError."""
        if not 0 <= partition < len(self.places):
            last = len(self.places) - 1
            raise PipelineError(f"column partition: topic {self.name} has partitions 0 to {last}, not {partition}")
        return self.places[partition]

    def place_of_unkeyed(self, rows: int = 1) -> _Place:
        """Where the next rows without a key go, all of one run."""
        run = self.unkeyed // SPREAD_ROWS
        self.unkeyed += rows
        return self.places[(self._first + run) % len(self.places)]


class TaskWriter:
    """Writes the rows of one task; `finish` at the end. Not thread-safe. `now_ms`: the time of rows without one."""

    def __init__(
        self, options: WriteOptions, identity: Identity, broker: PatientBroker, *, now_ms: Callable[[], int]
    ) -> None:
        self._options = options
        self._identity = identity
        self._broker = broker
        self._now_ms = now_ms
        self._sender = Sender(broker, identity, options.codec, options.buffer_bytes)
        self._targets: dict[str, _Target] = {}
        self._stored_before = 0

    def add(self, rows: Rows) -> None:
        """Write rows. Raises PipelineError, before any of them is sent where it is a row that is wrong."""
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
        """Return when all is stored. Raises PipelineError."""
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

    # -- where rows go --

    def _add_to(self, target: _Target, records: list[Record], largest: int, *, keyed: bool) -> None:
        """Add records of one topic that name no partition. `keyed`: whether any may have a key."""
        if not keyed:
            self._spread(target, records, largest)
            return
        count, spread = len(target.places), []
        found: list[list[Record]] = [[] for _ in range(count)]
        for record in records:
            key = record[1]
            if key is None:
                spread.append(record)
            else:
                found[partition_of(key, count)].append(record)
        for place, some in zip(target.places, found, strict=True):
            self._fill(place, some, largest)
        self._spread(target, spread, largest)

    def _add_each(self, rows: Rows, records: list[Record]) -> None:
        """Add records that say by themselves where they go, or of which some are stored already."""
        placed: dict[int, tuple[_Place, list[Record]]] = {}
        for at, record in enumerate(records):
            target = self._target(self._topic_of(rows, at))
            partition = rows.partitions[at] if rows.partitions is not None else None
            place = _place_of(target, record[1], partition)
            time = rows.times[at] if rows.times is not None else None
            if not self._is_stored(target, record, partition, time):
                placed.setdefault(id(place), (place, []))[1].append(record)
        for place, some in placed.values():
            self._fill(place, some, rows.largest)

    def _topic_of(self, rows: Rows, at: int) -> str:
        topic = self._options.topic or (rows.topics[at] if rows.topics is not None else None)
        if topic is None:
            raise PipelineError("column topic: a row's topic is null, and there is no option topic")
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

    def _fill(self, place: _Place, records: list[Record], largest: int) -> None:
        """Add records to a partition's batches."""
        step = self._step(largest)
        for at in range(0, len(records), step):
            self._extend(place, records[at : at + step], largest)

    def _spread(self, target: _Target, records: list[Record], largest: int) -> None:
        """Add records without a key to their partitions."""
        at = 0
        while at < len(records):
            more = SPREAD_ROWS - target.unkeyed % SPREAD_ROWS
            some = records[at : at + more]
            self._fill(target.place_of_unkeyed(len(some)), some, largest)
            at += len(some)

    def _step(self, largest: int) -> int:
        return max(1, self._options.batch_bytes // SLICES // largest)

    def _extend(self, place: _Place, some: list[Record], largest: int) -> None:
        if self._is_full(place, some, largest):
            self._close(place)
        place.builder.extend(some)

    def _is_full(self, place: _Place, some: list[Record], largest: int) -> bool:
        """Whether these records might make the batch too large. One is measured; of several the largest is known."""
        builder = place.builder
        if not builder.count:
            return False
        more = len(some) * largest if len(some) > 1 else row_size_bound(*some[0][1:])
        return builder.size + more > self._options.batch_bytes

    def _close(self, place: _Place) -> None:
        """Send the partition's open batch. Raises PipelineError."""
        builder, sequence = place.builder, place.next_sequence
        if sequence + builder.count > MAX_SEQUENCE:
            raise PipelineError(f"{place.topic}-{place.partition}: a task writes at most {MAX_SEQUENCE} records to it")
        encoded = builder.build(
            compression=self._options.codec,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            base_sequence=sequence,
        )
        batch = SinkBatch(
            topic=place.topic,
            partition=place.partition,
            base_sequence=sequence,
            count=builder.count,
            encoded=encoded,
        )
        place.next_sequence += builder.count
        builder.clear()
        self._sender.send(batch)

    def _close_all(self) -> None:
        for target in self._targets.values():
            for place in target.places:
                if place.builder.count:
                    self._close(place)

    def _bound_open(self) -> None:
        places = (place for target in self._targets.values() for place in target.places)
        if sum(place.builder.records_size for place in places) > self._options.buffer_bytes // 2:
            self._close_all()

    # -- topics --

    def _target(self, name: str) -> _Target:
        target = self._targets.get(name)
        if target is None:
            target = self._targets[name] = self._found(name)
        return target

    def _found(self, name: str) -> _Target:
        told = self._metadata(name)
        asked = tuple(TopicPartition(topic=name, partition=each.partition) for each in told.partitions)
        request = DescribeProducerRequest(producer_id=self._identity.producer_id, partitions=asked)
        positions = self._broker.ask(request, DescribeProducerResponse, _check_positions).partitions
        stored, reader = StoredRecords(), StoredReader(self._broker, self._identity)
        places = [_Place(name, position.partition, self._begin(position)) for position in positions]
        for position, place in zip(positions, places, strict=True):
            if place.next_sequence:
                reader.collect(position, stored)
        return _Target(name, places, stored, self._identity.producer_id + self._identity.producer_epoch)

    def _metadata(self, name: str) -> TopicMetadata:
        """The topic, made if it may be. Raises PipelineError."""
        request = MetadataRequest(topics=(name,), auto_create=self._options.auto_create)

        def check(reply: MetadataResponse) -> None:
            (told,) = reply.topics
            if told.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                why = "auto.create.topics.enable is off" if self._options.auto_create else "autoCreate is false"
                raise PipelineError(f"there is no topic {name}, and {why}")
            if told.error:
                raise trouble(told.error, told.message, about=f"topic {name}")

        return self._broker.ask(request, MetadataResponse, check).topics[0]

    def _begin(self, position: ProducerPosition) -> int:
        """The sequence to go on with. Raises PipelineError."""
        name = f"{position.topic}-{position.partition}"
        if position.producer_epoch > self._identity.producer_epoch:
            raise PipelineError(f"{name}: a later micro-batch was written already: this one is outdated")
        return position.last_sequence + 1 if position.producer_epoch == self._identity.producer_epoch else 0

    def _check_left(self, target: _Target) -> None:
        """Raise PipelineError where an earlier attempt has stored what is none of the rows."""
        stored = target.stored
        if not (stored.left or stored.gone) or self._options.on_changed_rows == "send":
            return
        raise PipelineError(
            f"topic {target.name}: an earlier attempt at this task has stored {stored.left + stored.gone} records that"
            f" are none of its rows this time ({stored.gone} of them are gone from the log): the query does not give"
            " the same rows twice, so some may be stored twice (onChangedRows=send lets it be)"
        )


def _check_positions(reply: DescribeProducerResponse) -> None:
    """Raise PipelineError for the first partition that the broker says nothing of."""
    for position in reply.partitions:
        if position.error:
            raise trouble(position.error, position.message, about=f"{position.topic}-{position.partition}")


def _place_of(target: _Target, key: bytes | None, partition: int | None) -> _Place:
    if partition is not None:
        return target.named(partition)
    if key is not None:
        return target.places[partition_of(key, len(target.places))]
    return target.place_of_unkeyed()
