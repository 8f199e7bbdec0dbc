"""Count and log stored batches whose records cannot be read.

Kafka and other brokers store blocks that no decoder here can read, or records that violate the format. Their CRC
matches: it is the producer's. Each reader continues without the records of such a batch, and reports it here.
"""

import logging
from collections.abc import Iterable
from threading import Lock
from typing import Literal, TypeAlias

logger = logging.getLogger(__name__)

BatchReader: TypeAlias = Literal["time_lookup", "compaction", "coordinator"]

# How a reader continues without the records, for the log line.
INSTEAD: dict[BatchReader, str] = {
    "time_lookup": "finding it by the timestamps of its header",
    "compaction": "keeping it as it is",
    "coordinator": "loading the partition without it",
}
MAX_REMEMBERED = 1000


class UnreadableBatches:
    """Counts unreadable batches by reader, and logs each of them once. Thread-safe."""

    def __init__(self) -> None:
        self._counts: dict[BatchReader, int] = dict.fromkeys(INSTEAD, 0)
        self._logged: set[tuple[BatchReader, str, int]] = set()
        self._lock = Lock()

    def note(self, reader: BatchReader, log: str, base_offset: int, reason: object) -> None:
        """Count a batch, and log it unless it was logged before."""
        batch = reader, log, base_offset
        with self._lock:
            self._counts[reader] += 1
            if batch in self._logged:
                return
            if len(self._logged) >= MAX_REMEMBERED:
                self._logged.clear()
            self._logged.add(batch)
        logger.warning(
            "%s: cannot read the records of the batch at offset %d, %s: %s", log, base_offset, INSTEAD[reader], reason
        )

    def rows(self) -> Iterable[tuple[tuple[str, ...], float]]:
        """Return the counts with their label, for the metric."""
        return [((reader,), count) for reader, count in self._counts.items()]
