"""Brokers for stacks of other people's software (`make stacks`): one that is killed and comes back, and three."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from interop.kafka_node import KafkaNode, MissingToolError, build
from interop.warmlog_nodes import WarmlogNode, WarmlogNodes
from tests.broker.cluster.etcd_process import etcd
from tests.requires import lacks

SETTINGS = {
    "group.min.session.timeout.ms": 100,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "log.retention.ms": -1,
    "auto.create.topics.enable": "true",
}
KILLS = 4
UPTIME_S = 4.0


@pytest.fixture(scope="session")
def java_tools() -> None:
    try:
        build()
    except MissingToolError as error:
        lacks(error)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[WarmlogNode]:
    """One broker, which keeps its ports."""
    one = WarmlogNode(1, tmp_path, SETTINGS)
    one.start()
    yield one
    one.kill()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmlogNodes]:
    """Three brokers."""
    directory = tmp_path_factory.mktemp("nodes")
    settings = {**SETTINGS, "num.partitions": 4}
    with etcd(directory / "etcd") as (store,), WarmlogNodes(directory, store.url, settings=settings) as made:
        yield made


@pytest.fixture
def kafka(java_tools: None, tmp_path: Path) -> Iterator[KafkaNode]:
    """Real Kafka."""
    with KafkaNode(tmp_path / "kafka") as made:
        yield made


@contextmanager
def killed(node: WarmlogNode) -> Iterator[threading.Event]:
    """Kill the broker and start it again within the block, `KILLS` times; the event is set after the last start."""
    ended, is_over = threading.Event(), threading.Event()

    def run() -> None:
        for _ in range(KILLS):
            if ended.wait(UPTIME_S):
                return
            node.kill()
            node.start()
        is_over.set()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            yield is_over
        finally:
            ended.set()
        running.result()
