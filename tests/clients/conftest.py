"""The broker that client libraries talk to, and fresh topics on it.

`WARMLOG_CLIENTS_BOOTSTRAP=host:port` holds the same tests against another broker: real Kafka (`make interop` does
that), so that a test is known to be right before warmlog is compared with it.
"""

import itertools
import logging
import os
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.libraries import LIBRARIES, Library
from tests.clients.waiting import until
from warmlog.testing import Broker

SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "offsets.topic.num.partitions": 1,
    "log.retention.ms": -1,  # records here are of 2023
}

OTHER_BOOTSTRAP = os.environ.get("WARMLOG_CLIENTS_BOOTSTRAP", "")

only_on_warmlog = pytest.mark.skipif(bool(OTHER_BOOTSTRAP), reason="what real Kafka does otherwise")

#: (topic's partitions, settings) -> its name
NewTopicFactory = Callable[..., str]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests with brokers of their own when the others run against another broker."""
    if OTHER_BOOTSTRAP:
        kept = [item for item in items if "bootstrap" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


# Not for the whole run: tests of other files make calls of the process fail, which ends a broker that still runs in it.
@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """The address of the broker."""
    if OTHER_BOOTSTRAP:
        yield OTHER_BOOTSTRAP
        return
    with Broker(settings=SETTINGS) as broker:
        yield broker.kafka


@pytest.fixture(autouse=True)
def _no_error_in_the_broker(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A request that failed for a defect of ours is answered, and a client may even go on: the log knows."""
    yield
    records = caplog.get_records("setup") + caplog.get_records("call")
    assert [record.getMessage() for record in records if record.levelno >= logging.ERROR and is_ours(record)] == []


def is_ours(record: logging.LogRecord) -> bool:
    return record.name.split(".")[0] == "warmlog"


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})


NUMBERS = itertools.count()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test of this run or of an earlier one has, for a topic or a group."""
    return f"{request.node.originalname}-{os.getpid()}-{next(NUMBERS)}".replace("[", "-").replace("]", "")[:200]


@pytest.fixture
def new_topic(admin: AdminClient, name: str) -> NewTopicFactory:
    numbers = itertools.count()

    def create(partitions: int = 1, **config: str) -> str:
        topic = f"{name}-{next(numbers)}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        for future in admin.create_topics([NewTopic(topic, partitions, 1, config=settings)]).values():
            future.result()
        until(lambda: is_known(admin, topic), lambda: None, f"{topic} in the broker's metadata")
        return topic

    return create


def is_known(admin: AdminClient, topic: str) -> bool:
    """Real Kafka has created a topic before each of its parts knows it."""
    return admin.describe_topics(TopicCollection([topic]))[topic].exception() is None


@pytest.fixture(params=LIBRARIES, ids=[each.name for each in LIBRARIES])
def library(request: pytest.FixtureRequest) -> Library:
    return request.param
