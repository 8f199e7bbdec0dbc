"""What is to be read: what a user says, and what that means.

Owns: the options of a stream, checked. Must not know: who reads; the forms of a start have a module of their own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypedDict, Unpack, get_args

from protocol.request import Isolation
from warmlog.client.start import AtOffset, AtTime, Start, parse_start

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
    """What a stream reads: the options, checked. `partitions`: None for all.

    `places`: the partitions of all topics, each with a start of its own; `start` and `partitions` say nothing then.
    """

    topics: tuple[str, ...]
    start: Start
    partitions: tuple[int, ...] | None
    until_end: bool
    out_of_range: OutOfRange
    isolation: Isolation
    auto_create: bool
    places: Mapping[tuple[str, int], Start] | None = None

    def start_of(self, topic: str, partition: int) -> AtOffset | AtTime:
        """Where to begin in a partition."""
        return parse_start(self.start if self.places is None else self.places[topic, partition], partition)


def make_reading(topics: str | Iterable[str], start: Start, **options: Unpack[ReadingNames]) -> Reading:
    """Check what is to be read. Raises ValueError, TypeError."""
    unknown = options.keys() - ReadingNames.__annotations__.keys()
    if unknown:
        raise TypeError(
            f"there is no option {min(unknown)!r} here; there are {', '.join(ReadingNames.__annotations__)}"
        )
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
        topics=(topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics)),
        start=start,
        partitions=None if partitions is None else tuple(dict.fromkeys(partitions)),
        until_end=until_end,
        out_of_range=out_of_range,
        isolation=Isolation(options.get("isolation", Isolation.READ_UNCOMMITTED)),
        auto_create=not until_end if auto_create is None else auto_create,
    )
