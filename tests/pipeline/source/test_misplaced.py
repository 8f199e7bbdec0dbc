"""Batches whose base offset was altered, which no CRC notices: an error or left out, never other rows."""

from pathlib import Path

import pytest

from tests.pipeline.conftest import DirectoryWriter, positions
from tests.pipeline.local import plan
from warmlog import Client
from warmlog.pipeline.errors import PipelineError
from warmlog.pipeline.source import remote_reader
from warmlog.pipeline.source.arrow import ArrowDecoder, record_batches
from warmlog.pipeline.source.input import plan_batch, read_batches, rules_of
from warmlog.pipeline.source.options import read_options
from warmlog.pipeline.source.ranges import Bounds
from warmlog.pipeline.source.reading import Tally
from warmlog.protocol.records.batch import headers
from warmlog.testing import Broker

BATCHES, RECORDS = 4, 5  # of each segment, of each batch
BITS = range(63)  # a negative offset is another kind of damage
SEGMENT = range(BATCHES * RECORDS)


def flip(log: Path, batch: int, bit: int) -> bytes:
    """Flip a bit of a batch's base offset; return what the file was."""
    whole = log.read_bytes()
    damaged = bytearray(whole)
    damaged[positions(log)[batch] + 7 - bit // 8] ^= 1 << bit % 8
    log.write_bytes(damaged)
    return whole


@pytest.fixture
def log(write_partition: type[DirectoryWriter]) -> Path:
    """The first of two segments."""
    writer = write_partition(interval=1)
    first, _ = (writer.segment(*[[b"%d" % at] * RECORDS for at in range(BATCHES)]) for _ in range(2))
    return first


@pytest.mark.parametrize("batch", range(BATCHES))
def test_no_flipped_bit_of_a_base_offset_changes_rows(log: Path, batch: int) -> None:
    data = log.parent.parent
    rows = plan(data).read()
    there = [offset for offset in range(2 * len(SEGMENT)) if offset // RECORDS != batch]
    for bit in BITS:
        whole = flip(log, batch, bit)
        with pytest.raises(PipelineError, match="damaged batch"):
            plan(data).read()
        assert plan(data, onCorrupt="skip").offsets() == there, bit
        assert plan(data, onCorrupt="stop").offsets() == there[: batch * RECORDS], bit
        log.write_bytes(whole)
    assert plan(data).read() == rows


def offsets_from(address: str, **given: str) -> list[int]:
    """Read the topic from a broker."""
    return read_from(address, **given)[0]


def read_from(address: str, **given: str) -> tuple[list[int], Tally]:
    """The offsets of the topic, and what the reader counted."""
    options = read_options({"bootstrap": address, "topic": "orders", **given})
    decoder = ArrowDecoder("orders", 0, options.columns)
    (split,) = plan_batch(options, Bounds()).splits
    steps, tally = read_batches(split, rules_of(options), decoder.add)
    offsets = [offset for batch in record_batches(decoder, steps) for offset in batch.column("offset").to_pylist()]
    return offsets, tally


def test_a_flipped_bit_is_noticed_in_what_a_broker_sends(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker, Client(broker.native) as client:
        client.create_topic("orders", partitions=1)
        for at in range(BATCHES):
            client.produce_many("orders", [b"%d" % at] * RECORDS, partition=0)
        (log,) = (tmp_path / "orders-0").glob("*.log")
        batches = [header for _, header in headers(log.read_bytes())]
        for number, batch in list(enumerate(batches))[1:-1]:
            whole = flip(log, number, 3)
            with pytest.raises(PipelineError, match="damaged batch"):
                offsets_from(broker.native)
            there = [offset for offset in SEGMENT if not batch.base_offset <= offset < batch.next_offset]
            assert offsets_from(broker.native, onCorrupt="skip") == there
            assert offsets_from(broker.native, onCorrupt="stop") == there[: batch.base_offset]
            log.write_bytes(whole)
        assert offsets_from(broker.native) == list(SEGMENT)


@pytest.mark.parametrize("count", [2, *(pytest.param(count, marks=pytest.mark.interop) for count in (3, 4))])
def test_wherever_a_reply_ends_damage_counts_once(tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`count` batches fit into a reply."""
    with Broker(data_dir=tmp_path) as broker, Client(broker.native) as client:
        client.create_topic("orders", partitions=1)
        for _ in range(2 * BATCHES):
            client.produce_many("orders", [b"v"] * RECORDS, partition=0)
        (log,) = (tmp_path / "orders-0").glob("*.log")
        batches = [header for _, header in headers(log.read_bytes())]
        monkeypatch.setattr(remote_reader, "FETCH_BYTES", count * batches[0].size + 10)
        for number, batch in list(enumerate(batches))[1:-1]:
            there = [at for at in range(2 * len(SEGMENT)) if not batch.base_offset <= at < batch.next_offset]
            for bit in (0, 1, 2, 3, 4, 40):
                whole = flip(log, number, bit)
                offsets, tally = read_from(broker.native, onCorrupt="skip")
                runs = [(batch.base_offset, batch.next_offset)]
                assert (offsets, len(tally.damaged), tally.damaged_offsets) == (there, 1, runs), (number, bit)
                log.write_bytes(whole)
