"""Validate the options of a member of a share group."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

#: Where a group starts to read a topic that it has not read before.
ShareStart: TypeAlias = Literal["beginning", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOptions:
    """The topics of a member, and its limit of jobs acquired from a broker at a time."""

    group: str
    topics: tuple[str, ...]
    start: ShareStart | None
    max_jobs: int
    auto_create: bool


def make_share_options(
    topics: str | Iterable[str], *, group: str, start: ShareStart | None, max_jobs: int, auto_create: bool
) -> ShareOptions:
    """Validate the options of a member. Raises ValueError."""
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not group:
        raise ValueError("group must not be empty")
    if not names or not all(names):
        raise ValueError("topics must not be empty")
    if start is not None and start not in get_args(ShareStart):
        raise ValueError(f"start must be one of {', '.join(get_args(ShareStart))}, not {start!r}")
    if max_jobs < 1:
        raise ValueError("max_jobs must be at least 1")
    return ShareOptions(group=group, topics=names, start=start, max_jobs=max_jobs, auto_create=auto_create)
