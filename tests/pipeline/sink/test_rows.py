"""Options, columns and rows of a write: which are accepted, and how rows are converted."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from pyspark import TaskContext

from tests.pipeline.sink.attempt import KINDS, SCHEMA, Row, arrow, new_topic, numbered, options, rows_strategy, stored
from warmlog.client.blocking import Client
from warmlog.pipeline.brokers import Brokers
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.sink.options import WriteOptions, write_options
from warmlog.pipeline.sink.rows import check_columns, rows_of, rows_of_spark
from warmlog.pipeline.sink.writer import BatchWriter
from warmlog.pipeline.source.arrow import arrow_schema
from warmlog.pipeline.source.options import COLUMNS
from warmlog.protocol.records.layout import Codec
from warmlog.testing import Broker


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
    sparks = {"checkpointLocation": "/c", "queryName": "nightly"}
    asked = write_options({"BOOTSTRAP": "h", "Topic": "t", "compression": "zstd", **sparks})
    assert asked == WriteOptions(brokers=Brokers(addresses="h"), topic="t", codec=Codec.ZSTD)


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
    assert write_options(given) == WriteOptions(brokers=Brokers(addresses="h:9091"), topic="t", include_headers=False)
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
