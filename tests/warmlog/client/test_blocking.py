"""The blocking client, against a real broker."""

import gc
import threading
from collections.abc import Iterator
from threading import Thread
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


def test_produce_nowait_returns_deliveries(client: Client) -> None:
    deliveries = [client.produce_nowait("t", value=b"%d" % number) for number in range(1000)]
    stored = [delivery.result() for delivery in deliveries]
    assert [(each.topic, each.partition, each.offset) for each in stored] == [("t", 0, n) for n in range(1000)]
    assert all(delivery.done() for delivery in deliveries)
    assert deliveries[0].exception() is None


def test_records_keep_the_order_of_the_calls(client: Client) -> None:
    client.produce_nowait("t", value=b"1")
    client.produce_nowait("u", value=b"elsewhere")
    client.produce("t", value=b"2")
    client.produce_nowait("t", value=b"3")
    client.produce_many("t", [b"4"])
    client.produce_nowait("t", value=b"5")
    client.flush()
    assert [record.value for record in client.consume("t", until_end=True)] == [b"1", b"2", b"3", b"4", b"5"]


def test_records_of_several_threads_are_stored(client: Client) -> None:
    def produce(key: bytes) -> None:
        for number in range(2000):
            client.produce_nowait("t", key=key, value=b"%d" % number)

    threads = [Thread(target=produce, args=(name,)) for name in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.flush()
    records = list(client.consume("t", until_end=True))
    for name in (b"a", b"b", b"c"):
        assert [record.value for record in records if record.key == name] == [b"%d" % n for n in range(2000)]


def test_flush_raises_an_error_once(client: Client) -> None:
    delivery = client.produce_nowait("bad name", value=b"x")
    with pytest.raises(BrokerError):
        client.flush()
    client.flush()
    assert isinstance(delivery.exception(), BrokerError)
    with pytest.raises(BrokerError):
        delivery.result()


@pytest.mark.parametrize(
    ("arguments", "error"), [({"partition": 7}, ValueError), ({"headers": [("h", "text")]}, TypeError)]
)
def test_an_invalid_record_fails_alone(client: Client, arguments: dict[str, Any], error: type[Exception]) -> None:
    bad = client.produce_nowait("t", value=b"x", **arguments)
    good = client.produce_nowait("t", value=b"x")
    assert good.result().offset == 0
    assert isinstance(bad.exception(), error)
    with pytest.raises(error):
        client.flush()
    with pytest.raises(TypeError, match="must be bytes, bytearray, memoryview or None, not str"):
        client.produce_nowait("t", value="text")  # type: ignore[arg-type]


def test_produce_nowait_is_bounded(warmlog_broker: Broker) -> None:
    with Client(warmlog_broker.native, buffer_bytes=1000, linger_ms=60_000) as client:
        client.produce_nowait("t", value=b"x" * 999)
        client.produce_nowait("t", value=b"x")
        with pytest.raises(BufferFullError):
            client.produce_nowait("t", value=b"x")
        client.flush()
        client.produce_nowait("t", value=b"x")


def test_leaving_the_client_stores_what_was_handed_over(warmlog_broker: Broker) -> None:
    with Client(warmlog_broker.native, linger_ms=60_000) as client:
        deliveries = [client.produce_nowait("t", value=b"x") for _ in range(5000)]
    assert [delivery.result(timeout=0).offset for delivery in deliveries] == list(range(5000))
    with pytest.raises(ClosedError):
        client.produce_nowait("t", value=b"x")


def test_leaving_the_client_by_an_exception_fails_what_is_not_sent(warmlog_broker: Broker) -> None:
    delivery: Any = None
    with pytest.raises(ZeroDivisionError), Client(warmlog_broker.native, linger_ms=60_000) as client:
        delivery = client.produce_nowait("t", value=b"x")
        with pytest.raises(TimeoutError):
            delivery.result(timeout=0)
        with pytest.raises(TimeoutError):
            delivery.exception(timeout=0)
        raise ZeroDivisionError
    assert isinstance(delivery.exception(), ClosedError)


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
