"""Feature levels of the cluster (KIP-584).

A feature whose only level is 0 is not supported, and ApiVersions does not list it.

Source: org.apache.kafka.controller.FeatureControlManager, org.apache.kafka.controller.QuorumFeatures.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping

import trio
from msgspec.structs import replace

from warmlog.broker.api.errors import RequestError
from warmlog.broker.cluster import admin
from warmlog.broker.cluster.image import ImageDelta
from warmlog.broker.cluster.store_node import StoreNode
from warmlog.broker.share.service import SHARE_FEATURE
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka.messages.cluster.controller import FeatureUpdate
from warmlog.protocol.kafka.messages.cluster.discovery import FeatureRange
from warmlog.protocol.transactions import TRANSACTION_FEATURE, TransactionVersion

LATEST = max(TransactionVersion)
GROUP_FEATURE = "group.version"
STREAMS_FEATURE = "streams.version"
#: Levels of a new cluster.
FEATURES: Mapping[str, FeatureRange] = {
    feature.name: feature
    for feature in (
        FeatureRange(name="metadata.version", first=33, last=33, level=33),  # Kafka 4.4
        FeatureRange(name="eligible.leader.replicas.version", first=0, last=0, level=0),
        FeatureRange(name=GROUP_FEATURE, first=0, last=1, level=1),  # 1: consumer groups of KIP-848
        FeatureRange(name="kraft.version", first=0, last=0, level=0),  # changes of voters (KIP-853)
        FeatureRange(name=SHARE_FEATURE, first=0, last=2, level=2),  # 1: share groups of KIP-932, 2: dead letters
        FeatureRange(name=STREAMS_FEATURE, first=0, last=1, level=1),  # 1: streams groups of KIP-1071
        FeatureRange(name=TRANSACTION_FEATURE, first=TransactionVersion.TV_0, last=LATEST, level=LATEST),
    )
}
_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3


class Features:
    """The finalized levels in the image of the store. Call all methods on the event loop."""

    def __init__(self, node: StoreNode, *changed: Callable[[str, int], None]) -> None:
        """Each of `changed` is called with each feature and its level, first in this constructor."""
        self._node = node
        self._changed = changed
        self._lock = trio.Lock()
        self._features = dict(FEATURES)
        self._take(node.image.features.levels)
        node.on_change.append(lambda image, delta: self._follow(image.features.levels, delta))

    @property
    def served(self) -> tuple[FeatureRange, ...]:
        """The supported features with their levels, for ApiVersions."""
        return tuple([feature for feature in self._features.values() if feature.last > 0])

    @property
    def epoch(self) -> int:
        """A number that increases with each change of a level."""
        return self._node.image.revision

    def level(self, name: str) -> int:
        """Return the level of a feature."""
        return self._features[name].level

    async def update(
        self, updates: Iterable[FeatureUpdate], *, validate_only: bool, checkpoint: Callable[[], Awaitable[None]]
    ) -> None:
        """Change levels, all or none. Raises RequestError (INVALID_UPDATE_VERSION) and MetadataError."""
        levels: dict[str, int] = {}
        async with self._lock:
            for update in updates:
                self._check(update)
                if update.level != self._features[update.name].level:
                    levels[update.name] = update.level
                await checkpoint()
            if levels and not validate_only:
                await admin.in_time(lambda: admin.set_features(self._node, levels))

    def _follow(self, levels: Mapping[str, int], delta: ImageDelta) -> None:
        if delta.have_features_changed:
            self._take(levels)

    def _take(self, levels: Mapping[str, int]) -> None:
        for name, level in levels.items():
            feature = self._features.get(name)
            if feature is not None and feature.first <= level <= feature.last:
                self._features[name] = replace(feature, level=level)
        for feature in self._features.values():
            for changed in self._changed:
                changed(feature.name, feature.level)

    def _check(self, update: FeatureUpdate) -> None:
        """Raise RequestError unless a feature can get the requested level."""
        problem = self._problem(update)
        if problem is not None:
            raise RequestError(
                ErrorCode.INVALID_UPDATE_VERSION,
                "The update failed for all features since the following feature had an error:"
                f" Invalid update version {update.level} for feature {update.name}. {problem}",
            )

    def _problem(self, update: FeatureUpdate) -> str | None:
        feature = self._features.get(update.name)
        if update.upgrade_type not in {_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE}:
            return "The controller does not support the given upgrade type."
        if update.level < 0:
            return "A feature version cannot be less than 0."
        if feature is None or not feature.first <= update.level <= feature.last:
            return f"Node {self._node.id} {_range(feature)}"
        if update.level < feature.level and update.upgrade_type == _UPGRADE:
            return (
                "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
                "downgrade."
            )
        if update.level > feature.level and update.upgrade_type != _UPGRADE:
            return "Can't downgrade to a newer version."
        return None


def _range(feature: FeatureRange | None) -> str:
    if feature is None or not feature.last:
        return "does not support this feature."
    return f"only supports versions {feature.first}-{feature.last}"
