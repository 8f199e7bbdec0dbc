"""Only what was committed: golden directories of Kafka, and what an index cannot be asked for."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.partitions import read_seen
from tests.pipeline.conftest import DirectoryWriter
from tests.pipeline.local import plan
from warmlog.client.blocking import Client
from warmlog.client.connection import session
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.source.input import plan_batch, read_batches
from warmlog.pipeline.source.options import read_options
from warmlog.pipeline.source.ranges import Bounds
from warmlog.pipeline.source.reading import ReadRules
from warmlog.protocol.records.batch import headers
from warmlog.testing import Broker

TOPIC = "transactional"


@pytest.fixture
def golden(kafka_fixtures: Path, tmp_path: Path) -> Path:
    """Kafka's directory of a topic with aborted transactions, to be changed."""
    copy = tmp_path / "copied" / f"{TOPIC}-0"
    shutil.copytree(kafka_fixtures / "clean" / f"{TOPIC}-0", copy)
    return copy


def committed(path: Path, **options: Any) -> list[int]:
    assigned = json.dumps({TOPIC: [0]})
    return plan(path, topic=None, assign=assigned, isolationLevel="read_committed", **options).offsets()


def seen_offsets() -> list[int]:
    return [record.offset for record in read_seen(f"read_committed/{TOPIC}-0").records]


@pytest.mark.parametrize("splits", [1, 7])
def test_aborted_records_are_left_out_as_kafkas_consumer_leaves_them_out(golden: Path, splits: int) -> None:
    everything = plan(golden, topic=TOPIC).offsets()
    assert committed(golden, minPartitions=splits) == seen_offsets()
    assert len(seen_offsets()) < len(everything)


def without(directory: Path, suffix: str) -> None:
    for path in directory.glob(f"*{suffix}"):
        path.unlink()


def torn(directory: Path) -> None:
    for path in directory.glob("*.txnindex"):
        path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.parametrize(
    "harm",
    [lambda directory: without(directory, ".snapshot"), torn],
    ids=["no snapshots", "torn transaction indexes"],
)
def test_where_files_beside_the_log_fail_the_log_itself_tells(golden: Path, harm: Callable[[Path], None]) -> None:
    harm(golden)
    assert committed(golden) == seen_offsets()


def test_the_index_of_the_last_segment_is_not_believed(golden: Path) -> None:
    """It is written after the log, so beside a broker it may be behind."""
    last = max(golden.glob("*.log"))
    last.with_suffix(".txnindex").write_bytes(b"")
    assert committed(golden) == seen_offsets()


def test_an_open_transaction_ends_what_can_be_read(golden: Path) -> None:
    """The log is cut before its last marker: what follows the first record of that transaction is not decided."""
    logs = sorted(golden.glob("*.log"))
    everything = [header for log in logs for _, header in headers(log.read_bytes())]
    marker = max(header for header in everything if header.is_control)
    assert everything[-1] == marker
    content = logs[-1].read_bytes()
    logs[-1].write_bytes(content[: -marker.size])
    own = [header for header in everything if header.producer_id == marker.producer_id and header is not marker]
    ended = max(header.base_offset for header in own if header.is_control)
    first_open = min(header.base_offset for header in own if header.base_offset > ended)
    assert committed(golden) == [offset for offset in seen_offsets() if offset < first_open]
    assert plan(golden, topic=TOPIC).offsets()[-1] > first_open


@given(first=st.integers(0, 300), size=st.integers(0, 300))
def test_any_range_gives_what_is_committed_in_it(kafka_fixtures: Path, first: int, size: int) -> None:
    end = read_seen(f"read_committed/{TOPIC}-0").end_offset
    begin, until = min(first, end), min(first + size, end)
    place = {
        "startingOffsets": json.dumps({TOPIC: {"0": begin}}),
        "endingOffsets": json.dumps({TOPIC: {"0": until}}),
    }
    found = committed(kafka_fixtures / "clean", minPartitions=3, **place)
    assert found == [offset for offset in seen_offsets() if begin <= offset < until]


def test_a_topic_without_transactions_is_read_as_ever(write_partition: Callable[..., DirectoryWriter]) -> None:
    writer = write_partition(TOPIC)
    writer.segment([b"a"], [b"b"])
    writer.segment([b"c"])
    assert committed(writer.directory) == [0, 1, 2]


def rows_over_the_wire(broker: Broker, topic: str) -> Iterable[int]:
    options = read_options({"bootstrap": broker.native, "topic": topic, "isolationLevel": "read_committed"})
    rules = ReadRules(committed_only=options.committed_only)
    for split in plan_batch(options, Bounds()).splits:
        found: list[int] = []
        for _ in read_batches(split, rules, lambda _, __, header, ___: found.append(header.base_offset))[0]:  # noqa: B023
            pass
        yield from found


@pytest.fixture
def broker_with_golden(kafka_fixtures: Path, tmp_path: Path) -> Iterator[Broker]:
    """A broker with Kafka's directory of a topic with transactions, and a topic without."""
    with Broker(data_dir=tmp_path) as broker, Client(broker.native) as client:
        for topic in ("plain", TOPIC):
            client.create_topic(topic, partitions=1)
        client.produce("plain", value=b"a")
    for path in (kafka_fixtures / "clean" / f"{TOPIC}-0").iterdir():
        if path.name != "partition.metadata":
            shutil.copy(path, tmp_path / f"{TOPIC}-0" / path.name)
    with Broker(data_dir=tmp_path) as broker:
        yield broker


def test_over_the_wire_only_committed_batches_are_read(broker_with_golden: Broker) -> None:
    assert list(rows_over_the_wire(broker_with_golden, "plain")) == [0]
    batches = list(rows_over_the_wire(broker_with_golden, TOPIC))
    assert batches == [offset for offset in seen_offsets() if offset in batches]
    assert batches[0] == seen_offsets()[0]


def test_a_client_of_committed_records_gets_what_kafkas_consumer_gets(broker_with_golden: Broker) -> None:
    def offsets(**options: Any) -> list[int]:
        with Client(broker_with_golden.native) as client:
            return [record.offset for record in client.consume(TOPIC, until_end=True, **options)]

    assert offsets(isolation="read_committed") == seen_offsets()
    assert len(offsets()) > len(seen_offsets())


def test_a_broker_that_cannot_tell_aborted_transactions_is_refused(
    broker_with_golden: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "VERSIONS", (3,))
    with pytest.raises(PipelineError, match="too old"):
        list(rows_over_the_wire(broker_with_golden, TOPIC))
