"""The blocking client, against a real broker."""

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from warmlog import (
    BrokerError,
    BufferFullError,
    Client,
    ClosedError,
    ConnectError,
    TopicExistsError,
    UnknownTopicError,
)
from warmlog.client import blocking
from warmlog.testing import Broker


@pytest.fixture
def client(warmlog_broker: Broker) -> Iterator[Client]:
    with Client(warmlog_broker.native) as client:
        yield client


def test_produce_and_consume(client: Client) -> None:
    assert client.produce("t", key=b"k", value=b"v", headers={"a": b"1"}, timestamp=5) == ("t", 0, 0, 5)
    (record,) = client.consume("t", until_end=True)
    assert (record.key, record.value, record.headers, record.timestamp) == (b"k", b"v", (("a", b"1"),), 5)


def test_many_records_are_produced_and_consumed(client: Client) -> None:
    values = [b"%d" % number for number in range(20_000)]
    assert client.produce_many("t", iter(values)).records == 20_000
    assert [record.value for record in client.consume("t", until_end=True)] == values
    batches = list(client.consume_batches("t", 15_000, until_end=True))
    assert [record.offset for batch in batches for record in batch] == list(range(15_000, 20_000))


def test_records_of_a_slow_source_are_sent_at_once(client: Client) -> None:
    client.create_topic("t")
    reader = client.consume("t")

    def source() -> Iterator[bytes]:
        for number in range(5):
            yield b"%d" % number
            assert next(reader).value == b"%d" % number  # stored before the source yields the next one

    blocking.SLOW_CHUNK_S, before = -1.0, blocking.SLOW_CHUNK_S
    try:
        assert client.produce_many("t", source()).records == 5
    finally:
        blocking.SLOW_CHUNK_S = before


def test_an_error_of_the_source_is_raised(client: Client) -> None:
    def source() -> Iterator[bytes]:
        yield b"x"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        client.produce_many("t", source())
    client.produce("t", value=b"still works")


def test_an_error_of_the_broker_is_raised_and_stops_the_source(client: Client) -> None:
    taken = 0

    def source() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"x" * 2_000_000

    with pytest.raises(BrokerError):
        client.produce_many("t", source())
    assert taken < 100
    with pytest.raises(TypeError):
        client.produce_many("t", ["text"])


def test_produce_nowait_returns_futures(client: Client) -> None:
    futures = [client.produce_nowait("t", value=b"%d" % number) for number in range(100)]
    client.flush()
    offsets = [future.result(timeout=0).offset for future in futures]
    assert sorted(offsets) == list(range(100))


def test_flush_raises_an_error_once(client: Client) -> None:
    future = client.produce_nowait("bad name", value=b"x")
    with pytest.raises(BrokerError):
        client.flush()
    client.flush()
    assert isinstance(future.exception(), BrokerError)


def test_produce_nowait_is_bounded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "MAX_UNACKNOWLEDGED", 0)
    with pytest.raises(BufferFullError):
        client.produce_nowait("t", value=b"x")


def test_leaving_the_loop_closes_the_stream(client: Client) -> None:
    client.produce_many("t", [b"x"] * 10)
    gc.disable()
    try:
        for _ in client.consume("t"):
            break
    finally:
        gc.enable()
    records = client.consume("t")
    assert next(records).offset == 0
    del records
    batches = client.consume_batches("t")
    assert len(next(batches)) == 10


def test_a_stream_ends_with_its_client(warmlog_broker: Broker) -> None:
    with Client(warmlog_broker.native) as client:
        client.produce("t", value=b"x")
        records = client.consume("t")
        next(records)
    with pytest.raises(ClosedError):
        next(records)


def test_threads_may_share_a_client(client: Client) -> None:
    client.create_topic("t")

    def work() -> None:
        for _ in range(20):
            client.produce("t", value=b"x")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.offsets("t") == {0: 80}


def test_topics(client: Client) -> None:
    made = client.create_topic("t", partitions=2, configs={"segment.ms": "1000000"})
    assert made is not None
    assert made.partitions == 2
    with pytest.raises(TopicExistsError):
        client.create_topic("t")
    assert client.create_topic("t", if_not_exists=True) is None
    assert [topic.name for topic in client.list_topics()] == ["t"]
    assert client.topic("t").partitions == 2
    client.alter_topic("t", partitions=3)
    assert len(client.describe_topics("t")[0].partitions) == 3
    assert len(client.metadata(["t"]).topics[0].partitions) == 3
    assert client.offsets("t", "beginning", partitions=[2]) == {2: 0}
    client.delete_topic("t")
    with pytest.raises(UnknownTopicError):
        client.describe_topics("t")


def test_invalid_arguments_are_rejected_at_once(client: Client) -> None:
    with pytest.raises(ValueError, match="start must be"):
        client.consume("t", "soon")
    with pytest.raises(ValueError, match="acks"):
        Client(acks=7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="host:port"):
        Client("a:b:c")


def test_the_client_must_be_entered() -> None:
    client = Client("127.0.0.1:1")
    with pytest.raises(ClosedError, match="use it as"):
        client.produce("t", value=b"x")
    with pytest.raises(ConnectError), client:
        pass
    assert threading.active_count() == len(threading.enumerate())


def test_leaving_ends_the_clients_threads(warmlog_broker: Broker) -> None:
    before: set[Any] = set(threading.enumerate())
    with Client(warmlog_broker.native) as client:
        client.produce("t", value=b"x")
    with pytest.raises(ClosedError):
        client.list_topics()
    assert not any(thread.name.startswith("warmlog-client") for thread in set(threading.enumerate()) - before)
