"""Our reading of Kafka's batches against what Kafka's own dump tool says of them."""

from tests.golden.partitions import GoldenPartition
from warmlog.protocol.records.batch import headers, verify_crc

BATCH = (
    r"^baseOffset: (?P<base_offset>\d+) lastOffset: (?P<last_offset>\d+) count: (?P<record_count>\d+) "
    r"baseSequence: (?P<base_sequence>-?\d+) .* producerId: (?P<producer_id>-?\d+) "
    r"producerEpoch: (?P<producer_epoch>-?\d+) partitionLeaderEpoch: (?P<leader_epoch>\d+) "
    r"isTransactional: (?P<is_transactional>\w+) isControl: (?P<is_control>\w+) .* position: (?P<position>\d+) "
    r"(?P<timestamp_type>\w+): (?P<max_timestamp>-?\d+) size: (?P<size>\d+) magic: (?P<magic>\d) "
    r"compresscodec: (?P<codec>\w+) crc: (?P<crc>\d+) isvalid: true"
)


def test_every_header_is_read_as_kafka_reads_it(golden: GoldenPartition) -> None:
    for log in golden.files(".log"):
        content = log.read_bytes()
        ours = []
        for position, header in headers(content):
            verify_crc(content, position, header)
            ours.append(
                {
                    "base_offset": str(header.base_offset),
                    "last_offset": str(header.last_offset),
                    "record_count": str(header.record_count),
                    "base_sequence": str(header.base_sequence),
                    "producer_id": str(header.producer_id),
                    "producer_epoch": str(header.producer_epoch),
                    "leader_epoch": str(header.leader_epoch),
                    "is_transactional": str(header.is_transactional).lower(),
                    "is_control": str(header.is_control).lower(),
                    "position": str(position),
                    "timestamp_type": ("CreateTime", "LogAppendTime")[header.timestamp_type],
                    "max_timestamp": str(header.max_timestamp),
                    "size": str(header.size),
                    "magic": str(header.magic),
                    "codec": header.codec.name.lower(),
                    "crc": str(header.crc),
                }
            )
        assert ours == golden.dumped(log, BATCH)
        assert ours
        assert sum(int(batch["size"]) for batch in ours) == len(content)
