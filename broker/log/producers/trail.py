"""Collect the batches that producer states depend on while a log is scanned, so that `replay` need not read it again.

A state has the last five batches of its producer, and its open transaction. Other batches that are not part of a
transaction need not be collected, so that a trail is short, however long the log.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

from warmlog.broker.log.producers.state import BATCHES_KEPT
from warmlog.protocol.records.batch import read_header
from warmlog.protocol.records.codec import compiled
from warmlog.protocol.records.layout import BatchHeader

MAX_SUPERFLUOUS = 10_000  # collected batches that no state depends on, before they are dropped

# Compiled filter, or None. Takes a piece of a file, the bytes of the file from there on, and the range of offsets;
# returns the positions of the batches that states depend on, and the position of the next batch.
producer_batches: Callable[[bytes | memoryview, int, int, int], tuple[list[int], int]] | None = None
if compiled:
    with suppress(ImportError):
        from warmlog.broker.log.segments._scan import producer_batches


class ProducerTrail:
    """(position, header) of batches in one segment, in order."""

    __slots__ = ("_batches", "_limit")

    def __init__(self) -> None:
        self._batches: list[tuple[int, BatchHeader]] = []
        self._limit = MAX_SUPERFLUOUS

    def __iter__(self) -> Iterator[tuple[int, BatchHeader]]:
        return iter(self._batches)

    @property
    def has_transactions(self) -> bool:
        """Whether any batch is part of a transaction or ends one."""
        return any(_is_of_transaction(header) for _, header in self._batches)

    def add(self, position: int, header: BatchHeader) -> None:
        """Add a batch if a producer state may depend on it."""
        if header.producer_id >= 0:
            self._batches.append((position, header))
            if len(self._batches) > self._limit:
                self._keep_last()

    def add_piece(self, data: memoryview, position: int) -> None:
        """Add the relevant batches of a piece, which holds whole batches, from `position` of the file."""
        assert producer_batches is not None, "without the compiled filter, call `add`"
        positions, _ = producer_batches(data, len(data), 0, (1 << 63) - 1)
        for at in positions:
            self.add(position + at, read_header(data, at))

    def _keep_last(self) -> None:
        counts: Counter[int] = Counter()
        kept = []
        for each in reversed(self._batches):
            counts[each[1].producer_id] += 1
            if counts[each[1].producer_id] <= BATCHES_KEPT or _is_of_transaction(each[1]):
                kept.append(each)
        self._batches = kept[::-1]
        self._limit = len(kept) + MAX_SUPERFLUOUS


def _is_of_transaction(header: BatchHeader) -> bool:
    return header.is_transactional or header.is_control
