"""A topic as metadata knows it, and which names it may have.

Source of the rules: org.apache.kafka.common.internals.Topic.
"""

import re
from dataclasses import dataclass, field
from uuid import UUID, uuid4

MAX_NAME_LENGTH = 249  # a partition's directory adds a dash, a number and a suffix, and a file name has 255 bytes
MAX_PARTITIONS = 100_000  # of one topic: a count beyond it is a slip of the hand, and each one is a directory

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})  # the broker's own

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class InvalidTopicError(Exception):
    """A topic's name that is not allowed. `str()` says why."""


class InvalidPartitionsError(Exception):
    """A partition count that is not allowed. `str()` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic: `partitions` is its count, `configs` the settings made on it (Kafka's names, text as it was given)."""

    name: str
    partitions: int
    configs: dict[str, str] = field(default_factory=dict)
    id: UUID = field(default_factory=uuid4)


def is_internal(name: str) -> bool:
    """Whether a topic is the broker's own: users may read it, and not change what is in it."""
    return name in INTERNAL_TOPICS


def check_name(name: str) -> None:
    """Raise InvalidTopicError unless the name is legal.

    1 to 249 of ASCII letters, digits, `.`, `_` and `-`, and neither `.` nor `..`.
    """
    if not name:
        raise InvalidTopicError("a topic's name must not be empty")
    if name in {".", ".."}:
        raise InvalidTopicError(f"a topic must not be called {name!r}")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidTopicError(f"a topic's name has at most {MAX_NAME_LENGTH} characters, not {len(name)}")
    if _LEGAL_NAME.fullmatch(name) is None:
        raise InvalidTopicError(f"topic {name!r}: a name is made of ASCII letters, digits, '.', '_' and '-'")


def folded(name: str) -> str:
    """Return what the names have in common that make the same metric name: they differ only by `.` and `_`."""
    return name.replace(".", "_")


def check_collision(name: str, other: str | None) -> None:
    """Raise InvalidTopicError if `other` is a different topic with the same folded name."""
    if other is not None and other != name:
        raise InvalidTopicError(
            f"topic {name!r} collides with {other!r}: names that differ only by '.' and '_' are one metric"
        )


def check_partitions(count: int) -> None:
    """Raise InvalidPartitionsError unless the count is between 1 and 100,000."""
    if not 1 <= count <= MAX_PARTITIONS:
        raise InvalidPartitionsError(f"a topic has 1 to {MAX_PARTITIONS:,} partitions, not {count}")
