"""Convert the members of a classic group to those of a consumer group.

Source: Kafka's GroupMetadataManager (4.4: validateOnlineUpgrade, convertToConsumerGroup),
ConsumerGroup.fromClassicGroup.
"""

from collections.abc import Mapping

from warmlog.broker.groups.classic.members import Member
from warmlog.broker.groups.classic.state import ClassicGroup
from warmlog.broker.groups.consumer.effects import ClassicMember
from warmlog.broker.groups.modern.assignment import Assignment, Topics
from warmlog.broker.groups.modern.refusals import RefusedError
from warmlog.protocol.errors import ErrorCode
from warmlog.protocol.kafka import consumer_group_records as records
from warmlog.protocol.kafka.codec.bounds import MalformedError
from warmlog.protocol.kafka.consumer_protocol import decode_assignment, decode_subscription


def check(group: ClassicGroup, *, may_upgrade: bool, max_size: int) -> None:
    """Refuse to convert a group that may not, or cannot, become a consumer group. Raises RefusedError."""
    if not may_upgrade:
        raise _refused(group, "online upgrade is disabled")
    if not group.generation.is_consumer_group:
        raise _refused(group, "the group does not use the consumer embedded protocol")
    if len(group.members) > max_size:
        raise _refused(group, "the group size exceeds the consumer group maximum size")


def members_of(group: ClassicGroup, topics: Topics) -> Mapping[str, ClassicMember]:
    """Return the members with their declarations and assignments. Raises RefusedError."""
    protocol = group.generation.protocol_name or group.members.choose_protocol()
    try:
        return {member.member_id: _converted(group, member, protocol, topics) for member in group.members}
    except MalformedError:
        raise _refused(group, "the embedded consumer protocol is malformed") from None


def _converted(group: ClassicGroup, member: Member, protocol: str, topics: Topics) -> ClassicMember:
    assigned = decode_assignment(member.assignment)
    if assigned.user_data:
        raise RefusedError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"Cannot upgrade classic group {group.group_id} to consumer group because an unsupported custom assignor "
            "is in use. Please refer to the documentation or switch to a default assignor before re-attempting the "
            "upgrade.",
        )
    assignment: dict[bytes, set[int]] = {}
    for entry in assigned.partitions:
        topic = topics.named(entry.topic)
        if topic is not None:
            assignment.setdefault(topic.id, set()).add(entry.partition)
    # A member that joins the next generation may not support the protocol of this one.
    subscription = decode_subscription(member.metadata(protocol) or member.protocols[0].metadata)
    metadata = records.MemberMetadata(
        instance_id=member.instance_id,
        rack_id=subscription.rack,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=tuple(sorted(set(subscription.topics))),
        regex="",
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=records.ClassicMember(session_timeout_ms=member.session_timeout_ms, protocols=member.protocols),
    )
    held: Assignment = {topic_id: frozenset(numbers) for topic_id, numbers in assignment.items()}
    return ClassicMember(metadata, held)


def _refused(group: ClassicGroup, reason: str) -> RefusedError:
    message = f"Cannot upgrade classic group {group.group_id} to consumer group because {reason}."
    return RefusedError(ErrorCode.GROUP_ID_NOT_FOUND, message)
