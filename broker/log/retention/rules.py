"""Decide which of a log's oldest segments are removed: before its start offset, beyond its size, or past their time.

A pure decision: `is_expired` is called for the oldest segments first and no further than needed, because the answer
costs an index lookup.

Invariants:
1. Segments are removed from the oldest on; all segments after one that stays also stay.
2. Nothing at or past the high watermark is removed, and no empty active segment.
3. A log whose cleanup policy does not include `delete` loses only the segments before its start offset.

Source: kafka.log.UnifiedLog.deleteOldSegments.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from warmlog.broker.log.config import LogConfig


class RemovalReason(StrEnum):
    """Why a segment is removed."""

    START = "start"
    SIZE = "size"
    TIME = "time"


class Candidate(NamedTuple):
    """A segment's end offset (exclusive), its size in bytes, and whether it is the active one."""

    end_offset: int
    size: int
    active: bool


def removal_reasons(
    candidates: Sequence[Candidate],
    config: LogConfig,
    *,
    log_start_offset: int,
    high_watermark: int,
    is_expired: Callable[[int], bool],
) -> list[RemovalReason]:
    """Return a reason for each segment to remove, oldest first; `candidates` are all of the log's.

    `is_expired` returns whether the segment in a slot is older than `retention.ms`.
    """
    most = _count(candidates, lambda slot: _may_go(candidates[slot], high_watermark))
    before = _count(candidates[:most], lambda slot: _lies_before(candidates[slot], log_start_offset))
    reasons = [RemovalReason.START] * before
    if config.deletes:
        reasons += [RemovalReason.SIZE] * _beyond_size(candidates[before:], most - before, config.retention_bytes)
    if config.deletes and config.retention_ms >= 0:
        gone = len(reasons)
        reasons += [RemovalReason.TIME] * _count(candidates[gone:most], lambda slot: is_expired(gone + slot))
    return reasons


def _may_go(candidate: Candidate, high_watermark: int) -> bool:
    return candidate.end_offset <= high_watermark and not (candidate.active and not candidate.size)


def _lies_before(candidate: Candidate, log_start_offset: int) -> bool:
    return not candidate.active and candidate.end_offset <= log_start_offset


def _beyond_size(candidates: Sequence[Candidate], most: int, retention_bytes: int) -> int:
    """Return how many segments can be removed with at least `retention_bytes` left."""
    if retention_bytes < 0:
        return 0
    excess, count = sum(candidate.size for candidate in candidates) - retention_bytes, 0
    for candidate in candidates[:most]:
        excess -= candidate.size
        if excess < 0:
            break
        count += 1
    return count


def _count(candidates: Sequence[Candidate], goes: Callable[[int], bool]) -> int:
    """Return the number of leading candidates for whose slots `goes` is true."""
    return next((slot for slot in range(len(candidates)) if not goes(slot)), len(candidates))
