"""What a scan has met of idempotent producers: as many of their batches as their states depend on.

Owns: which batches those are. Must not know how they change a state (`producer_replay`), or why the log is scanned.

A state knows the last five batches of its producer, and which transaction is open. So of the others, those that begin
and end no transaction, nothing need be remembered: a log of any length leaves a short trail.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

from broker.log.producers.state import BATCHES_KEPT
from protocol.records.batch import read_header
from protocol.records.codec import compiled
from protocol.records.layout import BatchHeader

MAX_SUPERFLUOUS = 10_000  # batches that are remembered in vain, until they are looked through

# The short cut over batches that change nothing: a piece of a file, the bytes left from there on, first and end of the
# offsets asked for; gives positions and where the next batch begins. None where it was not built.
producer_batches: Callable[[bytes | memoryview, int, int, int], tuple[list[int], int]] | None = None
if compiled:
    with suppress(ImportError):
        from broker.log._scan import producer_batches


class ProducerTrail:
    """(position, header) of batches of one segment, in order."""

    __slots__ = ("_found", "_limit")

    def __init__(self) -> None:
        self._found: list[tuple[int, BatchHeader]] = []
        self._limit = MAX_SUPERFLUOUS

    def __iter__(self) -> Iterator[tuple[int, BatchHeader]]:
        return iter(self._found)

    @property
    def has_transactions(self) -> bool:
        """Whether a batch is part of a transaction, or ends one."""
        return any(_is_of_transaction(header) for _, header in self._found)

    def add(self, position: int, header: BatchHeader) -> None:
        """Remember a batch, if a producer's state may depend on it."""
        if header.producer_id >= 0:
            self._found.append((position, header))
            if len(self._found) > self._limit:
                self._keep_last()

    def add_piece(self, data: memoryview, position: int) -> None:
        """Remember those in a piece of whole batches that lies at a position of the file."""
        assert producer_batches is not None, "who has no short cut adds them one by one"
        found, _ = producer_batches(data, len(data), 0, (1 << 63) - 1)
        for at in found:
            self.add(position + at, read_header(data, at))

    def _keep_last(self) -> None:
        counts: Counter[int] = Counter()
        kept = []
        for each in reversed(self._found):
            counts[each[1].producer_id] += 1
            if counts[each[1].producer_id] <= BATCHES_KEPT or _is_of_transaction(each[1]):
                kept.append(each)
        self._found = kept[::-1]
        self._limit = len(kept) + MAX_SUPERFLUOUS


def _is_of_transaction(header: BatchHeader) -> bool:
    return header.is_transactional or header.is_control
