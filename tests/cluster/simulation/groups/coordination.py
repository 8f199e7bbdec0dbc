"""The coordinators of a simulated broker, and the handlers of what members of groups ask."""

from collections.abc import Sequence
from unittest.mock import patch

import warmlog.broker.coordinators
from tests.broker.rig import NO_QUOTAS
from tests.cluster.simulation.network import clock_ms
from warmlog.broker.api.addresses import Advertised
from warmlog.broker.api.cluster.features import GROUP_FEATURE, Features
from warmlog.broker.api.current_leaders import CurrentLeaders
from warmlog.broker.api.groups.consumer_groups import ConsumerGroupsApi
from warmlog.broker.api.groups.kafka_groups import group_families
from warmlog.broker.api.groups.share_groups import ShareGroupsApi
from warmlog.broker.api.handler import Family
from warmlog.broker.api.share.fetch import ShareFetchApi
from warmlog.broker.api.share.fetching import ShareFetching
from warmlog.broker.api.share.state import ShareStateApi
from warmlog.broker.clustered import ClusterMember
from warmlog.broker.coordinators import Coordinators
from warmlog.broker.metrics.registry import Metrics
from warmlog.broker.partitions.appends.writer import Writer
from warmlog.broker.partitions.partitions import Partitions
from warmlog.broker.partitions.reads.read_ahead import ReadAhead
from warmlog.broker.settings.settings import Settings
from warmlog.broker.share.service import SHARE_FEATURE


def coordinators_of(
    member: ClusterMember, partitions: Partitions, writer: Writer, settings: Settings, metrics: Metrics
) -> Coordinators:
    """Return the coordinators of a broker, on the simulated wall clock."""
    with patch.object(warmlog.broker.coordinators, "wall_clock_ms", clock_ms):
        return Coordinators(partitions, writer, settings, metrics, node=member.node, peers=member.brokers)


def families_of(
    coordinators: Coordinators, partitions: Partitions, reads: ReadAhead, advertised: Advertised, features: Features
) -> Sequence[Family]:
    """Return the handlers, as `Frontend` has them."""
    groups = coordinators.groups
    consumer_groups = ConsumerGroupsApi(groups.consumers, None, is_enabled=lambda: features.level(GROUP_FEATURE) > 0)
    return [
        ShareStateApi(coordinators.share_states.coordinator),
        *group_families(
            groups,
            coordinators.transactions,
            coordinators.share_states.runtime,
            partitions,
            advertised=advertised,
            consumer_groups=consumer_groups,
        ),
        ShareFetchApi(
            coordinators.share,
            ShareFetching(partitions, reads, NO_QUOTAS),
            is_enabled=lambda: features.level(SHARE_FEATURE) > 0,
            authorizer=None,
            leaders=CurrentLeaders(partitions, advertised),
        ),
        ShareGroupsApi(groups.shares, groups.share_offsets, is_enabled=lambda: features.level(SHARE_FEATURE) > 0),
    ]
