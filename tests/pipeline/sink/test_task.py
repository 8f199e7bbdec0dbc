"""Tasks without Spark: identities, partitions of rows, and sizes of batches."""

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.sink.attempt import (
    PARTITIONS,
    Row,
    Task,
    arrow,
    content,
    contents,
    new_topic,
    numbered,
    options,
    rows_strategy,
    some_identity,
    stored,
    stored_values,
    values,
)
from warmlog.client.blocking import Client
from warmlog.client.producing.partitioner import partition_of
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.sink.attempts import EPOCHS, FIRST_ID, batch_identity, stream_identity
from warmlog.pipeline.sink.rows import rows_of
from warmlog.protocol.records.layout import Codec
from warmlog.testing import Broker


def test_an_identity_is_that_of_the_rows() -> None:
    assert stream_identity("q", 7, 1) == stream_identity("q", 7, 1)
    assert batch_identity("q", 1, 3).producer_id == batch_identity("q", 1).producer_id
    others = {stream_identity("q", 7, 2), stream_identity("p", 7, 1), batch_identity("q", 1), batch_identity("q", 2)}
    assert len({one.producer_id for one in others}) == 4
    first, last, following = (stream_identity("q", batch, 1) for batch in (0, EPOCHS - 1, EPOCHS))
    assert (first.producer_id, last.producer_epoch) == (last.producer_id, 32767)
    assert following.producer_id != first.producer_id
    assert all(FIRST_ID <= one.producer_id < 1 << 63 for one in others)


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
