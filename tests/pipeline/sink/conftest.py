"""A broker and a client for the tests of the sink that need no Spark."""

from collections.abc import Iterator

import pytest

from warmlog.client.blocking import Client
from warmlog.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.native) as connected:
        yield connected
