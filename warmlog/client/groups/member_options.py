"""Validate the options of a group member."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypedDict, Unpack, cast, get_args

from warmlog.client.consuming.subscription import (
    ConsumeOptions,
    IsolationName,
    OutOfRange,
    Start,
    Subscription,
    make_subscription,
)
from warmlog.client.groups.rebalance_callbacks import RebalanceCallback, RebalanceCallbacks
from warmlog.protocol.native.groups import DEFAULT_REBALANCE_TIMEOUT_MS, DEFAULT_SESSION_TIMEOUT_MS

DEFAULT_COMMIT_INTERVAL_S = 5.0  # Kafka's auto.commit.interval.ms
DEFAULT_TOPICS_INTERVAL_S = 300.0  # Kafka's metadata.max.age.ms

#: The protocol of a group's members: KIP-848's, the classic one, or "auto", the first of them that the group allows.
GroupProtocol: TypeAlias = Literal["auto", "consumer", "classic"]
#: A topic name, several names, or a pattern that must match whole names.
Topics: TypeAlias = str | Iterable[str] | re.Pattern[str]


def named(topics: Topics) -> str | tuple[str, ...]:
    """Return the topic names for a stream without a group. Raises TypeError for a pattern."""
    if isinstance(topics, re.Pattern):
        raise TypeError("topics must be named: a pattern needs a group")
    return topics if isinstance(topics, str) else tuple(topics)


class GroupConsumeOptions(TypedDict, total=False):
    """Keyword arguments of `AsyncClient.consume` with a group, described there."""

    group_protocol: GroupProtocol
    auto_commit: bool
    commit_interval_s: float
    session_timeout_s: float
    rebalance_timeout_s: float
    instance_id: str | None
    topics_interval_s: float
    on_assigned: RebalanceCallback
    on_revoked: RebalanceCallback
    on_lost: RebalanceCallback
    until_end: bool
    out_of_range: OutOfRange
    isolation: IsolationName
    auto_create: bool | None


CALLBACKS = ("on_assigned", "on_revoked", "on_lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberOptions:
    """Options of a group member. Raises ValueError for a value out of range.

    `pattern`: selects topics by name; `topics` is then empty.
    """

    group: str
    topics: tuple[str, ...]
    pattern: re.Pattern[str] | None = None
    auto_create: bool
    group_protocol: GroupProtocol = "auto"
    auto_commit: bool = True
    commit_interval_s: float = DEFAULT_COMMIT_INTERVAL_S
    session_timeout_s: float = DEFAULT_SESSION_TIMEOUT_MS / 1000
    rebalance_timeout_s: float = DEFAULT_REBALANCE_TIMEOUT_MS / 1000
    instance_id: str | None = None
    topics_interval_s: float = DEFAULT_TOPICS_INTERVAL_S
    callbacks: RebalanceCallbacks = field(default_factory=RebalanceCallbacks)

    def __post_init__(self) -> None:
        if not self.group:
            raise ValueError("group must not be empty")
        if self.group_protocol not in get_args(GroupProtocol):
            names = ", ".join(get_args(GroupProtocol))
            raise ValueError(f"group_protocol must be one of {names}, not {self.group_protocol!r}")
        for name in ("commit_interval_s", "session_timeout_s", "rebalance_timeout_s", "topics_interval_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be greater than 0")


def make_group_subscription(
    group: str, topics: Topics, start: Start, **options: Unpack[GroupConsumeOptions]
) -> tuple[Subscription, MemberOptions]:
    """Validate the topics and options of a member. Raises ValueError, TypeError.

    If a committed offset no longer exists, the member continues at `start` if it is an end, otherwise at the
    beginning.
    """
    if isinstance(start, Mapping):
        raise TypeError("start must not be a mapping with a group: it applies to partitions without a committed offset")
    if "partitions" in options:
        raise TypeError("partitions must not be given with a group: the group assigns them")
    pattern = topics if isinstance(topics, re.Pattern) else None
    if pattern is not None and not isinstance(pattern.pattern, str):
        raise TypeError("a pattern for topics must be of str, not of bytes")
    subscription = make_subscription(
        () if isinstance(topics, re.Pattern) else topics,
        start,
        until_end=options.get("until_end", False),
        out_of_range=options.get("out_of_range", "end" if start == "end" else "beginning"),
        isolation=options.get("isolation", "read_uncommitted"),
        auto_create=options.get("auto_create"),
    )
    member_options = {name: value for name, value in options.items() if name not in ConsumeOptions.__annotations__}
    callbacks = {name: member_options.pop(name) for name in CALLBACKS if name in member_options}
    return subscription, MemberOptions(
        group=group,
        topics=subscription.topics,
        pattern=pattern,
        callbacks=RebalanceCallbacks(**cast("dict[str, Any]", callbacks)),
        auto_create=subscription.auto_create,
        **cast("dict[str, Any]", member_options),
    )
