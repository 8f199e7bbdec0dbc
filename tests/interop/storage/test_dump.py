"""Kafka's DumpLogSegments over directories that we wrote: it finds nothing wrong, and sees what we put in."""

import re

import pytest

from interop.kafka_node import dump
from tests.interop.storage.directories import Row, Written
from tests.interop.storage.judging import files_below, findings
from warmlog.broker.log.producers.snapshot import decode_snapshot

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

RECORD = re.compile(
    r"^\| offset: (\d+) CreateTime: (\d+) keySize: (-?\d+) valueSize: (-?\d+) sequence: -?\d+ headerKeys: \[(.*?)\]"
    r"(?: key: (.*?))?(?: payload: (.*))?$",
    re.MULTILINE,
)


def expected_fields(offset: int, row: Row) -> tuple[str, ...]:
    """A row as the dump's record line has it; no key or value is told by its size of -1."""
    timestamp, key, value, headers = row
    sizes = [str(-1 if field is None else len(field)) for field in (key, value)]
    names = ",".join(name for name, _ in headers)
    return (str(offset), str(timestamp), *sizes, names, (key or b"").decode(), (value or b"").decode())


def test_kafka_finds_nothing_wrong_with_our_segments_and_reads_every_record(written: list[Written]) -> None:
    logs = files_below(written[0].directory.parent, ".log")
    dumps = dump(["--deep-iteration", "--print-data-log", "--files", log] for log in logs)
    assert findings(dumps) == []
    for each in written:
        outputs = [said.output for log, said in zip(logs, dumps, strict=True) if log.parent == each.directory]
        assert len(outputs) > 1, f"{each.topic} never rolled"
        assert not any("isvalid: false" in output for output in outputs)
        seen = [found for output in outputs for found in RECORD.findall(output)]
        assert seen == [expected_fields(offset, row) for offset, row in sorted(each.rows.items())]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_kafka_finds_every_entry_of_our_indexes_true_of_the_log(written: list[Written], suffix: str) -> None:
    indexes = files_below(written[0].directory.parent, suffix)
    assert {path.parent for path in indexes} == {each.directory for each in written}
    dumps = dump(["--files", path] for path in indexes)
    assert findings(dumps) == []
    for path, said in zip(indexes, dumps, strict=True):
        entry_size = {".index": 8, ".timeindex": 12}[suffix]
        assert len(re.findall(r"offset: \d+", said.output)) == path.stat().st_size / entry_size


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_our_indexes_pass_kafkas_sanity_check(written: list[Written], suffix: str) -> None:
    indexes = files_below(written[0].directory.parent, suffix)
    dumps = dump(["--index-sanity-check", "--files", path] for path in indexes)
    assert findings(dumps) == []
    for path, said in zip(indexes, dumps, strict=True):
        assert f"{path} passed sanity check." in said.output


PRODUCER = re.compile(
    r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) currentTxnFirstOffset: (\S+) "
    r"lastTimestamp: (\d+) firstSequence: (-?\d+) lastSequence: (-?\d+) lastOffset: (-?\d+) offsetDelta: (-?\d+) "
    r"timestamp: (\d+)"
)


def test_kafka_reads_our_snapshots_of_producers_as_we_do(written: list[Written]) -> None:
    snapshots = files_below(written[0].directory.parent, ".snapshot")
    assert {path.parent for path in snapshots} == {each.directory for each in written}
    dumps = dump(["--files", path] for path in snapshots)
    assert findings(dumps) == []
    for path, said in zip(snapshots, dumps, strict=True):
        expected = [
            (
                state.producer_id,
                state.epoch,
                state.last_timestamp,
                batch.base_sequence,
                batch.last_sequence,
                batch.last_offset,
                batch.offset_delta,
            )
            for state in decode_snapshot(path.read_bytes())
            for batch in state.batches
        ]
        found = [tuple(int(fields[at]) for at in (0, 1, 4, 5, 6, 7, 8)) for fields in PRODUCER.findall(said.output)]
        assert sorted(found) == sorted(expected), said.output
        assert bool(expected) == (path.parent.name in {"ours-idempotent-0", "ours-transactional-0"})


ABORTED = re.compile(r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)")
MARKER = re.compile(r"endTxnMarker: (\w+) coordinatorEpoch: 0$", re.MULTILINE)


def test_kafka_reads_our_transaction_indexes_and_markers(written: list[Written]) -> None:
    (each,) = [each for each in written if each.aborted]
    indexes = files_below(each.directory, ".txnindex")
    dumps = dump(["--files", path] for path in indexes)
    assert findings(dumps) == []
    found = {
        int(path.stem): [tuple(map(int, fields)) for fields in ABORTED.findall(said.output)]
        for path, said in zip(indexes, dumps, strict=True)
    }
    assert found == each.aborted
    logs = dump(["--print-data-log", "--files", path] for path in files_below(each.directory, ".log"))
    outcomes = [outcome for said in logs for outcome in MARKER.findall(said.output)]
    assert outcomes.count("ABORT") == sum(map(len, each.aborted.values()))
    assert outcomes.count("COMMIT") > 5
