"""Records in batches written by Kafka, with every compression codec and in control batches, decoded and re-encoded."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from warmlog.protocol.records.batch import BatchHeader, headers
from warmlog.protocol.records.compression import compress, decompress
from warmlog.protocol.records.layout import CODEC_MASK, CONTROL_BIT, HEADER_SIZE


def golden_batches(fixtures: Path) -> Iterator[tuple[BatchHeader, bytes]]:
    """Yield the header and the block of every complete batch."""
    for log in sorted(fixtures.glob("*/*/*.log")):
        content = log.read_bytes()
        for position, header in headers(content):
            yield header, content[position + HEADER_SIZE : position + header.size]


def test_compiled_and_pure_codec_decode_every_batch_alike(
    kafka_fixtures: Path, variant: ModuleType, compiled: ModuleType
) -> None:
    for header, block in golden_batches(kafka_fixtures):
        records = decompress(header.codec, block)
        arguments = (header.record_count, header.base_offset, header.base_timestamp, header.append_time_ms)
        found = variant.decode_records(records, 0, len(records), *arguments)
        assert found == compiled.decode_records(records, 0, len(records), *arguments)
        assert len(found) == header.record_count


def test_records_written_again_are_the_same_bytes(kafka_fixtures: Path, variant: ModuleType) -> None:
    for header, block in golden_batches(kafka_fixtures):
        records = decompress(header.codec, block)
        assert decompress(header.codec, compress(header.codec, records)) == records
        if header.delete_horizon_ms is not None or header.record_count != header.last_offset_delta + 1:
            continue  # written by compaction: offsets have gaps, and timestamps another base
        variant.walk_records(records, 0, len(records), header.record_count)
        encoder = variant.RecordEncoder()
        for one in variant.decode_records(records, 0, len(records), header.record_count, 0, header.base_timestamp):
            encoder.append(one.key, one.value, one.timestamp, one.headers)
        assert encoder.base_timestamp == header.base_timestamp
        assert encoder.records() == records


def test_the_fixtures_hold_every_codec_and_a_control_batch(kafka_fixtures: Path) -> None:
    attributes = {header.attributes for header, _ in golden_batches(kafka_fixtures)}
    assert {bits & CODEC_MASK for bits in attributes} == {0, 1, 2, 3, 4}
    assert any(bits & CONTROL_BIT for bits in attributes)
