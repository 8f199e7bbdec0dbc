"""A client of each listener of the broker."""

from collections.abc import AsyncIterator

import pytest

from tests.broker.clients import RawClient, Running
from tests.broker.kafka_client import KafkaClient, kafka_client


@pytest.fixture
async def native(broker: Running) -> RawClient:
    return await broker.connect()


@pytest.fixture
async def kafka(broker: Running) -> AsyncIterator[KafkaClient]:
    async with kafka_client(broker.addresses.kafka) as client:
        yield client
