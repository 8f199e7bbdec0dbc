"""A broker, a client, and records to copy."""

from collections.abc import Iterator

import pytest

from warmlog.client.blocking import Client
from warmlog.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"log.retention.ms": -1}) as running:
        yield running


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.native) as connected:
        yield connected


@pytest.fixture(scope="module")
def source(client: Client) -> None:
    """Produce 600 records to the topic "source" of two partitions."""
    client.create_topic("source", partitions=2)
    client.produce_many("source", [(b"k%d" % (at % 5), b"%d" % at) for at in range(600)])
