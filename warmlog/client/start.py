"""Where a reader begins: what a user says, and what that means for a partition.

Owns: the forms of a start. Must not know: who looks an offset up.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple, TypeAlias

from protocol.request import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP

# "beginning", "end", an offset, a time (a datetime or ISO 8601; without a zone it is local time), or offsets of
# partitions.
Start: TypeAlias = str | int | datetime | Mapping[int, int]


class AtOffset(NamedTuple):
    """Begin at this offset."""

    offset: int


class AtTime(NamedTuple):
    """Begin at the first record at or past this time in ms, or at one of the ends (negative: see protocol.request)."""

    timestamp: int


def parse_start(start: Start, partition: int) -> AtOffset | AtTime:
    """What a start means for a partition. Raises ValueError, TypeError; KeyError for a partition a mapping lacks."""
    if isinstance(start, Mapping):
        start = start[partition]
    if isinstance(start, str):
        return _parse_text(start)
    if isinstance(start, datetime):
        return AtTime(timestamp_ms(start))
    if isinstance(start, bool) or not isinstance(start, int):
        raise TypeError(f"a start is 'beginning', 'end', an offset or a time, not {type(start).__name__}")
    if start < 0:
        raise ValueError(f"an offset is not negative: {start}")
    return AtOffset(start)


def timestamp_ms(time: datetime) -> int:
    """Milliseconds since the epoch; without a zone, local time."""
    return round(time.timestamp() * 1000)


def _parse_text(start: str) -> AtOffset | AtTime:
    if start == "beginning":
        return AtTime(EARLIEST_TIMESTAMP)
    if start == "end":
        return AtTime(LATEST_TIMESTAMP)
    if start.isascii() and start.isdigit():
        return AtOffset(int(start))
    try:
        return AtTime(timestamp_ms(datetime.fromisoformat(start)))
    except ValueError:
        raise ValueError(f"a start is 'beginning', 'end', an offset or an ISO 8601 time, not {start!r}") from None
