"""Decide which part of a log can be compacted now, and how urgent it is.

    | clean: compacted before | dirty: to be compacted now | too young, or not durable | active |
    ^ first segment           ^ first dirty offset         ^ first uncleanable offset            ^ log end

Invariants:
1. The active segment is excluded, and everything past the high watermark or not synced yet.
2. `min.compaction.lag.ms` excludes a segment and all after it while its newest record is younger; if records have no
   timestamps, the file's modification time counts.
3. A checkpoint is a hint: outside the log it is ignored.

Source: kafka.log.LogCleanerManager.cleanableOffsets, maxCompactionDelay, LogToClean.
"""

from collections.abc import Sequence
from typing import NamedTuple

from warmlog.broker.log.config import LogConfig
from warmlog.broker.log.retention.log_view import LogBounds
from warmlog.broker.log.segments.log_scan import read_header_at, timed
from warmlog.broker.log.segments.segment import Segment


class Cleanable(NamedTuple):
    """Offsets [first_dirty_offset, first_uncleanable_offset) of a log, sizes in bytes.

    `delay_ms`: by how much `max.compaction.lag.ms` is exceeded.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    delay_ms: int

    @property
    def ratio(self) -> float:
        """The dirty share of the bytes that could be clean."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        """Return whether the log should be compacted now."""
        overdue = self.delay_ms > 0 and self.cleanable_bytes > 0
        return overdue or self.ratio > config.min_cleanable_dirty_ratio


def find_cleanable(
    segments: Sequence[Segment], config: LogConfig, bounds: LogBounds, *, checkpoint: int | None, now_ms: int
) -> Cleanable:
    """Return the range of these segments (all of the log's) that can be compacted. Blocking.

    `checkpoint`: the end of the last compaction. Raises IndexCorruptError, ProtocolError, OSError.
    """
    start, end = bounds.log_start_offset, bounds.log_end_offset
    first_dirty = start if checkpoint is None or not start <= checkpoint <= end else checkpoint
    sealed = [segment for segment in segments if segment.next_base_offset is not None]
    dirty = [segment for segment in sealed if segment.end_of_offsets > first_dirty]
    limit = min([bounds.cleanable_end, segments[-1].base_offset, *_first_too_young(dirty, config, now_ms)])
    cleanable = [segment for segment in dirty if segment.end_of_offsets <= limit]
    return Cleanable(
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=max(first_dirty, cleanable[-1].end_of_offsets if cleanable else first_dirty),
        clean_bytes=sum(segment.size for segment in sealed if segment.end_of_offsets <= first_dirty),
        cleanable_bytes=sum(segment.size for segment in cleanable),
        delay_ms=_delay_ms(cleanable, config, now_ms),
    )


def _first_too_young(dirty: Sequence[Segment], config: LogConfig, now_ms: int) -> list[int]:
    """Return the base offset of the first segment with a record younger than the minimum lag, if there is one."""
    if config.min_compaction_lag_ms <= 0:
        return []
    oldest = now_ms - config.min_compaction_lag_ms
    return next(([segment.base_offset] for segment in dirty if segment.newest_ms() > oldest), [])


def _delay_ms(cleanable: Sequence[Segment], config: LogConfig, now_ms: int) -> int:
    """Return by how many ms the oldest dirty segment, by its first batch, exceeds the maximum lag."""
    until = now_ms - config.max_compaction_lag_ms
    if until <= 0:
        return 0
    files = [segment.reader.descriptor() for segment in cleanable if segment.size]
    firsts = [timed(file, 0, read_header_at(file, 0)).max_timestamp for file in files]
    return max([0, *(until - first for first in firsts if 0 < first < until)])
