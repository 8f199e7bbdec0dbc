"""A broker that stops and starts again under its clients, at the same address: they go on by themselves."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.conftest import SETTINGS, only_on_warmlog
from tests.clients.libraries import Confluent, Library, Row
from tests.clients.members import Members
from tests.clients.waiting import LIMIT_S, until
from warmlog.testing import Broker

pytestmark = only_on_warmlog

PARTITIONS = range(4)


@pytest.fixture
def broker() -> Iterator[Broker]:
    """One of its own, for the others must not see it go."""
    with Broker(settings=SETTINGS) as broker:
        yield broker


def write(address: str, topic: str) -> set[tuple[int, int]]:
    """A record in each partition."""
    rows = [Row(1_700_000_000_000, None, b"x")]
    offsets = Confluent().produce(address, topic, dict.fromkeys(PARTITIONS, rows))
    return {(partition, offset) for partition, given in offsets.items() for offset in given}


def create(address: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, len(PARTITIONS), 1)])[topic].result()


def test_a_group_goes_on_after_a_restart(broker: Broker, name: str, library: Library) -> None:
    """Members, generation and offsets are read back: nobody is sent anything twice."""
    address = broker.kafka
    create(address, name)
    with Members(address, name, name) as members:
        joined = [members.join(library.name) for _ in range(2)]
        members.until_shared(PARTITIONS, joined)
        written = write(address, name)
        members.until(lambda: members.read() == written, "the records before")
        broker.restart()
        written |= write(address, name)
        members.until(lambda: members.read() == written, "the records after")
        members.until_shared(PARTITIONS, joined)


def test_a_producer_goes_on_after_a_restart(broker: Broker, name: str) -> None:
    """Idempotent: what was in flight is sent again, and stored once, in order."""
    create(broker.kafka, name)
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.kafka, "enable.idempotence": True, "linger.ms": 1})
    numbers = iter(range(100_000))

    def send() -> None:
        number = next(numbers)
        producer.produce(name, b"%d" % number, partition=0, on_delivery=lambda error, _: errors.append(error))
        producer.poll(0.001)

    until(lambda: len(errors) >= 200, send, "records before")
    broker.restart()
    sent_before = len(errors)
    until(lambda: len(errors) >= sent_before + 200, send, "records after")
    assert producer.flush(LIMIT_S) == 0
    assert [error for error in errors if error] == []
    found = Confluent().read(broker.kafka, name)[0]
    assert [row.value for row in found] == [b"%d" % i for i in range(next(numbers))]
