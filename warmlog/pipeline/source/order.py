"""Whether the offsets of batches agree with those of their neighbours. No CRC covers a batch's base offset."""

from warmlog.protocol.errors import CorruptBatchError
from warmlog.protocol.records.batch import BatchHeader


class MisplacedBatchError(CorruptBatchError):
    """The offsets of a batch contradict those of a neighbour, and may be wrong. Its length is right."""


class BatchOrder:
    """Checks the batches of a log one after the other. `least`: the offset before which the first one cannot begin."""

    def __init__(self, least: int) -> None:
        self._end = least  # of the last batch that was in order
        self._doubts_next = False

    def check(self, header: BatchHeader, after: int | None) -> None:
        """Raise MisplacedBatchError if a batch may have wrong offsets. `after`: base offset of the next one, if any.

        Of two batches that overlap, the one that leaves no gap to its other neighbour is right; if neither does, both
        may be wrong.
        """
        doubtful, self._doubts_next = self._doubts_next, False
        first, end = header.base_offset, header.next_offset
        if first < self._end:
            raise MisplacedBatchError(f"it begins at offset {first}, and the batch before it ends at {self._end}")
        if doubtful:
            raise MisplacedBatchError(f"it begins at offset {first}, within the batch before it")
        if after is not None and self._end <= after < end and first != self._end:
            self._doubts_next = after != self._end + end - first
            raise MisplacedBatchError(f"it has offsets {first} to {end - 1}, and the batch after it begins at {after}")
        self._end = end
