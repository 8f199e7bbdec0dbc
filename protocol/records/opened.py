"""Batches that must be looked into, or stored in another codec than they came in: opened, judged, built anew.

Owns: the way from batches as they were sent to batches as a topic keeps them. Must not know: offsets and append times
(they are given later, by `validation.check_batches` and `batch.stamped_start`), threads.

It decompresses and compresses, so it belongs into a worker; both give up the GIL while they work.

Invariants:
1. No block becomes larger than the ceiling, whatever it says of itself (`compression`).
2. Records keep their bytes; only the block around them and the header change.

Source: org.apache.kafka.storage.internals.log.LogValidator.validateMessagesAndAssignOffsetsCompressed.
"""

from protocol.records.batch import BatchHeader, rewritten_start
from protocol.records.compression import DEFAULT_MAX_DECOMPRESSED_SIZE, compress, decompress
from protocol.records.layout import CODEC_MASK, HEADER_SIZE, KNOWN_BITS, MIN_BATCH_LENGTH, STALE_CRC, Codec
from protocol.records.record import Buffer
from protocol.records.validation import BatchRules, check_each, check_times, with_largest_time

__all__ = ["opened_batches"]


def opened_batches(
    buffer: Buffer, rules: BatchRules, now_ms: int, *, max_decompressed_size: int = DEFAULT_MAX_DECOMPRESSED_SIZE
) -> Buffer:
    """What a producer sent, as the topic keeps it: each batch in the topic's codec, with its records' largest time.

    What is as it should be comes back as it is. `max_decompressed_size`: what the block of one batch may become, in
    bytes. Raises as `check_batches` does, and CompressionError for a block that cannot be opened or becomes too large.
    """
    view = memoryview(buffer)
    checked = check_each(view, rules, now_ms, opened=True)
    parts: list[Buffer] = []
    for position, header in checked:
        parts += _kept(view[position : position + header.size], header, rules, now_ms, max_decompressed_size)
    return view if sum(map(len, parts)) == len(view) and len(parts) == len(checked) else b"".join(parts)


def _kept(batch: memoryview, header: BatchHeader, rules: BatchRules, now_ms: int, max_size: int) -> list[Buffer]:
    """A batch as it is, or a header and a block made anew."""
    block: Buffer = batch[HEADER_SIZE:]
    records = block
    codec = header.codec
    if codec is not Codec.NONE:
        records = decompress(codec, block, max_size=max_size)
        largest = check_times(records, 0, len(records), header, rules, now_ms)
        if not rules.append_time:
            header = with_largest_time(header, largest)
    if rules.codec is not None and rules.codec is not codec:
        block = compress(rules.codec, records, level=rules.level)
        header = _in_codec(header, rules.codec, len(block))
    if header.crc != STALE_CRC:
        return [batch]
    start = rewritten_start(header, block, base_offset=header.base_offset, leader_epoch=header.leader_epoch)
    return [start, block]


def _in_codec(header: BatchHeader, codec: Codec, block_size: int) -> BatchHeader:
    return header._replace(
        attributes=header.attributes & KNOWN_BITS & ~CODEC_MASK | codec,
        batch_length=MIN_BATCH_LENGTH + block_size,
        crc=STALE_CRC,
    )
