"""Settings that share groups depend on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLimits:
    """Settings of one group (`group.share.*`, or the group's own). Times are in ms."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int  # minimum interval between computations of the target assignment
    initialize_retry_interval_ms: int  # time after which an initialization without an outcome is repeated
    max_size: int  # members
