"""Requests and responses of the consumer protocol (KIP-848).

They only have the fields needed to reject such requests, since this broker serves groups of the classic protocol only.
"""

from typing import ClassVar

from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.request import Value


class ConsumerGroupHeartbeatRequest(Value, frozen=True, kw_only=True, gc=False):
    """Join a group, keep the membership, or leave."""

    api: ClassVar[str] = "consumer_group_heartbeat"


class ConsumerGroupHeartbeatResponse(Value, frozen=True, kw_only=True, gc=False):
    """The reason why there is no membership."""

    error: ErrorCode
    message: str | None = None


class ConsumerGroupDescribeRequest(Value, frozen=True, kw_only=True, gc=False):
    """Describe groups of the consumer protocol."""

    api: ClassVar[str] = "consumer_group_describe"
    groups: tuple[str, ...] = ()


class UndescribedGroup(Value, frozen=True, kw_only=True, gc=False):
    """A group, and the reason why it is not described."""

    group: str
    error: ErrorCode
    message: str | None = None


class ConsumerGroupDescribeResponse(Value, frozen=True, kw_only=True, gc=False):
    """One result per group."""

    groups: tuple[UndescribedGroup, ...] = ()
