"""How a group is read: what a user says, and what that means.

Owns: the options of a group's stream, checked. Must not know: who joins, who reads.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack, cast

from protocol.native.groups import DEFAULT_REBALANCE_TIMEOUT_MS, DEFAULT_SESSION_TIMEOUT_MS
from warmlog.client.reading import OutOfRange, Reading, ReadingNames, make_reading
from warmlog.client.start import Start

DEFAULT_COMMIT_INTERVAL_S = 5.0  # Kafka's auto.commit.interval.ms


class GroupNames(TypedDict, total=False):
    """The options of `AsyncClient.consume` with a group; see there."""

    auto_commit: bool
    commit_interval_s: float
    session_timeout_s: float
    rebalance_timeout_s: float
    instance_id: str | None
    until_end: bool
    out_of_range: OutOfRange
    isolation: str
    auto_create: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """How a member behaves. Raises ValueError for a value out of range."""

    group: str
    topics: tuple[str, ...]
    auto_create: bool
    auto_commit: bool = True
    commit_interval_s: float = DEFAULT_COMMIT_INTERVAL_S
    session_timeout_s: float = DEFAULT_SESSION_TIMEOUT_MS / 1000
    rebalance_timeout_s: float = DEFAULT_REBALANCE_TIMEOUT_MS / 1000
    instance_id: str | None = None

    def __post_init__(self) -> None:
        if not self.group:
            raise ValueError("the name of a group must not be empty")
        for name in ("commit_interval_s", "session_timeout_s", "rebalance_timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be greater than 0")


def make_group_reading(
    group: str, topics: str | Iterable[str], start: Start, **options: Unpack[GroupNames]
) -> tuple[Reading, GroupOptions]:
    """Check what is to be read, and how. Raises ValueError, TypeError.

    Where a committed offset is not there any more, a group begins where it would without one, if `start` is an end.
    """
    if isinstance(start, Mapping):
        raise TypeError("a group begins where it has committed: its start is one for all partitions, not a mapping")
    if "partitions" in options:
        raise TypeError("a group shares the partitions out by itself: none can be named")
    reading = make_reading(
        topics,
        start,
        until_end=options.get("until_end", False),
        out_of_range=options.get("out_of_range", "end" if start == "end" else "beginning"),
        isolation=options.get("isolation", "read_uncommitted"),
        auto_create=options.get("auto_create"),
    )
    of_member = {name: value for name, value in options.items() if name not in ReadingNames.__annotations__}
    return reading, GroupOptions(
        group=group, topics=reading.topics, auto_create=reading.auto_create, **cast("dict[str, Any]", of_member)
    )
