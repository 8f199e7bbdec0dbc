"""Choose the type of group that a member joins: a consumer group (KIP-848) or a classic group.

"auto" selects a consumer group, unless the broker does not support them or the group has classic members.
"""

import logging

from warmlog.client.errors import WarmlogError
from warmlog.client.groups.classic_member import ClassicMember, GroupMember
from warmlog.client.groups.consumer_member import ConsumerMember
from warmlog.client.groups.coordinator_link import CoordinatorLink
from warmlog.client.groups.member_options import MemberOptions
from warmlog.client.groups.subscribed_topics import SubscribedTopics
from warmlog.protocol.errors import ErrorCode

logger = logging.getLogger(__name__)

MAX_SWITCHES = 3  # maximum changes of type in one join, since the group may change its type meanwhile
# Errors of a join which show that the group has the other type, or that the broker does not support this one.
OF_CLASSIC_GROUPS = {ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION}
OF_CONSUMER_GROUPS = {ErrorCode.INCONSISTENT_GROUP_PROTOCOL}


class GroupTypes:
    """Creates members of the type that the options allow and the group has."""

    def __init__(self, coordinator: CoordinatorLink, options: MemberOptions, topics: SubscribedTopics) -> None:
        self._coordinator = coordinator
        self._options = options
        self._topics = topics
        self._switches = 0

    def first(self) -> GroupMember:
        """Return a member that has not joined yet."""
        kind = ClassicMember if self._options.group_protocol == "classic" else ConsumerMember
        return kind(self._coordinator, self._options, self._topics)

    def joined(self) -> None:
        """Reset the count of type changes after the member has joined."""
        self._switches = 0

    def other(self, member: GroupMember, error: WarmlogError) -> GroupMember | None:
        """Return a member of the other type if a join failed because the group has that type."""
        is_consumer = isinstance(member, ConsumerMember)
        if self._options.group_protocol != "auto" or self._switches == MAX_SWITCHES:
            return None
        if error.code not in (OF_CLASSIC_GROUPS if is_consumer else OF_CONSUMER_GROUPS):
            return None
        self._switches += 1
        logger.info("group %s: joining with the other protocol: %s", self._options.group, error.message)
        kind = ClassicMember if is_consumer else ConsumerMember
        return kind(self._coordinator, self._options, self._topics)
