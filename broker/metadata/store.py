"""The interface of a metadata store. A broker by itself has `sqlite.py`; `broker.cluster.metadata` is a cluster's.

Calls block, so callers run them in workers. Implementations are thread-safe.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from warmlog.broker.metadata.topic import Mirror, Topic


class MetadataError(Exception):
    """The store cannot be read or written: newer layout, damaged, read-only, full. `str()` is one line naming it."""


class MetadataTimeoutError(MetadataError):
    """The store of a cluster does not answer: a change may be made all the same, later."""


class MetadataStore(Protocol):
    """Topics, dynamic broker settings, feature levels, and counters of ids.

    Writes are durable: they survive a power cut.
    """

    @property
    def changes(self) -> int:
        """The number of commits since the store was created. Does not block."""

    def load(self) -> list[Topic]:
        """Return all topics that are not being deleted, by name."""

    def deleting(self) -> list[Topic]:
        """Return topics whose deletion has begun but not finished."""

    def create_topics(self, topics: Sequence[Topic]) -> None:
        """Store new topics, all or none."""

    def begin_delete(self, names: Sequence[str]) -> None:
        """Mark topics as being deleted: users no longer see them, though their data may still exist."""

    def finish_delete(self, names: Collection[str], *, leaving_data: Collection[str] = ()) -> None:
        """Forget topics whose data has been removed.

        The ids of those in `leaving_data`, whose data could not all be reached, are added to `buried`.
        """

    def buried(self) -> frozenset[UUID]:
        """Return the ids of deleted topics that may still have data on disk, to be removed when found."""

    def directories(self) -> dict[str, str]:
        """Return the data directories in use at the last startup: absolute paths by directory id."""

    def set_directories(self, paths: Mapping[str, str]) -> None:
        """Replace the data directories that the next startup compares with."""

    def set_configs(self, name: str, configs: Mapping[str, str]) -> None:
        """Replace a topic's settings."""

    def set_partitions(self, name: str, partitions: int) -> None:
        """Set a topic's partition count."""

    def set_mirror(self, name: str, mirror: Mirror) -> None:
        """Replace what is stored of a mirrored topic's source."""

    def broker_configs(self) -> dict[str, str]:
        """Return the dynamic broker settings, as text by name."""

    def set_broker_configs(self, configs: Mapping[str, str]) -> None:
        """Replace all dynamic broker settings."""

    def feature_levels(self) -> dict[str, int]:
        """Return the levels of features that were changed, by name."""

    def set_feature_levels(self, levels: Mapping[str, int]) -> None:
        """Store levels of features; those of others stay."""

    def take_producer_ids(self, count: int, *, at_least: int = 0) -> int:
        """Allocate `count` consecutive producer ids that were never allocated before, and return the first.

        None is below `at_least`: copied logs contain producers that this store has not seen.
        """

    def close(self) -> None:
        """Close the store."""
