"""Which of a log's oldest segments may go: those before its start, those beyond its size, those past their time.

Owns: the rules, as a pure decision over facts. Must not know files, indexes or clocks: whether a segment is past its
time is asked of the caller, oldest segment first and no further than it matters, for the answer costs a look at an
index.

Invariants:
1. The oldest go first; a segment stays because it stays itself, and so does everything after it.
2. Nothing at or past the high watermark goes, and no empty active segment.
3. A log that is compacted and does not delete loses only what lies before its start; so does one without a policy.

Source: kafka.log.UnifiedLog.deleteOldSegments.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from broker.log.config import LogConfig


class RemovalReason(StrEnum):
    """Why a segment goes."""

    START = "start"
    SIZE = "size"
    TIME = "time"


class Candidate(NamedTuple):
    """A segment as the rules see it: the offset after its last one, its size in bytes, whether it is the active one."""

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
    """Why each of the oldest segments goes, as many as go; `candidates` are all of the log's, oldest first.

    `is_expired` says of the segment in a slot whether it is older than `retention.ms`.
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
    """How many can go with at least `retention_bytes` left without them."""
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
    """How many, from the first on, go."""
    return next((slot for slot in range(len(candidates)) if not goes(slot)), len(candidates))
