"""The sink without Spark: a task's rows to a real broker, once, whatever comes between."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import TaskContext

from protocol.errors import ErrorCode
from protocol.native.messages import ReceivedFetch
from protocol.records.layout import Codec
from protocol.records.reader import Record, decoded_batches
from protocol.request import FetchPartition, FetchRequest, MetadataRequest, ProduceRequest
from protocol.response import MetadataResponse, ProducedPartition, ProduceResponse
from warmlog.client.blocking import Client
from warmlog.client.producing.partitioner import partition_of
from warmlog.pipeline.broker import BrokerConnection, Retry, RetryingBroker, reply_error
from warmlog.pipeline.errors import PipelineError, UnavailableError
from warmlog.pipeline.sink.attempts import EPOCHS, FETCH_BYTES, FIRST_ID, Identity, batch_identity, stream_identity
from warmlog.pipeline.sink.options import WriteOptions, write_options
from warmlog.pipeline.sink.rows import Rows, check_columns, rows_of, rows_of_spark
from warmlog.pipeline.sink.sender import MAX_IN_FLIGHT, MAX_REQUEST_BYTES, BatchSender, SinkBatch
from warmlog.pipeline.sink.task import TaskReport, TaskWriter
from warmlog.pipeline.sink.writer import BatchWriter
from warmlog.pipeline.source.arrow import arrow_schema
from warmlog.pipeline.source.options import COLUMNS
from warmlog.testing import Broker

NOW_MS = 1_700_000_000_000
PARTITIONS = 3
NAMES = count()
KINDS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
SCHEMA = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
)
blobs = st.none() | st.binary(max_size=6)
rows_strategy = st.lists(
    st.fixed_dictionaries(
        {
            "key": blobs,
            "value": blobs,
            "headers": st.none()
            | st.lists(st.fixed_dictionaries({"key": st.text(max_size=3), "value": blobs}), max_size=2),
            "timestamp": st.none() | st.integers(0, 10**15),
        }
    ),
    max_size=40,
)
Row = dict[str, Any]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.native) as connected:
        yield connected


def new_topic(client: Client, **configs: str) -> str:
    name = f"t{next(NAMES)}"
    client.create_topic(name, partitions=PARTITIONS, configs={key.replace("_", "."): v for key, v in configs.items()})
    return name


def arrow(rows: Sequence[Row]) -> Rows:
    return rows_of(pa.RecordBatch.from_pylist(list(rows), SCHEMA))


def values(*contents: bytes) -> Rows:
    return rows_of(pa.RecordBatch.from_pydict({"value": pa.array(contents, pa.binary())}))


def numbered(first: int, end: int) -> list[Row]:
    return [{"key": b"k%d" % (at % 7) if at % 3 else None, "value": b"v%d" % at} for at in range(first, end)]


def options(broker: Broker, topic: str | None, **given: Any) -> WriteOptions:
    return WriteOptions(bootstrap=broker.native, topic=topic, **given)


class Task:
    """An attempt at a task."""

    def __init__(self, asked: WriteOptions, identity: Identity, patient: RetryingBroker | None = None) -> None:
        self._broker = patient or RetryingBroker(asked.bootstrap, Retry(60), max_reply_bytes=FETCH_BYTES)
        self._writer = TaskWriter(asked, identity, self._broker, now_ms=lambda: NOW_MS)

    def add(self, *rows: Rows) -> "Task":
        for some in rows:
            self._writer.add(some)
        return self

    def flush(self) -> None:
        """All that was added is stored, and then the attempt dies."""
        self._writer._close_all()
        self._writer._sender.flush()
        self.die()

    def die(self) -> None:
        self._broker.disconnect()

    def finish(self) -> TaskReport:
        done = self._writer.finish()
        self.die()
        return done


def patience(clock: Callable[[], float] = time.monotonic) -> Retry:
    return Retry(30, setting="deliveryTimeoutMs", clock=clock, sleep=lambda _: None)


def some_identity() -> Identity:
    return batch_identity(f"w{next(NAMES)}", 0)


def stored(broker: Broker, topic: str) -> list[tuple[int, Record]]:
    """(partition, record) of all that is in a topic."""
    found = []
    with BrokerConnection(broker.native, max_reply_bytes=FETCH_BYTES) as connection:
        (told,) = connection.ask(MetadataRequest(topics=(topic,)), MetadataResponse).topics
        for partition in range(len(told.partitions)):
            offset = 0
            while True:
                asked = FetchPartition(topic=topic, partition=partition, offset=offset, max_bytes=FETCH_BYTES)
                (part,) = connection.ask(FetchRequest(partitions=(asked,), max_wait_ms=0), ReceivedFetch).partitions
                batches = list(decoded_batches(part.records, from_offset=offset))
                if not batches:
                    break
                found += [(partition, record) for _, records in batches for record in records]
                offset = batches[-1][0].next_offset
    return found


def stored_values(broker: Broker, topic: str) -> list[bytes | None]:
    return sorted(record.value or b"" for _, record in stored(broker, topic))


def content(row: Row) -> tuple[Any, ...]:
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    time = NOW_MS if row["timestamp"] is None else row["timestamp"] // 1000
    return row["key"], row["value"], headers, time


def contents(found: Sequence[tuple[int, Record]]) -> Counter[tuple[Any, ...]]:
    return Counter((record.key, record.value, record.headers, record.timestamp) for _, record in found)


# -- options and columns ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_options", "message"),
    [
        ({}, "no broker"),
        ({"bootstrap": "h:x"}, "option bootstrap"),
        ({"bootstrap": "h", "topik": "t"}, "no option 'topik' of a write; did you mean topic"),
        ({"bootstrap": "h", "path": "lake"}, "no option 'path' of a write"),
        ({"bootstrap": "h", "topic": " "}, "option topic"),
        ({"bootstrap": "h", "compression": "zip"}, "option compression: 'zip' is not \"none, gzip"),
        ({"bootstrap": "h", "batchBytes": "0"}, "option batchBytes"),
        ({"bootstrap": "h", "autoCreate": "yes"}, "option autoCreate"),
        ({"bootstrap": "h", "writeBatch": "1"}, "option writeBatch needs writeId"),
        ({"bootstrap": "h", "writeId": "w", "writeBatch": "-1"}, "option writeBatch"),
        ({"bootstrap": "h", "onChangedRows": "skip"}, "option onChangedRows"),
    ],
)
def test_a_wrong_option_is_named(given_options: dict[str, str], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        write_options(given_options)


def test_options_are_read_whatever_their_case_and_sparks_own_are_left_alone() -> None:
    asked = write_options({"BOOTSTRAP": "h", "Topic": "t", "compression": "zstd", "checkpointLocation": "/c"})
    assert asked == WriteOptions(bootstrap="h", topic="t", codec=Codec.ZSTD)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([("key", "string")], "column value is missing"),
        ([("value", "double")], "column value is double: it must be binary or string"),
        ([("value", "string"), ("Key", "int")], "column Key is int"),
        ([("value", "string"), ("keys", "string")], "column keys cannot be written; did you mean key"),
        (
            [("value", "string"), ("timestampType", "int"), ("Header", "string")],
            "column Header cannot be written; did you mean headers",
        ),
        ([("value", "string"), ("VALUE", "string")], "the frame has column value twice"),
        ([("value", "string"), ("headers", "map<string,binary>")], "column headers is map"),
        ([("value", "string"), ("timestamp", "bigint")], "column timestamp is bigint"),
        ([("value", "string"), ("partition", "bigint")], "column partition is bigint"),
        ([("value", "string")], "give option topic or a column topic"),
    ],
)
def test_a_frame_that_is_no_records_is_refused_by_its_column(columns: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        check_columns(columns, topic=None if "option topic" in message else "t")


def test_a_frame_that_was_read_can_be_written_with_what_it_has_besides() -> None:
    """Offsets, timestamp types and columns that a query has added are not written, as by Spark's Kafka sink."""
    read = arrow_schema(COLUMNS)
    columns = [(name, KINDS[name]) for name in read.names]
    check_columns([*columns, ("parsed", "struct<a:int>"), ("price", "double")], topic=None)
    row = dict.fromkeys(read.names) | {"value": b"v", "topic": "t", "partition": 2, "offset": 7, "timestampType": 1}
    batch = pa.RecordBatch.from_pylist([row | {"headers": [{"key": "h", "value": b"1"}]}], read)
    found = rows_of(batch)
    assert (found.values, found.topics, found.partitions, found.headers) == ([b"v"], ["t"], [2], [(("h", b"1"),)])
    assert rows_of(batch, with_headers=False).headers is None
    (plain,) = rows_of_spark([tuple(batch.to_pylist()[0].values())], read.names, with_headers=False)
    assert (plain.values, plain.headers) == ([b"v"], None)


