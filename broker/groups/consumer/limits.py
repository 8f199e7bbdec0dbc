"""Settings that consumer groups depend on."""

from dataclasses import dataclass

MAX_INT32 = (1 << 31) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerLimits:
    """Settings of one group (`group.consumer.*`, or the group's own). Times are in ms.

    A group whose last member of the consumer protocol leaves becomes a classic group if `may_downgrade`, and if it has
    no more than `classic_max_size` members. `assignors`: names of the assignors that clients may choose; the first is
    the default.
    """

    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_size: int  # members
    assignors: tuple[str, ...]
    regex_refresh_interval_ms: int  # maximum age of a regular expression's topics
    assignment_interval_ms: int  # minimum interval between computations of the target assignment
    may_downgrade: bool = True
    classic_max_size: int = MAX_INT32
