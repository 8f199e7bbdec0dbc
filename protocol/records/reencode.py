"""Decompress batches to validate their records, and recompress them with the topic's codec.

Offsets and append times are set later, by `validation.check_batches` and `codec.stamped_batch`. Call it in a worker
thread; decompression and compression release the GIL.

Invariants:
1. No block is decompressed beyond the size limit, regardless of the size that it states (see `compression`). The limit
grows with the block, so the bytes that a client sends bound the time that its batches take.
2. The bytes of records never change; only the compressed block and the header do.

Source: org.apache.kafka.storage.internals.log.LogValidator.validateMessagesAndAssignOffsetsCompressed.
"""

from collections.abc import Callable, Sequence

from warmlog.protocol.records.batch import BatchHeader, rewritten_start
from warmlog.protocol.records.compression import DEFAULT_MAX_DECOMPRESSED_SIZE, compress, decompress
from warmlog.protocol.records.layout import CODEC_MASK, HEADER_SIZE, KNOWN_BITS, MIN_BATCH_LENGTH, STALE_CRC, Codec
from warmlog.protocol.records.record import Buffer
from warmlog.protocol.records.validation import BatchRules, check_each, check_records, with_max_timestamp

__all__ = ["Reencoding", "reencode_batches"]

# Any block may decompress to `FREE_SIZE` bytes, a larger one to `MAX_RATIO` times its size. Log lines compress by a
# factor of 50 at best; zeros by 1,000 with gzip, and by 30,000 with zstd.
FREE_SIZE = 16 << 20
MAX_RATIO = 64


class Reencoding:
    """Converts batches from a producer to the topic's codec one at a time. The work starts with `run`.

    `max_decompressed_size` limits the decompressed size of one batch, in bytes.
    """

    def __init__(
        self,
        buffer: Buffer,
        rules: BatchRules,
        now_ms: int,
        *,
        max_decompressed_size: int = DEFAULT_MAX_DECOMPRESSED_SIZE,
    ) -> None:
        self.size = len(buffer)
        self._view = memoryview(buffer)
        self._rules = rules
        self._now_ms = now_ms
        self._max_size = max_decompressed_size
        self._checked: Sequence[tuple[int, BatchHeader]] | None = None
        self._done = 0  # number of converted batches
        self._parts: list[Buffer] = []

    def run(self, is_over: Callable[[], bool]) -> Buffer | None:
        """Convert the remaining batches and return all, or None if `is_over` returned true between two batches.

        Raises the errors of `reencode_batches`.
        """
        view = self._view
        if self._checked is None:
            self._checked = check_each(view, self._rules, self._now_ms, reencoded=True)
        for position, header in self._checked[self._done :]:
            batch = view[position : position + header.size]
            self._parts += _reencode(batch, header, self._rules, self._now_ms, self._max_size)
            self._done += 1
            if self._done < len(self._checked) and is_over():
                return None
        is_unchanged = len(self._parts) == len(self._checked) and sum(map(len, self._parts)) == len(view)
        return view if is_unchanged else b"".join(self._parts)


def reencode_batches(
    buffer: Buffer, rules: BatchRules, now_ms: int, *, max_decompressed_size: int = DEFAULT_MAX_DECOMPRESSED_SIZE
) -> Buffer:
    """Validate batches from a producer and return them in the topic's codec, with correct max timestamps.

    Returns the input if nothing had to change. `max_decompressed_size` limits the decompressed size of one batch, in
    bytes. Raises the errors of `check_batches`, CompressionError for an invalid block, and DecompressedSizeError for a
    block that decompresses to more than that, or to more than both `FREE_SIZE` and `MAX_RATIO` times its size.
    """
    done = Reencoding(buffer, rules, now_ms, max_decompressed_size=max_decompressed_size).run(lambda: False)
    assert done is not None, "it is never over"
    return done


def _reencode(batch: memoryview, header: BatchHeader, rules: BatchRules, now_ms: int, max_size: int) -> list[Buffer]:
    """Return the batch unchanged, or as a new header and block."""
    block: Buffer = batch[HEADER_SIZE:]
    records = block
    codec = header.codec
    if codec is not Codec.NONE:
        limit = min(max_size, max(FREE_SIZE, MAX_RATIO * len(block)))
        records = decompress(codec, block, max_size=limit, strict=True)
        max_timestamp = check_records(records, 0, len(records), header, rules, now_ms)
        if not rules.append_time:
            header = with_max_timestamp(header, max_timestamp)
    if rules.codec is not None and rules.codec is not codec:
        block = compress(rules.codec, records, level=rules.level)
        header = _with_codec(header, rules.codec, len(block))
    if header.crc != STALE_CRC:
        return [batch]
    start = rewritten_start(header, block, base_offset=header.base_offset, leader_epoch=header.leader_epoch)
    return [start, block]


def _with_codec(header: BatchHeader, codec: Codec, block_size: int) -> BatchHeader:
    return header._replace(
        attributes=header.attributes & KNOWN_BITS & ~CODEC_MASK | codec,
        batch_length=MIN_BATCH_LENGTH + block_size,
        crc=STALE_CRC,
    )
