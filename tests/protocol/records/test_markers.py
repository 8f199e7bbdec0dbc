"""Transaction markers: what is built is byte for byte what Kafka wrote."""

from pathlib import Path

from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.codec import stamped_batch
from warmlog.protocol.records.markers import EndMarker, Outcome, end_marker, marker_batch
from warmlog.protocol.records.reader import decode_batch


def test_markers_are_those_that_kafka_wrote(kafka_fixtures: Path) -> None:
    outcomes = []
    for path in sorted((kafka_fixtures / "clean" / "transactional-0").glob("*.log")):
        data = path.read_bytes()
        for position, header in headers(data):
            if not header.is_control:
                continue
            marker = end_marker(decode_batch(data, position, header))
            assert marker is not None
            built = marker_batch(header.producer_id, header.producer_epoch, marker)
            stored = stamped_batch(memoryview(built), 0, len(built), header.base_offset, header.leader_epoch)
            assert b"".join(stored) == data[position : position + header.size]
            outcomes.append(marker.outcome)
    assert set(outcomes) == {Outcome.ABORT, Outcome.COMMIT}


def test_a_marker_is_read_as_it_was_built() -> None:
    marker = EndMarker(Outcome.ABORT, 3, 1_700_000_000_000)
    data = marker_batch(7, 2, marker)
    ((position, header),) = headers(data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, -1)
    assert header.is_control
    assert header.is_transactional
    assert end_marker(decode_batch(data, position, header)) == marker
