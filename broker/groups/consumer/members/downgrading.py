"""Decide whether a group returns to the classic protocol.

Source: Kafka's GroupMetadataManager (4.4: validateOnlineDowngradeWithFencedMembers,
validateOnlineDowngradeWithReplacedMember), ClassicGroup.fromConsumerGroup.
"""

from collections.abc import Collection

from warmlog.broker.groups.consumer.effects import ClassicMember, Downgrade
from warmlog.broker.groups.consumer.limits import ConsumerLimits
from warmlog.broker.groups.consumer.requests import Declaration
from warmlog.broker.groups.consumer.stored.group import StoredGroup


def without(group: StoredGroup, leaving: Collection[str], limits: ConsumerLimits) -> Downgrade | None:
    """Return the classic group of the remaining members; None if the group does not, or may not, become one."""
    metadata, subscriptions = group.metadata, group.subscriptions
    count = len(metadata) - len(leaving)
    classic = subscriptions.classic - sum([metadata[member_id].classic is not None for member_id in leaving])
    if not leaving or not count or classic != count or not _may_downgrade(count, limits):
        return None
    staying = [member_id for member_id in metadata if member_id not in leaving]
    members = {each: ClassicMember(metadata[each], group.target(each).partitions) for each in staying}
    return Downgrade(group.epoch.epoch, members, rebalances=True)


def replacing(group: StoredGroup, declared: Declaration, limits: ConsumerLimits) -> Downgrade | None:
    """Return the classic group after a classic static member replaces the last member of the consumer protocol.

    None if the group does not, or may not, become one. It rebalances if the new member's subscription differs.
    """
    metadata, former_id = group.metadata, group.static.get(declared.metadata.instance_id or "")
    if former_id is None or metadata[former_id].classic is not None:
        return None
    if group.subscriptions.classic != len(metadata) - 1 or not _may_downgrade(len(metadata), limits):
        return None
    former = metadata[former_id]
    staying = [member_id for member_id in metadata if member_id != former_id]
    members = {each: ClassicMember(metadata[each], group.target(each).partitions) for each in staying}
    members[declared.member_id] = ClassicMember(declared.metadata, group.target(former_id).partitions)
    changes = (declared.metadata.topics, declared.metadata.regex or "") != (former.topics, former.regex or "")
    return Downgrade(group.epoch.epoch, members, rebalances=changes)


def _may_downgrade(count: int, limits: ConsumerLimits) -> bool:
    return limits.may_downgrade and count <= limits.classic_max_size
