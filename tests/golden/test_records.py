"""Our reading of Kafka's records against what Kafka's own consumer saw, by both twins of the codec."""

import pytest

from tests.golden.partitions import FIXTURES, GoldenPartition, SeenRecord, consumed_partitions, read_seen
from warmlog.protocol.records import codec, record
from warmlog.protocol.records.batch import headers
from warmlog.protocol.records.builder import build_batch
from warmlog.protocol.records.layout import HEADER_SIZE, Codec, TimestampType
from warmlog.protocol.records.reader import decode_batch, records_in

TYPE_NAMES = {TimestampType.CREATE_TIME: "CreateTime", TimestampType.LOG_APPEND_TIME: "LogAppendTime"}


@pytest.mark.parametrize("name", consumed_partitions())
def test_every_record_is_read_as_kafkas_consumer_saw_it(name: str) -> None:
    golden, seen = GoldenPartition.named(name), read_seen(name)
    ours = [
        SeenRecord(
            offset=found.offset,
            timestamp=found.timestamp,
            timestamp_type=TYPE_NAMES[header.timestamp_type],
            key=found.key,
            value=found.value,
            headers=found.headers,
        )
        for content, position, header in golden.batches()
        if not header.is_control
        for found in decode_batch(content, position, header)
    ]
    assert [each for each in ours if each.offset >= seen.log_start_offset] == seen.records


@pytest.mark.parametrize("name", consumed_partitions())
def test_both_twins_read_kafkas_uncompressed_batches_alike(name: str) -> None:
    for content, position, header in GoldenPartition.named(name).batches():
        if header.codec == Codec.NONE:
            start, end = position + HEADER_SIZE, position + header.size
            asked = (content, start, end, header.record_count, header.base_offset, header.base_timestamp)
            assert codec.decode_records(*asked) == record.decode_records(*asked)


@pytest.mark.parametrize("name", ["clean/plain-0", "clean/sparse-index-0", "clean/idempotent-0"])
def test_a_batch_built_from_kafkas_records_is_kafkas_batch(name: str) -> None:
    for content, position, header in GoldenPartition.named(name).batches():
        if header.codec == Codec.NONE:
            kafkas = content[position : position + header.size]
            ours = build_batch(
                [(each.timestamp, each.key, each.value, each.headers) for each in records_in(kafkas)],
                base_offset=header.base_offset,
                leader_epoch=header.leader_epoch,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
            )
            assert ours == kafkas


def test_keys_are_in_the_partition_that_our_murmur2_gives() -> None:
    for partition in range(4):
        keys = [each.key for each in read_seen(f"clean/keyed-{partition}").records]
        assert keys
        assert {(codec.murmur2(key) & 0x7FFFFFFF) % 4 for key in keys if key is not None} == {partition}


def test_the_golden_files_hold_every_codec_and_both_kinds_of_time() -> None:
    found = set()
    for log in FIXTURES.glob("clean/*/*.log"):
        found |= {(header.codec, header.timestamp_type) for _, header in headers(log.read_bytes())}
    assert {kind for kind, _ in found} == set(Codec)
    assert {time for _, time in found} == set(TimestampType)
