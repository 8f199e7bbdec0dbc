"""What a running broker stored, judged by Kafka's tools after its stop."""

from pathlib import Path

import pytest

from interop.kafka_node import dump
from tests.interop.storage.judging import files_below, findings
from warmlog import Client, Message
from warmlog.protocol.records.layout import Codec
from warmlog.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

SETTINGS = {
    "log.segment.bytes": 16384,
    "log.index.interval.bytes": 512,
    "log.index.size.max.bytes": 4096,
    "num.partitions": 2,
}
RECORD_COUNT = 3000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a broker that clients wrote to with every codec, stopped cleanly."""
    data = tmp_path_factory.mktemp("broker") / "data"
    with Broker(data_dir=data, settings=SETTINGS) as broker:
        for codec in Codec:
            with Client(broker.native, compression=codec.name.lower(), batch_bytes=8192) as client:
                client.produce_many(f"by-{codec.name.lower()}", messages())
    return data


def messages() -> list[Message]:
    return [
        Message(b"value %d %s" % (i, b"x" * (i % 97)), b"key-%d" % (i % 50), {"number": b"%d" % i})
        for i in range(RECORD_COUNT)
    ]


def test_kafka_finds_nothing_wrong_with_segments_that_clients_wrote(data: Path) -> None:
    logs = files_below(data, ".log")
    dumps = dump(["--deep-iteration", "--files", log] for log in logs)
    assert findings(dumps) == []
    for codec in Codec:
        outputs = [
            said.output for log, said in zip(logs, dumps, strict=True) if f"by-{codec.name.lower()}-" in str(log)
        ]
        assert len(outputs) > 2, "two partitions, and no roll"
        assert sum(output.count("\n| offset: ") for output in outputs) == RECORD_COUNT
        assert f"compresscodec: {codec.name.lower()}" in outputs[0]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_kafka_finds_nothing_wrong_with_indexes_of_a_broker(data: Path, suffix: str) -> None:
    indexes = files_below(data, suffix)
    assert indexes
    assert findings(dump(["--files", path] for path in indexes)) == []
    sane = dump(["--index-sanity-check", "--files", path] for path in indexes)
    assert findings(sane) == []
    assert [said.output.splitlines()[-1] for said in sane] == [f"{path} passed sanity check." for path in indexes]
