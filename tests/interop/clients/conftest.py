"""Real Kafka and warmlog, side by side, for clients that are programs of their own.

What is expected of warmlog is expected of Kafka in the same test: so the test is known to be right.
"""

import logging
from collections.abc import Iterator

import pytest

from interop.class_archive import archive_all
from interop.kafka_node import SETTINGS as KAFKA_SETTINGS
from interop.kafka_node import WIRE_VERSION, KafkaNode, MissingToolError
from tests.requires import lacks
from warmlog.testing import Broker

SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "group.streams.initial.rebalance.delay.ms": 0,
    "group.streams.min.session.timeout.ms": 1_000,
    "group.streams.session.timeout.ms": 2_000,
    "group.streams.min.heartbeat.interval.ms": 100,
    "group.streams.heartbeat.interval.ms": 300,
    "offsets.topic.num.partitions": 1,
    "offsets.retention.check.interval.ms": 86_400_000,  # empty groups stay, however long the tests run
    "log.retention.ms": -1,  # records here are of 2023
    "auto.create.topics.enable": "true",
}


@pytest.fixture(scope="session", autouse=True)
def _kafka_tools() -> None:
    """Not everything here needs Java: what does asks for `java_tools` or for Kafka."""


@pytest.fixture(scope="session")
def java_tools() -> None:
    try:
        archive_all()
    except MissingToolError as error:
        lacks(error)


@pytest.fixture(scope="session")
def kafka(java_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Real Kafka's address."""
    data = tmp_path_factory.mktemp("kafka") / "data"
    with KafkaNode(data, settings={**KAFKA_SETTINGS, **SETTINGS}) as node:
        yield node.bootstrap


@pytest.fixture(scope="module")
def fresh_kafka(java_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Kafka of the version whose messages warmlog speaks, for the topics and groups of one module."""
    data = tmp_path_factory.mktemp("fresh-kafka") / "data"
    with KafkaNode(data, settings={**KAFKA_SETTINGS, **SETTINGS}, version=WIRE_VERSION) as node:
        yield node.bootstrap


@pytest.fixture(scope="module")
def fresh_warmlog() -> Iterator[str]:
    """Our address, for the topics and groups of one module."""
    with Broker(settings=SETTINGS) as broker:
        yield broker.kafka


@pytest.fixture(scope="session")
def warmlog() -> Iterator[str]:
    """Our address."""
    with Broker(settings=SETTINGS) as broker:
        yield broker.kafka


@pytest.fixture(scope="session", params=["kafka", "warmlog"])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """Both, one after the other."""
    address: str = request.getfixturevalue(request.param)
    return address


@pytest.fixture(autouse=True)
def _no_error_in_the_broker(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    records = caplog.get_records("setup") + caplog.get_records("call")
    ours = [each for each in records if each.name.startswith(("warmlog.broker.", "warmlog.protocol."))]
    assert [each.getMessage() for each in ours if each.levelno >= logging.ERROR] == []
