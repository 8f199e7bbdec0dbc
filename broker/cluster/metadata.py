"""The metadata store of a broker in a cluster: counters and levels are the cluster's, directories are its own."""

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

import trio

from warmlog.broker.cluster import admin
from warmlog.broker.cluster.node import ClusterNode
from warmlog.broker.metadata.store import MetadataStore
from warmlog.broker.metadata.topic import Mirror, Topic


class ClusterMetadata:
    """A `MetadataStore` of which only that is used which topics do not need: they are in the cluster's store.

    Calls that change the cluster's store come from worker threads; they raise what `admin.in_time` does.
    """

    def __init__(self, node: ClusterNode, local: MetadataStore) -> None:
        self._node = node
        self._local = local

    @property
    def changes(self) -> int:
        """The revision of the cluster's store."""
        return self._node.image.revision

    def feature_levels(self) -> dict[str, int]:
        """Return the levels of features that were changed, by name."""
        return dict(self._node.image.features.levels)

    def set_feature_levels(self, levels: Mapping[str, int]) -> None:
        """Store levels of features; those of others stay."""
        trio.from_thread.run(admin.in_time, lambda: admin.set_features(self._node, levels))

    def take_producer_ids(self, count: int, *, at_least: int = 0) -> int:
        """Allocate consecutive producer ids that no broker of the cluster has had."""
        return trio.from_thread.run(
            admin.in_time, lambda: admin.take_producer_ids(self._node, count, at_least=at_least)
        )

    # -- what a broker keeps for itself --

    def directories(self) -> dict[str, str]:
        """Return the data directories in use at the last startup: absolute paths by directory id."""
        return self._local.directories()

    def set_directories(self, paths: Mapping[str, str]) -> None:
        """Replace the data directories that the next startup compares with."""
        self._local.set_directories(paths)

    def buried(self) -> frozenset[UUID]:
        """Return the ids of deleted topics that may still have data on disk."""
        return self._local.buried()

    def close(self) -> None:
        """Close the file."""
        self._local.close()

    # -- topics and settings, which `ClusterTopics` changes --

    def load(self) -> list[Topic]:
        """Return no topics."""
        return []

    def deleting(self) -> list[Topic]:
        """Return no topics."""
        return []

    def broker_configs(self) -> dict[str, str]:
        """Return no settings: they come with the image."""
        return {}

    def create_topics(self, topics: Sequence[Topic]) -> None:
        """Not used."""
        raise NotImplementedError

    def begin_delete(self, names: Sequence[str]) -> None:
        """Not used."""
        raise NotImplementedError

    def finish_delete(self, names: Collection[str], *, leaving_data: Collection[str] = ()) -> None:
        """Not used."""
        raise NotImplementedError

    def set_configs(self, name: str, configs: Mapping[str, str]) -> None:
        """Not used."""
        raise NotImplementedError

    def set_partitions(self, name: str, partitions: int) -> None:
        """Not used."""
        raise NotImplementedError

    def set_mirror(self, name: str, mirror: Mirror) -> None:
        """Not used."""
        raise NotImplementedError

    def set_broker_configs(self, configs: Mapping[str, str]) -> None:
        """Not used."""
        raise NotImplementedError
