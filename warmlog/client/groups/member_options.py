"""Validate the options of a group member."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack, cast

from warmlog.client.consuming.subscription import (
    ConsumeOptions,
    IsolationName,
    OutOfRange,
    Start,
    Subscription,
    make_subscription,
)
from warmlog.protocol.native.groups import DEFAULT_REBALANCE_TIMEOUT_MS, DEFAULT_SESSION_TIMEOUT_MS

DEFAULT_COMMIT_INTERVAL_S = 5.0  # Kafka's auto.commit.interval.ms


class GroupConsumeOptions(TypedDict, total=False):
    """Keyword arguments of `AsyncClient.consume` with a group, described there."""

    auto_commit: bool
    commit_interval_s: float
    session_timeout_s: float
    rebalance_timeout_s: float
    instance_id: str | None
    until_end: bool
    out_of_range: OutOfRange
    isolation: IsolationName
    auto_create: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOptions:
    """Options of a group member. Raises ValueError for a value out of range."""

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
            raise ValueError("group must not be empty")
        for name in ("commit_interval_s", "session_timeout_s", "rebalance_timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be greater than 0")


def make_group_subscription(
    group: str, topics: str | Iterable[str], start: Start, **options: Unpack[GroupConsumeOptions]
) -> tuple[Subscription, MemberOptions]:
    """Validate what a member reads and how. Raises ValueError, TypeError.

    If a committed offset no longer exists, the member continues at `start` if that is an end, else at the beginning.
    """
    if isinstance(start, Mapping):
        raise TypeError("start must not be a mapping with a group: it applies to partitions without a committed offset")
    if "partitions" in options:
        raise TypeError("partitions must not be given with a group: the group assigns them")
    subscription = make_subscription(
        topics,
        start,
        until_end=options.get("until_end", False),
        out_of_range=options.get("out_of_range", "end" if start == "end" else "beginning"),
        isolation=options.get("isolation", "read_uncommitted"),
        auto_create=options.get("auto_create"),
    )
    member_options = {name: value for name, value in options.items() if name not in ConsumeOptions.__annotations__}
    return subscription, MemberOptions(
        group=group,
        topics=subscription.topics,
        auto_create=subscription.auto_create,
        **cast("dict[str, Any]", member_options),
    )
