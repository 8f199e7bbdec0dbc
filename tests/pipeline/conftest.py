"""One Spark for all tests here, and directories to read: written by our broker, by Kafka, or by hand.

Where there is no Java the tests that need Spark are skipped with the reason; with CI=true that is a failure.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.broker.stored_topics import stored_topics
from tests.pipeline.class_archive import use_archive
from tests.requires import lacks
from warmlog.broker.log.index.offset import OffsetIndex
from warmlog.broker.log.index.time import TimeIndex
from warmlog.broker.metadata.topic import Topic
from warmlog.client.blocking import Client
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.session import check_spark
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import Codec
from warmlog.testing import Broker

NOW_MS = 1_700_000_000_000
SPARK_TIMEOUT_S = 900
Rows = Sequence[tuple[bytes | None, bytes | None]]


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark takes its time to start, and much of it on a machine that is busy: `make interop` runs what needs it."""
    for item in items:
        if {"can_run_spark", "spark"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))
            item.add_marker(pytest.mark.interop)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker that also keeps records of the past."""
    with Broker(settings={"log.retention.ms": -1}) as running:
        yield running


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.native) as connected:
        yield connected


@pytest.fixture(scope="session")
def can_run_spark() -> None:
    """For tests that start a Spark of their own."""
    try:
        check_spark()
    except PipelineError as error:
        lacks(error)
    use_archive()


@pytest.fixture(scope="session")
def spark(can_run_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from tests.pipeline.session import spark_session

    session = spark_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def on_this_spark(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run on the Spark that is there."""
    from warmlog.pipeline import session

    @contextmanager
    def the_one(_job: str, _master: str | None = None) -> Iterator[Any]:
        yield spark

    monkeypatch.setattr(session, "spark_session", the_one)


def register(data_dir: Path, topic: str, partitions: int, topic_id: UUID | None = None) -> None:
    """Note in a broker's metadata that a topic has at least so many partitions; with an id, that it is a new one."""
    with stored_topics(data_dir) as stored:
        if topic_id is not None:
            stored.delete(topic)
            stored.create(Topic(name=topic, partitions=partitions, id=topic_id))
            return
        known = {each.name: each.partitions for each in stored.load()}
        if topic not in known:
            stored.create(Topic(name=topic, partitions=partitions))
        elif known[topic] < partitions:
            stored.grow(topic, partitions)


class DirectoryWriter:
    """Writes a partition as a broker would, segment by segment, with the indexes that go with it."""

    def __init__(self, data_dir: Path, topic: str = "orders", partition: int = 0, *, interval: int = 256) -> None:
        self.directory = data_dir / f"{topic}-{partition}"
        self.directory.mkdir(parents=True)
        register(data_dir, topic, partition + 1)
        self.next_offset = 0
        self._interval = interval

    def segment(self, *batches: Sequence[bytes], compression: Codec = Codec.NONE, first_ms: int = NOW_MS) -> Path:
        """A segment of these batches, each given by its values; a record a millisecond."""
        base = self.next_offset
        path = self.directory / f"{base:020d}.log"
        offsets, times, log, since = bytearray(), bytearray(), bytearray(), 0
        for values in batches:
            rows = [
                (first_ms + self.next_offset - base + at, b"k%d" % at, value, ()) for at, value in enumerate(values)
            ]
            batch = build_batch(rows, base_offset=self.next_offset, compression=compression)
            self.next_offset += len(rows)
            if since > self._interval:
                offsets += OffsetIndex.entry.pack(self.next_offset - 1 - base, len(log))
                since = 0
            since += len(batch)
            log += batch
        times += TimeIndex.entry.pack(first_ms + self.next_offset - 1 - base, self.next_offset - 1 - base)
        path.write_bytes(log)
        path.with_suffix(".index").write_bytes(offsets)
        path.with_suffix(".timeindex").write_bytes(times)
        return path


def plain(form: Any) -> dict[str, dict[str, int]]:
    """A stream's offsets without topic ids and leader epochs."""
    return {
        topic: {partition: one["offset"] for partition, one in listed["partitions"].items()}
        for topic, listed in form.items()
    }


def positions(path: Path) -> list[int]:
    """Where the batches of a log file begin."""
    return [position for position, _ in headers(path.read_bytes())]


@pytest.fixture
def write_partition(tmp_path: Path) -> Callable[..., DirectoryWriter]:
    def make(topic: str = "orders", partition: int = 0, **options: Any) -> DirectoryWriter:
        return DirectoryWriter(tmp_path / "data", topic, partition, **options)

    return make