def test_options_of_sparks_kafka_sink_are_taken() -> None:
    given = {"kafka.bootstrap.servers": "h:9091", "topic": "t", "includeHeaders": "false"}
    assert write_options(given) == WriteOptions(bootstrap="h:9091", topic="t", include_headers=False)
    with pytest.raises(PipelineError, match="settings of a Kafka client do not apply here"):
        write_options({**given, "kafka.acks": "1"})


class Context:
    """What a task knows of its Spark."""

    def __init__(self, **properties: str) -> None:
        self._properties = {f"spark.sql.{name.replace('_', '.')}": text for name, text in properties.items()}

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self._properties.get(name)

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return 0


def test_a_write_that_may_be_divided_otherwise_the_next_time_stores_nothing(
    broker: Broker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adaptive query execution, which is on unless it is turned off, may merge the partitions of a shuffle."""
    topic = new_topic(client)
    batch = pa.RecordBatch.from_pylist(numbered(0, 5), SCHEMA)
    writer = BatchWriter(options(broker, topic, write_id="nightly"), "nightly")
    for context in (Context(), Context(adaptive_enabled="true")):
        monkeypatch.setattr(TaskContext, "get", lambda context=context: context)
        with pytest.raises(PipelineError, match=r"option writeId needs spark\.sql\.adaptive\.enabled=false"):
            writer.write(iter([batch]))
    assert stored(broker, topic) == []
    BatchWriter(options(broker, topic), "a new one").write(iter([batch]))
    monkeypatch.setattr(TaskContext, "get", lambda: Context(adaptive_enabled="false"))
    writer.write(iter([batch]))
    writer.write(iter([batch]))
    assert len(stored(broker, topic)) == 10


def test_a_frame_with_every_column_is_taken() -> None:
    kinds = ["varchar(5)", "binary", "array<struct<key:string,value:binary>>", "string", "int", "timestamp"]
    names = ["key", "value", "headers", "topic", "partition", "timestamp"]
    check_columns(list(zip(names, kinds, strict=True)), topic=None)


@given(rows_strategy)
def test_sparks_rows_and_arrow_columns_are_the_same_rows(rows: list[Row]) -> None:
    found = arrow(rows)
    plain = [
        (
            row["key"],
            row["value"],
            [(header["key"], header["value"]) for header in row["headers"] or ()],
            None if row["timestamp"] is None else datetime.fromtimestamp(row["timestamp"] // 1000 / 1000, UTC),
        )
        for row in rows
    ]
    again = list(rows_of_spark(plain, SCHEMA.names))
    assert [one._replace(largest=0) for one in again] == ([found._replace(largest=0)] if rows else [])


def test_slices_and_large_types_of_arrow_are_read() -> None:
    whole = pa.RecordBatch.from_pylist([{"headers": [{"key": "a", "value": b"1"}], "value": b"x"}] * 3, SCHEMA)
    assert rows_of(whole.slice(1, 1)).headers == [(("a", b"1"),)]
    large = pa.RecordBatch.from_pydict({"value": pa.array(["ä", None], pa.large_string())})
    assert rows_of(large).values == ["ä".encode(), None]


def test_a_header_without_a_key_is_told() -> None:
    with pytest.raises(PipelineError, match="column headers"):
        arrow([{"headers": [{"key": None, "value": b"1"}]}])


def test_a_time_that_no_record_can_have_is_told() -> None:
    assert arrow([{"timestamp": -1000}]).times == [-1]  # that of records without one: Kafka's NO_TIMESTAMP
    with pytest.raises(PipelineError, match="column timestamp: -2 ms is before 1970"):
        arrow([{"timestamp": -1001}])
    with pytest.raises(PipelineError, match="column timestamp: -86400000 ms is before 1970"):
        list(rows_of_spark([(b"x", datetime(1969, 12, 31, tzinfo=UTC))], ["value", "timestamp"]))


# -- identities ------------------------------------------------------------------------------------------------------


def test_an_identity_is_that_of_the_rows() -> None:
    assert stream_identity("q", 7, 1) == stream_identity("q", 7, 1)
    assert batch_identity("q", 1, 3).producer_id == batch_identity("q", 1).producer_id
    others = {stream_identity("q", 7, 2), stream_identity("p", 7, 1), batch_identity("q", 1), batch_identity("q", 2)}
    assert len({one.producer_id for one in others}) == 4
    first, last, following = (stream_identity("q", batch, 1) for batch in (0, EPOCHS - 1, EPOCHS))
    assert (first.producer_id, last.producer_epoch) == (last.producer_id, 32767)
    assert following.producer_id != first.producer_id
    assert all(FIRST_ID <= one.producer_id < 1 << 63 for one in others)


# -- writing ---------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    rows=rows_strategy,
    batch_bytes=st.integers(1, 600),
    buffer_bytes=st.integers(1, 4000),
    codec=st.sampled_from(Codec),
)
def test_what_is_written_is_what_is_read(
    broker: Broker, client: Client, rows: list[Row], batch_bytes: int, buffer_bytes: int, codec: Codec
) -> None:
    topic = new_topic(client)
    asked = options(broker, topic, batch_bytes=batch_bytes, buffer_bytes=buffer_bytes, codec=codec)
    done = Task(asked, some_identity()).add(arrow(rows[:15]), arrow(rows[15:])).finish()
    found = stored(broker, topic)
    assert contents(found) == Counter(map(content, rows))
    assert done.rows == len(rows)
    assert all(
        partition == partition_of(record.key, PARTITIONS) for partition, record in found if record.key is not None
    )


def test_rows_of_a_key_keep_their_order_and_others_spread(broker: Broker, client: Client) -> None:
    topic = new_topic(client)
    Task(options(broker, topic, batch_bytes=400), some_identity()).add(arrow(numbered(0, 3000))).finish()
    found = stored(broker, topic)
    for key in {record.key for _, record in found} - {None}:
        numbers = [int((record.value or b"")[1:]) for _, record in found if record.key == key]
        assert numbers == sorted(numbers)
    without = Counter(partition for partition, record in found if record.key is None)
    assert len(without) == PARTITIONS
    assert min(without.values()) >= 256  # of a thousand


def test_rows_say_their_topic_and_partition(broker: Broker, client: Client) -> None:
    first, second = new_topic(client), new_topic(client)
    schema = pa.schema({"value": pa.string(), "topic": pa.string(), "partition": pa.int32()})
    given_rows = [{"value": str(at), "topic": (first, second)[at % 2], "partition": at % 3 or None} for at in range(12)]
    batch = rows_of(pa.RecordBatch.from_pylist(given_rows, schema))
    Task(options(broker, None), some_identity()).add(batch).finish()
    for topic, rest in ((first, 0), (second, 1)):
        found = stored(broker, topic)
        assert sorted(int(record.value or b"") for _, record in found) == list(range(rest, 12, 2))
        assert all(
            partition == int(record.value or b"") % 3 for partition, record in found if int(record.value or b"") % 3
        )
    Task(options(broker, first), some_identity()).add(
        batch
    ).finish()  # as in the connector, the option is above the column
    assert len(stored(broker, first)) == 18


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"value": "x", "topic": None}, "column topic: the topic of a row is null"),
        ({"value": "x", "topic": "here", "partition": 1 << 20}, "column partition: topic here has partitions 0 to"),
        ({"value": "x", "topic": "no topic"}, "no topic"),
    ],
)
def test_a_row_that_goes_nowhere_is_told_before_any_is_sent(
    broker: Broker, client: Client, row: Row, message: str
) -> None:
    client.create_topic("here", partitions=1, if_not_exists=True)
    schema = pa.schema({"value": pa.string(), "topic": pa.string(), "partition": pa.int32()})
    batch = rows_of(pa.RecordBatch.from_pylist([{"value": "y", "topic": "here"}, row], schema))
    task = Task(options(broker, None), some_identity())
    with pytest.raises(PipelineError, match=message):
        task.add(batch)
    task.die()
    assert stored(broker, "here") == []


def test_a_topic_is_made_only_where_it_may_be(broker: Broker) -> None:
    task = Task(options(broker, "absent", auto_create=False), some_identity())
    with pytest.raises(PipelineError, match="topic absent does not exist, and autoCreate is false"):
        task.add(values(b"x"))
    task.die()
    Task(options(broker, "made"), some_identity()).add(values(b"x")).finish()
    assert stored_values(broker, "made") == [b"x"]


def test_batches_that_a_topic_finds_too_large_go_in_halves_and_a_record_is_named(
    broker: Broker, client: Client
) -> None:
    topic = new_topic(client, max_message_bytes="2000")
    contents_given = [b"%04d" % at * 25 for at in range(200)]
    done = Task(options(broker, topic), some_identity()).add(values(*contents_given)).finish()
    assert stored_values(broker, topic) == contents_given
    assert done.retries
    task = Task(options(broker, topic), some_identity()).add(values(b"small", b"x" * 3000))
    with pytest.raises(PipelineError, match=rf"{topic}-\d: a record of 3000 bytes without a key is too large"):
        task.finish()
    task.die()


def test_one_large_row_does_not_make_batches_of_one(broker: Broker, client: Client) -> None:
    topic = new_topic(client)
    done = (
        Task(options(broker, topic, batch_bytes=10_000), some_identity())
        .add(values(*[b"x"] * 500, b"y" * 20_000))
        .finish()
    )
    assert (done.rows, done.batches <= 5) == (501, True)


# -- once ------------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(rows=rows_strategy, data=st.data(), batch_bytes=st.integers(50, 400))
def test_attempts_that_died_and_one_that_did_not_store_each_row_once_in_any_order(
    broker: Broker, client: Client, rows: list[Row], data: st.DataObject, batch_bytes: int
) -> None:
    topic, identity = new_topic(client), some_identity()
    asked = options(broker, topic, batch_bytes=batch_bytes)
    if data.draw(st.booleans()):  # which of two equal rows has a time and which has none, nobody can tell
        rows = [{**row, "timestamp": row["timestamp"] or 0} for row in rows]
    else:
        rows = [{**row, "timestamp": None} for row in rows]
    for _ in range(2):
        cut = data.draw(st.integers(0, len(rows)))
        Task(asked, identity).add(arrow(data.draw(st.permutations(rows))[:cut])).flush()
    done = Task(asked, identity).add(arrow(data.draw(st.permutations(rows)))).finish()
    assert contents(stored(broker, topic)) == Counter(map(content, rows))
    assert done.rows + done.stored_before == len(rows)


def test_records_of_others_in_between_are_none_of_ours(broker: Broker, client: Client) -> None:
    topic, identity = new_topic(client), some_identity()
    for at in range(3):
        Task(options(broker, topic), identity).add(arrow(numbered(0, 40 * (at + 1)))).flush()
        Task(options(broker, topic), some_identity()).add(arrow(numbered(0, 300))).finish()
    done = Task(options(broker, topic), identity).add(arrow(numbered(0, 150))).finish()
    assert (done.rows, done.stored_before) == (30, 120)


def test_a_micro_batch_is_not_the_one_before(broker: Broker, client: Client) -> None:
    topic = new_topic(client)
    for batch_id in (0, 0, 1, 5, 5):
        Task(options(broker, topic), stream_identity("q", batch_id, 0)).add(values(b"a", b"b")).finish()
    assert stored_values(broker, topic) == [b"a"] * 3 + [b"b"] * 3
    late = Task(options(broker, topic), stream_identity("q", 1, 0))
    with pytest.raises(PipelineError, match="a later micro-batch has been written already"):
        late.add(values(b"a"))
    late.die()


def test_rows_that_changed_are_told_or_let_be(broker: Broker, client: Client) -> None:
    topic, identity = new_topic(client), some_identity()
    Task(options(broker, topic), identity).add(values(b"a", b"b", b"c")).flush()
    changed = Task(options(broker, topic), identity).add(values(b"a", b"d"))
    with pytest.raises(PipelineError, match="has stored 2 records that match none of its rows now"):
        changed.finish()
    changed.die()
    assert Task(options(broker, topic, on_changed_rows="send"), identity).add(values(b"a", b"d")).finish().rows == 0
    assert stored_values(broker, topic) == [b"a", b"b", b"c", b"d"]


def test_an_attempt_that_is_overtaken_ends_and_what_it_sent_counts(broker: Broker, client: Client) -> None:
    """A worker that its driver gave up goes on beside the one in its place, whose rows come in another order."""
    topic, identity, one = new_topic(client), some_identity(), {"batch_bytes": 1}
    slow = Task(options(broker, topic, **one), identity).add(values(b"a", b"b"))
    slow._writer._close_all()
    slow._writer._sender.flush()
    other = Task(options(broker, topic, **one), identity).add(values(b"b", b"c"))  # has looked: a and b are there
    slow.add(values(b"d", b"e", b"f", b"g"))
    slow._writer._close_all()
    slow._writer._sender.flush()
    with pytest.raises(PipelineError, match="another attempt at this task"):
        other.add(values(b"e", b"d", b"a", b"f", b"g", b"h")).finish()
    other.die()
    slow.die()
    last = Task(options(broker, topic, **one), identity).add(values(*[b"%c" % at for at in b"hgfedcba"]))
    last.finish()
    assert stored_values(broker, topic) == [b"%c" % at for at in b"abcdefgh"]


@settings(max_examples=20)
@given(data=st.data())
def test_two_attempts_at_a_time_and_one_after_them_store_each_row_once(
    broker: Broker, client: Client, data: st.DataObject
) -> None:
    """Both go through the same rows, each with a key, in orders of their own, until one finds it is not alone."""
    topic, identity = new_topic(client), some_identity()
    asked = options(broker, topic, batch_bytes=data.draw(st.integers(1, 300)))
    rows = [{"key": b"k%d" % (at % 5), "value": b"v%d" % at} for at in range(30)]
    attempts = [(Task(asked, identity), data.draw(st.permutations(rows))) for _ in range(2)]
    for turn in data.draw(st.lists(st.integers(0, 1), max_size=12)):
        task, order = attempts[turn]
        try:
            task.add(arrow(order[:5]))
        except PipelineError:
            break
        del order[:5]
    for task, _ in attempts:
        task.die()
    last = arrow(data.draw(st.permutations(rows)))
    for _ in range(
        5
    ):  # what the others had on its way may come in between: then this one ends, too, and is tried again
        task = Task(asked, identity)
        with suppress(PipelineError):
            task.add(last).finish()
            break
        task.die()
    assert stored_values(broker, topic) == sorted(row["value"] for row in rows)


class Unlucky(RetryingBroker):
    """Loses the connection in place of some replies to produce requests, which the broker has carried out by then."""

    def __init__(self, bootstrap: str, lost: set[int]) -> None:
        super().__init__(bootstrap, Retry(60, sleep=lambda _: None), max_reply_bytes=FETCH_BYTES)
        self._lost = lost
        self._replies = 0

    def connection(self) -> Any:
        connection = super().connection()
        receive: Callable[[Any], Any] = type(connection).receive.__get__(connection)

        def receive_or_not(response_type: Any) -> Any:
            response = receive(response_type)
            if response_type is ProduceResponse:
                self._replies += 1
                if self._replies in self._lost:
                    raise UnavailableError("the connection is lost")
            return response

        connection.receive = receive_or_not  # type: ignore[method-assign]
        return connection


@settings(max_examples=15)
@given(lost=st.sets(st.integers(1, 12)))
def test_lost_replies_store_nothing_twice(broker: Broker, client: Client, lost: set[int]) -> None:
    topic = new_topic(client)
    patient = Unlucky(broker.native, lost)
    given_values = [b"%03d" % at * 10 for at in range(100)]
    done = Task(options(broker, topic, batch_bytes=300), some_identity(), patient).add(values(*given_values)).finish()
    assert stored_values(broker, topic) == given_values
    assert done.rows == 100


def test_a_broker_that_goes_and_comes_back_in_mid_job(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        task = Task(options(broker, "t", batch_bytes=500), some_identity())
        for at in range(4):
            task.add(arrow(numbered(at * 100, at * 100 + 100)))
            broker.restart()
        done = task.finish()
        assert Counter(stored_values(broker, "t")) == Counter(b"v%d" % at for at in range(400))
    assert (done.rows, done.retries > 0) == (400, True)


def test_a_broker_that_does_not_come_is_given_up() -> None:
    clock = count(0, 10)
    patient = RetryingBroker("127.0.0.1:1", patience(lambda: next(clock)))
    task = Task(WriteOptions(bootstrap="127.0.0.1:1", topic="t"), some_identity(), patient)
    with pytest.raises(
        PipelineError, match=r"cannot connect to 127.0.0.1:1: .*; gave up after 30 s \(deliveryTimeoutMs\)"
    ):
        task.add(values(b"x"))


def refusing(refusals: int) -> tuple[list[int], Callable[[MetadataResponse], None]]:
    """A check that finds that a reply cannot count yet, so many times; and how often it was asked."""
    asked: list[int] = []

    def check(reply: MetadataResponse) -> None:
        asked.append(len(reply.topics))
        if len(asked) <= refusals:
            raise reply_error(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is away", about="t-0")

    return asked, check


def test_an_error_that_may_pass_is_waited_for(broker: Broker) -> None:
    asked, check = refusing(3)
    with RetryingBroker(broker.native, patience()) as patient:
        connection = patient.connection()
        patient.ask(MetadataRequest(), MetadataResponse, check)
        assert patient.connection() is connection  # a reply came, so nothing was wrong with it
    assert len(asked) == 4


def test_an_error_that_does_not_pass_is_given_up_whatever_the_broker_replies(broker: Broker) -> None:
    clock = count(0, 10)
    asked, check = refusing(1000)
    with (
        RetryingBroker(broker.native, patience(lambda: next(clock))) as patient,
        pytest.raises(PipelineError, match=r"t-0: the disk is away; gave up after 30 s \(deliveryTimeoutMs\)"),
    ):
        patient.ask(MetadataRequest(), MetadataResponse, check)
    assert len(asked) == 4


class SlowBroker:
    """In place of a RetryingBroker: answers only when it is asked for a reply, and counts what is not answered."""

    def __init__(self) -> None:
        self.retry = Retry()
        self.unanswered: list[ProduceRequest] = []
        self.most_requests = 0
        self.most_bytes = 0

    def connection(self) -> "SlowBroker":
        return self

    def send(self, request: ProduceRequest) -> None:
        self.unanswered.append(request)
        self.most_requests = max(self.most_requests, len(self.unanswered))
        sizes = [len(part.records) for each in self.unanswered for part in each.partitions]
        self.most_bytes = max(self.most_bytes, sum(sizes))

    def receive(self, _: Any) -> ProduceResponse:
        parts = self.unanswered.pop(0).partitions
        return ProduceResponse(
            partitions=tuple(ProducedPartition(topic=part.topic, partition=part.partition) for part in parts)
        )


@pytest.mark.parametrize(
    ("partitions", "buffer_bytes", "most"),
    [(50, 100 << 20, MAX_IN_FLIGHT), (50, 6 << 20, 3), (50, 1, 1), (2, 100 << 20, 2), (1, 100 << 20, 1)],
)
def test_what_is_in_flight_is_bounded_and_of_a_partition_it_is_one(
    partitions: int, buffer_bytes: int, most: int
) -> None:
    slow: Any = SlowBroker()
    sender = BatchSender(slow, some_identity(), Codec.NONE, buffer_bytes)
    for at in range(50):
        batch = SinkBatch(
            topic="t", partition=at % partitions, base_sequence=at, count=1, encoded=bytes(MAX_REQUEST_BYTES)
        )
        sender.send(batch)
    sender.flush()
    assert (slow.most_requests, slow.most_bytes) == (most, most * MAX_REQUEST_BYTES)
    assert (sender.tally.rows, sender.tally.batches) == (50, 50)


def test_a_report_is_a_line_of_json(tmp_path: Path) -> None:
    from warmlog.pipeline.sink.writer import TaskMessage, report

    asked = WriteOptions(bootstrap="h", topic="t", report=str(tmp_path / "report"))
    report(asked, [TaskMessage(TaskReport(rows=2, bytes=70)), TaskMessage(TaskReport(rows=3, bytes=80))], "done", 4)
    report(asked, [None], "failed")
    first, second = map(json.loads, (tmp_path / "report").read_text().splitlines())
    assert (first["rows"], first["bytes"], first["tasks"], first["batch_id"], first["outcome"]) == (
        5,
        150,
        2,
        4,
        "done",
    )
    assert (second["rows"], second["outcome"]) == (0, "failed")
