"""Validate the topics, partitions and start of a stream."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias, TypedDict, Unpack, get_args

from warmlog.protocol.partitions import TopicPartition
from warmlog.protocol.request import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, Isolation

# An end, an offset, a time (local time without a zone), or a mapping from partition to offset. Text with an offset or
# an ISO 8601 time is also accepted, but is not part of the type, so that type checkers reject a misspelled end.
Start: TypeAlias = Literal["beginning", "end"] | int | datetime | Mapping[int, int]
IsolationName: TypeAlias = Literal["read_uncommitted", "read_committed"]
OutOfRange: TypeAlias = Literal["error", "beginning", "end"]

MAX_OFFSET = (1 << 63) - 1


class AtOffset(NamedTuple):
    """Start at this offset."""

    offset: int


class AtTime(NamedTuple):
    """Start at the first record at or after this time in ms; negative values are the ends (`protocol.request`)."""

    timestamp: int


def parse_start(start: Start | str, partition: int) -> AtOffset | AtTime:
    """Return the start of a partition. Raises ValueError, TypeError; KeyError if a mapping lacks the partition."""
    if isinstance(start, Mapping):
        start = start[partition]
    if isinstance(start, str):
        return _parse_text(start)
    if isinstance(start, datetime):
        return _start_at_time(start)
    if isinstance(start, bool) or not isinstance(start, int):
        raise TypeError(f"start must be 'beginning', 'end', an offset or a time, not {type(start).__name__}")
    return _start_at_offset(start)


def _start_at_offset(offset: int) -> AtOffset:
    if not 0 <= offset <= MAX_OFFSET:
        raise ValueError(f"offset must be from 0 to {MAX_OFFSET}, not {offset}")
    return AtOffset(offset)


def _start_at_time(time: datetime) -> AtTime:
    """Return a start by time. Times before 1970 mean the beginning, since negative timestamps have other meanings."""
    try:
        timestamp = round(time.timestamp() * 1000)
    except OverflowError as problem:
        raise ValueError(f"{time} is out of range: {problem}") from problem
    return AtTime(EARLIEST_TIMESTAMP if timestamp < 0 else timestamp)


def _parse_text(start: str) -> AtOffset | AtTime:
    if start == "beginning":
        return AtTime(EARLIEST_TIMESTAMP)
    if start == "end":
        return AtTime(LATEST_TIMESTAMP)
    if start.isascii() and start.isdigit():
        return _start_at_offset(int(start))
    try:
        return _start_at_time(datetime.fromisoformat(start))
    except ValueError:
        raise ValueError(f"start must be 'beginning', 'end', an offset or an ISO 8601 time, not {start!r}") from None


class ConsumeOptions(TypedDict, total=False):
    """Keyword arguments of `AsyncClient.consume`, described there."""

    partitions: Iterable[int] | None
    until_end: bool
    out_of_range: OutOfRange
    isolation: IsolationName
    auto_create: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The validated subscription of a stream. `partitions`: None for all.

    `starts`: the partitions of all topics, each with its own start; it replaces `start` and `partitions`.
    """

    topics: tuple[str, ...]
    start: Start
    partitions: tuple[int, ...] | None
    until_end: bool
    out_of_range: OutOfRange
    isolation: Isolation
    auto_create: bool
    starts: Mapping[TopicPartition, Start] | None = None

    def start_of(self, topic: str, partition: int) -> AtOffset | AtTime:
        """Return the start in a partition."""
        return parse_start(self.start if self.starts is None else self.starts[topic, partition], partition)


def make_subscription(topics: str | Iterable[str], start: Start, **options: Unpack[ConsumeOptions]) -> Subscription:
    """Validate the options of a stream. Raises ValueError, TypeError."""
    unknown = options.keys() - ConsumeOptions.__annotations__.keys()
    if unknown:
        raise TypeError(
            f"unknown option {min(unknown)!r}; known without a group: {', '.join(ConsumeOptions.__annotations__)}"
        )
    partitions = options.get("partitions")
    if not isinstance(start, Mapping):
        parse_start(start, 0)
    elif partitions is None:
        partitions = start
    until_end, auto_create = options.get("until_end", False), options.get("auto_create")
    out_of_range = options.get("out_of_range", "error")
    if out_of_range not in get_args(OutOfRange):
        raise ValueError(f"out_of_range must be one of {', '.join(get_args(OutOfRange))}, not {out_of_range!r}")
    return Subscription(
        topics=(topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics)),
        start=start,
        partitions=None if partitions is None else tuple(dict.fromkeys(partitions)),
        until_end=until_end,
        out_of_range=out_of_range,
        isolation=Isolation(options.get("isolation", Isolation.READ_UNCOMMITTED)),
        auto_create=not until_end if auto_create is None else auto_create,
    )
