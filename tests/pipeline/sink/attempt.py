"""Attempts at a task of the sink, the rows that they write, and what a topic has stored."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from warmlog.client.blocking import Client
from warmlog.pipeline.brokers import Brokers
from warmlog.pipeline.cluster import ClusterConnection
from warmlog.pipeline.offsets import fetch_once
from warmlog.pipeline.retry import Retry
from warmlog.pipeline.sink.attempts import FETCH_BYTES, Identity, batch_identity
from warmlog.pipeline.sink.options import WriteOptions
from warmlog.pipeline.sink.rows import Rows, rows_of
from warmlog.pipeline.sink.task import TaskReport, TaskWriter
from warmlog.protocol.records.reader import Record, decoded_batches
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
    return WriteOptions(brokers=Brokers(addresses=broker.native), topic=topic, **given)


class Task:
    """An attempt at a task."""

    def __init__(self, asked: WriteOptions, identity: Identity, cluster: ClusterConnection | None = None) -> None:
        self._cluster = cluster or ClusterConnection(asked.brokers, Retry(60), max_reply_bytes=FETCH_BYTES)
        self._writer = TaskWriter(asked, identity, self._cluster, now_ms=lambda: NOW_MS)

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
        self._cluster.close()

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
    with ClusterConnection(Brokers(addresses=broker.native), Retry(), max_reply_bytes=FETCH_BYTES) as cluster:
        for partition in range(cluster.call(lambda client: client.topic(topic)).partitions):
            offset = 0
            while True:
                part = fetch_once(cluster, topic, partition, offset, max_bytes=FETCH_BYTES)
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


def wait_for_markers(client: Client) -> None:
    """Wait until the markers of all decided transactions are written: a commit is answered before."""
    while any(listed.state.startswith("Prepare") for listed in client.list_transactions()):
        pass
