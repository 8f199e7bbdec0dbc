"""The records of a member that joins, changes its subscription, leaves for a restart, or comes back.

Source: Kafka's ConsumerGroupMember.Builder.
"""

from warmlog.broker.groups.automaton import Client
from warmlog.broker.groups.consumer.requests import UNCHANGED_TIMEOUT
from warmlog.broker.groups.consumer.stored.holding import Current, Holding, held_partitions
from warmlog.broker.groups.modern.static_members import LEAVE_FOR_RESTART
from warmlog.protocol.groups import JoinGroupRequest
from warmlog.protocol.kafka.consumer_group_records import ClassicMember, CurrentAssignment, MemberMetadata
from warmlog.protocol.kafka.consumer_protocol import Subscription
from warmlog.protocol.kafka.messages.groups.consumer import ConsumerGroupHeartbeatRequest


def joined(client: Client) -> MemberMetadata:
    """Return a new member without a declaration. In place of a missing expression, Kafka writes an empty text."""
    return MemberMetadata(client_id=client.client_id, client_host=client.host, regex="")


def updated(metadata: MemberMetadata, request: ConsumerGroupHeartbeatRequest, client: Client) -> MemberMetadata:
    """Return a member with a heartbeat's declaration, or `metadata` itself if nothing changes.

    The member then uses the consumer protocol.
    """
    topics = metadata.topics
    if request.topics is not None and frozenset(request.topics) != frozenset(topics):
        topics = tuple(sorted(set(request.topics)))
    timeout_ms = request.rebalance_timeout_ms
    after = MemberMetadata(
        instance_id=metadata.instance_id if request.instance_id is None else request.instance_id,
        rack_id=metadata.rack_id if request.rack_id is None else request.rack_id,
        client_id=client.client_id,
        client_host=client.host,
        topics=topics,
        regex=metadata.regex if request.regex is None else request.regex,
        rebalance_timeout_ms=metadata.rebalance_timeout_ms if timeout_ms == UNCHANGED_TIMEOUT else timeout_ms,
        assignor=metadata.assignor if request.assignor is None else request.assignor,
    )
    return metadata if after == metadata else after


def joined_as_classic(
    metadata: MemberMetadata, request: JoinGroupRequest, subscription: Subscription, client: Client
) -> MemberMetadata:
    """Return a member with a JoinGroup's declaration, or `metadata` itself if nothing changes.

    The member then uses the classic protocol, which has no regular expressions.
    """
    topics = metadata.topics
    if frozenset(subscription.topics) != frozenset(topics):
        topics = tuple(sorted(set(subscription.topics)))
    timeout_ms = request.rebalance_timeout_ms
    after = MemberMetadata(
        instance_id=metadata.instance_id if request.instance_id is None else request.instance_id,
        rack_id=metadata.rack_id if subscription.rack is None else subscription.rack,
        client_id=client.client_id,
        client_host=client.host,
        topics=topics,
        regex="",
        rebalance_timeout_ms=metadata.rebalance_timeout_ms if timeout_ms == UNCHANGED_TIMEOUT else timeout_ms,
        assignor=metadata.assignor,
        classic=ClassicMember(session_timeout_ms=request.session_timeout_ms, protocols=tuple(request.protocols)),
    )
    return metadata if after == metadata else after


def left_for_restart(current: Current) -> CurrentAssignment:
    """Return the assignment of a static member while it is away, without partitions that it still had to give up.

    The epochs of the partitions become 0, so that commits in flight are accepted.
    """
    return CurrentAssignment(
        epoch=LEAVE_FOR_RESTART,
        previous_epoch=current.value.previous_epoch,
        state=current.value.state,
        assigned=held_partitions(_since_0(current.assigned)),
    )


def rejoined(current: Current) -> CurrentAssignment:
    """Return the assignment of a static member that returns with another member id."""
    return CurrentAssignment(
        epoch=0,
        previous_epoch=0,
        state=current.value.state,
        assigned=current.value.assigned,
        to_revoke=current.value.to_revoke,
    )


def _since_0(holding: Holding) -> Holding:
    return {topic_id: dict.fromkeys(partitions, 0) for topic_id, partitions in holding.items()}
