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


MAX_OFFSET = (1 << 63) - 1


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
        return _at(start)
    if isinstance(start, bool) or not isinstance(start, int):
        raise TypeError(f"a start is 'beginning', 'end', an offset or a time, not {type(start).__name__}")
    return _from(start)


def _from(offset: int) -> AtOffset:
    if not 0 <= offset <= MAX_OFFSET:
        raise ValueError(f"an offset is a number from 0 to {MAX_OFFSET}, not {offset}")
    return AtOffset(offset)


def _at(time: datetime) -> AtTime:
    """Before 1970 there is no record, so all are at or past such a time; and negative numbers have other meanings."""
    try:
        timestamp = round(time.timestamp() * 1000)
    except OverflowError as problem:
        raise ValueError(f"{time} is too far away: {problem}") from problem
    return AtTime(EARLIEST_TIMESTAMP if timestamp < 0 else timestamp)


def _parse_text(start: str) -> AtOffset | AtTime:
    if start == "beginning":
        return AtTime(EARLIEST_TIMESTAMP)
    if start == "end":
        return AtTime(LATEST_TIMESTAMP)
    if start.isascii() and start.isdigit():
        return _from(int(start))
    try:
        return _at(datetime.fromisoformat(start))
    except ValueError:
        raise ValueError(f"a start is 'beginning', 'end', an offset or an ISO 8601 time, not {start!r}") from None
