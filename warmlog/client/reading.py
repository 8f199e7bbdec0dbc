"""What is to be read: what a user says, and what that means.

Owns: the options of a stream, and the forms of a start. Must not know: who reads, or who looks an offset up.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias, TypedDict, Unpack, get_args

from protocol.request import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, Isolation

# "beginning", "end", an offset, a time (a datetime or ISO 8601; without a zone it is local time), or offsets of
# partitions.
Start: TypeAlias = str | int | datetime | Mapping[int, int]
OutOfRange: TypeAlias = Literal["error", "beginning", "end"]


class ReadingNames(TypedDict, total=False):
    """The options of `AsyncClient.consume`; see there."""

    partitions: Iterable[int] | None
    until_end: bool
    out_of_range: OutOfRange
    isolation: str
    auto_create: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a stream reads: the options, checked. `partitions`: None for all."""

    topics: tuple[str, ...]
    start: Start
    partitions: tuple[int, ...] | None
    until_end: bool
    out_of_range: OutOfRange
    isolation: Isolation
    auto_create: bool


def make_reading(topics: str | Iterable[str], start: Start, **options: Unpack[ReadingNames]) -> Reading:
    """Check what is to be read. Raises ValueError, TypeError."""
    partitions = options.get("partitions")
    if not isinstance(start, Mapping):
        parse_start(start, 0)
    elif partitions is None:
        partitions = start
    until_end, auto_create = options.get("until_end", False), options.get("auto_create")
    out_of_range = options.get("out_of_range", "error")
    if out_of_range not in get_args(OutOfRange):
        raise ValueError(f"out_of_range is one of {', '.join(get_args(OutOfRange))}, not {out_of_range!r}")
    return Reading(
        topics=(topics,) if isinstance(topics, str) else tuple(topics),
        start=start,
        partitions=None if partitions is None else tuple(partitions),
        until_end=until_end,
        out_of_range=out_of_range,
        isolation=Isolation(options.get("isolation", Isolation.READ_UNCOMMITTED)),
        auto_create=not until_end if auto_create is None else auto_create,
    )


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
