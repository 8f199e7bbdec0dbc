"""The interface to what keeps the metadata. The embedded store is `sqlite.py`; a cluster will have another.

Calls block: callers run them in workers; an implementation bears several at once.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from broker.metadata.topic import Topic


class MetadataError(Exception):
    """The store cannot be used: of another version, damaged, read-only, full. `str()` is one line that names it."""


class MetadataStore(Protocol):
    """Topics, the broker's settings and numbers that are given once.

    Kept durably: when a call returns, what it said survives a power cut.
    """

    @property
    def changes(self) -> int:
        """The number of commits since the store was made. Does not block."""

    def load(self) -> list[Topic]:
        """All topics that are not being deleted, by name."""

    def deleting(self) -> list[Topic]:
        """Topics whose deletion has begun and not ended."""

    def create_topics(self, topics: Sequence[Topic]) -> None:
        """Keep new topics: all of them, or none."""

    def begin_delete(self, names: Sequence[str]) -> None:
        """Mark topics as being deleted: from here on they are gone for users, though their data may still exist."""

    def finish_delete(self, names: Collection[str], *, leaving_data: Collection[str] = ()) -> None:
        """Forget topics whose data is out of the way.

        Of those in `leaving_data` some could not be reached: their ids are kept among the `buried` ones.
        """

    def buried(self) -> frozenset[UUID]:
        """The ids of topics that were forgotten though some of their data still lay about: it is to be removed."""

    def directories(self) -> dict[str, str]:
        """The data directories that there were: absolute paths by their ids."""

    def set_directories(self, paths: Mapping[str, str]) -> None:
        """Replace the data directories to know at the next start."""

    def set_configs(self, name: str, configs: Mapping[str, str]) -> None:
        """Replace a topic's settings."""

    def set_partitions(self, name: str, partitions: int) -> None:
        """Set a topic's partition count."""

    def broker_configs(self) -> dict[str, str]:
        """The settings that were made on the broker while it ran, as text, by their names."""

    def set_broker_configs(self, configs: Mapping[str, str]) -> None:
        """Replace those settings: what is not in `configs` is forgotten."""

    def take_producer_ids(self, count: int, *, at_least: int = 0) -> int:
        """The first of `count` producer ids in a row that nobody was given before, by this or any earlier call.

        None is below `at_least`: logs that came from elsewhere know producers that this store does not.
        """

    def close(self) -> None:
        """Let go of the store."""
