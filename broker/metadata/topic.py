"""A topic's metadata, and the rules for its name and partition count.

Source: org.apache.kafka.common.internals.Topic.
"""

import re
from dataclasses import dataclass, field
from uuid import UUID, uuid4

MAX_NAME_LENGTH = 249  # a directory name has 255 bytes and adds a dash, the partition and a suffix
MAX_PARTITIONS_PER_REQUEST = (
    10_000  # created by one request, of all its topics together; Kafka's MAX_PARTITIONS_PER_BATCH
)
MAX_PARTITIONS = 100_000  # per topic; each is a directory, and a higher count is more likely a typing error

COORDINATOR_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
AUDIT_TOPIC = "__warmlog_audit"  # a copy of the audit log (`warmlog.audit.topic`)
INTERNAL_TOPICS = COORDINATOR_TOPICS | {AUDIT_TOPIC}

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")


class InvalidTopicError(Exception):
    """A topic name is not allowed. `str()` says why."""


class MirroredTopicError(Exception):
    """A topic follows another cluster, and cannot be changed here. `str()` says how that ends."""


class RefusedError(Exception):
    """A change of the cluster is not allowed. `str()` is one line for users."""


class InvalidPartitionsError(Exception):
    """A partition count is not allowed. `str()` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """The source of a mirrored topic's records.

    `cluster_id` is the source's; `has_source_id`: whether the topic's id is the source's, too (Kafka 2.8 and newer).
    `promoted_at`: the log end offset of each partition when it became writable here, None while it is mirrored.
    `is_promoting`: in a cluster, its leaders have been asked to promote their partitions; that cannot be undone.
    """

    cluster_id: str
    has_source_id: bool = True
    promoted_at: tuple[int, ...] | None = None
    is_promoting: bool = False

    @property
    def is_promoted(self) -> bool:
        """Whether the topic is writable here, and no longer follows its source."""
        return self.promoted_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic: `partitions` is their number, `configs` its overridden settings by Kafka's names, as given.

    `mirror` is None for a topic that clients of this cluster created. `assignment`: the replicas of each partition of
    a topic that is about to be created in a cluster.
    """

    name: str
    partitions: int
    configs: dict[str, str] = field(default_factory=dict)
    id: UUID = field(default_factory=uuid4)
    mirror: Mirror | None = None
    assignment: tuple[tuple[int, ...], ...] | None = field(default=None, compare=False)

    @property
    def mirror_of(self) -> str | None:
        """The id of the cluster that the topic follows; None if clients may write to it."""
        return None if self.mirror is None or self.mirror.is_promoted else self.mirror.cluster_id


def mirrored_error(topic: str, cluster_id: str) -> MirroredTopicError:
    """Return the error for a request that would change a mirrored topic."""
    return MirroredTopicError(
        f"topic {topic!r} is a mirror of cluster {cluster_id}, and read-only until it is promoted"
    )


def is_internal(name: str) -> bool:
    """Return whether a topic is internal: clients may read it, but not write to it."""
    return name in INTERNAL_TOPICS


def uses_reserve(name: str) -> bool:
    """Return whether a topic, on which clients depend, is still written when its disk is short of space."""
    return name in COORDINATOR_TOPICS


def check_name(name: str) -> None:
    """Raise InvalidTopicError unless the name is legal.

    1 to 249 of ASCII letters, digits, `.`, `_` and `-`, and neither `.` nor `..`.
    """
    if not name:
        raise InvalidTopicError("a topic name must not be empty")
    if name in {".", ".."}:
        raise InvalidTopicError(f"topic name {name!r} is not allowed")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidTopicError(f"a topic name has at most {MAX_NAME_LENGTH} characters, not {len(name)}")
    if _LEGAL_NAME.fullmatch(name) is None:
        raise InvalidTopicError(f"topic name {name!r} may contain only ASCII letters, digits, '.', '_' and '-'")


def folded(name: str) -> str:
    """Return the name with `.` replaced by `_`, as in metric names; topics with equal results collide."""
    return name.replace(".", "_")


def check_collision(name: str, other: str | None) -> None:
    """Raise InvalidTopicError if `other`, the topic with the same folded name, is a different one."""
    if other is not None and other != name:
        raise InvalidTopicError(f"topic {name!r} collides with {other!r}: metric names do not distinguish '.' and '_'")


def check_partitions(count: int) -> None:
    """Raise InvalidPartitionsError unless the count is between 1 and 100,000."""
    if not 1 <= count <= MAX_PARTITIONS:
        raise InvalidPartitionsError(f"a topic has 1 to {MAX_PARTITIONS:,} partitions, not {count}")
